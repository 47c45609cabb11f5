"""What a profile is checked against on this machine: its memory, the fleets on it, and their models."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.errors import InvalidInput, NotFound
from app.planner.geometry import Geometry, read_geometry
from app.planner.model_files import read_model
from app.planner.plan import check_chunk, make_plan
from app.planner.profile import asked_by_profile
from app.planner.wish import read_wish
from app.profiles.context import USUAL_VERSION, Box, Claim, Context, ModelFacts, Platform, Version
from app.profiles.memory import total_bytes
from app.profiles.normal import normal_flags
from app.store.database import Database
from app.store.queries.engines import EngineDefinition, all_definitions
from app.supervisor import machine

if TYPE_CHECKING:
    from app.services.profiles import VersionView
    from app.store.models import ProfileVersionRow

#: Where the NVIDIA driver shows itself; without it an engine runs on the CPU.
DRIVER = Path("/proc/driver/nvidia/version")
CPU_FACTS = Path("/proc/cpuinfo")


@dataclass(frozen=True)
class Known:
    """What an interpreter told of itself, as far as a check while typing needs it."""

    engine_version: Version | None = None
    platform: Platform | None = None


@dataclass(frozen=True)
class _Model:
    """A model's config.json, read once."""

    config: Mapping[str, Any]
    geometry: Geometry


class Surroundings:
    """Gathers the context of a check. `known` tells what is known already of an interpreter; it asks nobody."""

    def __init__(self, database: Database, known: Callable[[str], Known] = lambda _interpreter: Known()) -> None:
        self._database = database
        self._known = known
        self._models: dict[tuple[str, float], _Model | None] = {}

    async def context(self, fleet: str | None = None, engine_version: Version | None = None) -> Context:
        """The context on a fleet; of the only one without a name. Raises NotFound."""
        async with self._database.session() as session:
            definitions = await all_definitions(session)
        own = fleet_of(definitions, fleet)
        return await asyncio.to_thread(self._context, definitions, own, engine_version)

    async def definition(self, fleet: str | None = None) -> EngineDefinition:
        """The first engine of a fleet; of the only fleet without a name. Raises NotFound, InvalidInput."""
        async with self._database.session() as session:
            definitions = await all_definitions(session)
        own = fleet_of(definitions, fleet)
        if not own:
            why = "Name the fleet that it is meant for." if definitions else "There is no fleet that it could be for."
            raise InvalidInput(why, path="fleet")
        return own[0]

    def _context(
        self, definitions: Sequence[EngineDefinition], own: Sequence[EngineDefinition], version: Version | None
    ) -> Context:
        known = self._known(own[0].fleet.interpreter) if own else Known()
        platform: Platform = known.platform or ("cuda" if DRIVER.exists() else "cpu")
        others = [one for one in definitions if own and one.fleet.id != own[0].fleet.id]
        return Context(
            engine_version=version or known.engine_version or USUAL_VERSION,
            platform=platform,
            model=(facts := self._model(own[0].fleet.model, platform) if own else None),
            unread_model=own[0].fleet.model if own and facts is None and _is_here(own[0].fleet.model) else "",
            box=read_box(claims_of(others)),
            engines=max(1, len(own)),
            base_flags=normal_flags(own[0].fleet.base_flags).value if own else {},
            base_environment=own[0].fleet.environment if own else {},
            devices=tuple(map(str, own[0].engine.devices)) if own else (),
        )

    def _model(self, model: str, platform: Platform) -> ModelFacts | None:
        found = self._read(model)
        if found is None:
            return None
        architectures = found.config.get("architectures")
        return ModelFacts(
            name=model,
            is_hybrid=found.geometry.recurrence is not None,
            is_latent=found.geometry.attention.is_latent,
            longest_tokens=found.geometry.longest_tokens,
            architectures=tuple(map(str, architectures)) if isinstance(architectures, list) else (),
            block_of=lambda flags: _block(found, platform, flags),
            takes_ranks=lambda ranks: _refusal(lambda: found.geometry.check_workers(ranks)) is None,
            refused_chunk=lambda blocks, tokens: (
                _refusal(lambda: check_chunk(blocks, tokens)) if found.geometry.window_layers else None
            ),
        )

    def _read(self, model: str) -> _Model | None:
        """None for a hub name, and for a config that the planner cannot read: then nothing is judged by it."""
        path = Path(model).expanduser()
        if not path.is_absolute():
            return None
        file = path / "config.json" if path.is_dir() else path
        try:
            key = (model, file.stat().st_mtime)
        except OSError:
            return None
        if key not in self._models:
            self._models[key] = _read_geometry(model)
        return self._models[key]


@cache
def has_fast_states() -> bool:
    """True on a CPU whose kernels make vLLM keep recurrent states in float32 (AVX-512 with bf16)."""
    try:
        return "avx512_bf16" in CPU_FACTS.read_text()
    except OSError:
        return True


def state_settings(geometry: Geometry, platform: Platform) -> dict[str, Any]:
    """How the states are kept where no flag says it, as far as this machine decides that."""
    own = geometry.state_dtype
    return {"state_dtype": own} if platform == "cpu" and own is not None and not has_fast_states() else {}


def fleet_of(definitions: Sequence[EngineDefinition], fleet: str | None) -> list[EngineDefinition]:
    """The engines of a fleet; of the only one without a name, none when there are several. Raises NotFound."""
    names = {one.fleet.name for one in definitions}
    if fleet and fleet not in names:
        raise no_fleet(fleet)
    wanted = fleet or (next(iter(names)) if len(names) == 1 else None)
    return [one for one in definitions if one.fleet.name == wanted]


def no_fleet(name: str | None) -> NotFound:
    """The error where a fleet is not there, or there is none at all."""
    if not name:
        return NotFound("There is no fleet.", path="fleet")
    return NotFound('There is no fleet named "%(name)s".', path="fleet", values={"name": name})


def host_bytes(
    version: ProfileVersionRow | VersionView, base_flags: Mapping[str, Any], base_environment: Mapping[str, Any]
) -> int:
    """Host memory, over all ranks, of an engine with this version in a fleet with these flags and variables."""
    flags, environment = {**base_flags, **version.flags}, {**base_environment, **version.environment}
    return total_bytes(version.kv_transfer_config, flags, environment)


def claims_of(definitions: Sequence[EngineDefinition]) -> tuple[Claim, ...]:
    """The host memory that each engine's wanted version asks for."""
    claims = (
        Claim(
            fleet=one.fleet.name,
            profile=f"{one.profile.name} v{one.version.number}",
            bytes=host_bytes(one.version, one.fleet.base_flags, one.fleet.environment),
        )
        for one in definitions
    )
    return tuple(claim for claim in claims if claim.bytes)


def read_box(claims: tuple[Claim, ...] = ()) -> Box:
    """This machine's memory (reads a few small files)."""
    return Box(
        memory_bytes=machine.memory_bytes(),
        limit_bytes=machine.group_limit(),
        shared_bytes=machine.shared_bytes(),
        claims=claims,
    )


def _is_here(model: str) -> bool:
    """True for a directory or file; the name of a model on a hub is read nowhere."""
    return Path(model).expanduser().is_absolute()


def _refusal(check: Callable[[], None]) -> InvalidInput | None:
    """Why the planner would not go on."""
    try:
        check()
    except InvalidInput as refusal:
        return refusal
    return None


def _read_geometry(model: str) -> _Model | None:
    try:
        config = read_model(model).config
        return _Model(config, read_geometry(config))
    except InvalidInput:
        return None


def _block(model: _Model, platform: Platform, flags: Mapping[str, Any]) -> int | None:
    """The block that the planner expects; None where it cannot tell."""
    settings = asked_by_profile({}, {**flags, "block-size": None})
    asked = {**state_settings(model.geometry, platform), **settings, "platform": platform}
    try:
        plan = make_plan(model.config, read_wish(asked))
    except InvalidInput:
        return None
    return None if plan.model is None else plan.model.block_tokens
