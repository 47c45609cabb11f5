"""Profiles: named, versioned settings of the engines. A version never changes once it is saved."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from app.derive import profile_text
from app.derive.profile_text import Change
from app.errors import Conflict, InvalidInput, NotFound
from app.events import Event, Events
from app.profiles.check import Checked, Draft, check
from app.profiles.context import Context, Version
from app.profiles.finding import Finding
from app.profiles.transport import exported, imported
from app.services.surroundings import Surroundings
from app.store.database import Database
from app.store.models import ProfileVersionRow, ValidationRow
from app.store.queries import profiles as queries
from app.store.queries import runs
from app.supervisor.command import EngineSpec, Profile, shell_command
from app.supervisor.records import engine_spec

__all__ = ["Checked", "Draft", "Finding", "ProfileSummary", "Profiles", "Run", "ValidationView", "VersionView"]

NAME_LIMIT = 64
RUNS_SHOWN = 50


@dataclass(frozen=True)
class ValidationView:
    """What a version was checked against, and what came of it."""

    at: float
    depth: int
    against: dict[str, Any]
    findings: list[dict[str, Any]]
    numbers: dict[str, Any]


@dataclass(frozen=True)
class VersionView:
    """One version as shown: its content, where it came from and which engines run it now."""

    id: int
    profile: str
    number: int
    created_at: float
    author: str
    comment: str
    kv_transfer_config: dict[str, Any]
    flags: dict[str, Any]
    environment: dict[str, str]
    runs_on: tuple[str, ...]
    allow: tuple[str, ...] = ()
    validations: tuple[ValidationView, ...] = ()
    """The newest of each depth, deepest first."""

    @property
    def content(self) -> dict[str, Any]:
        """What an engine is started with."""
        return {
            "kv-transfer-config": self.kv_transfer_config,
            "flags": self.flags,
            "environment": self.environment,
        }


@dataclass(frozen=True)
class ProfileSummary:
    """A profile in the list: its newest version, how many there are, and where any of them runs."""

    name: str
    latest: VersionView
    count: int
    runs_on: tuple[tuple[str, int], ...]
    """Pairs of engine name and version number."""


@dataclass(frozen=True)
class Run:
    """One start of an engine with a version. `ended_at` is None while it runs."""

    version: int
    engine: str
    fleet: str
    started_at: float
    ended_at: float | None


class Profiles:
    """Reads, checks and saves profiles."""

    def __init__(self, database: Database, events: Events, surroundings: Surroundings | None = None) -> None:
        self._database = database
        self._events = events
        self._surroundings = surroundings

    async def list(self) -> Sequence[ProfileSummary]:
        """Every profile, by name."""
        async with self._database.session() as session:
            rows = await queries.all_versions(session)
            running = await queries.engines_by_running_version(session)
            checked = await queries.newest_validations(session)
        grouped: dict[str, list[VersionView]] = {}
        for profile, version in rows:
            grouped.setdefault(profile.name, []).append(_view(profile.name, version, running, checked))
        return [_summary(name, versions) for name, versions in grouped.items()]

    async def versions(self, name: str) -> Sequence[VersionView]:
        """The versions of a profile, newest first. Raises NotFound."""
        async with self._database.session() as session:
            rows = await queries.versions_of(session, name)
            running = await queries.engines_by_running_version(session)
            checked = await queries.newest_validations(session, [row.id for row in rows])
        if not rows:
            raise NotFound('There is no profile named "%(name)s".', path="profile", values={"name": name})
        return [_view(name, row, running, checked) for row in rows]

    async def version(self, name: str, number: int | None = None) -> VersionView:
        """One version; the newest when `number` is None. Raises NotFound."""
        versions = await self.versions(name)
        if number is None:
            return versions[0]
        for version in versions:
            if version.number == number:
                return version
        values = {"name": name, "number": number, "newest": versions[0].number}
        sentence = 'Profile "%(name)s" has no version %(number)s; the newest is %(newest)s.'
        raise NotFound(sentence, path="version", values=values)

    async def by_version_id(self, version_id: int) -> VersionView:
        """The version with this id. Raises NotFound."""
        async with self._database.session() as session:
            profile, version = await queries.known_version(session, version_id)
            running = await queries.engines_by_running_version(session)
            checked = await queries.newest_validations(session, [version_id])
        return _view(profile.name, version, running, checked)

    async def context(self, fleet: str | None = None, engine_version: Version | None = None) -> Context:
        """What a draft is checked against. Raises NotFound."""
        if self._surroundings is None:
            return Context() if engine_version is None else Context(engine_version)
        return await self._surroundings.context(fleet, engine_version)

    async def validate(self, draft: Draft, fleet: str | None = None, engine_version: Version | None = None) -> Checked:
        """Read a draft and say what there is to say about it, asking no engine; nothing is saved."""
        return check(draft, await self.context(fleet, engine_version))

    async def save(
        self, name: str, draft: Draft, author: str, comment: str = "", fleet: str | None = None
    ) -> VersionView:
        """Save `draft` as the next version of `name`. Raises InvalidInput with the first error."""
        _check_name(name)
        context = await self.context(fleet)
        checked = check(draft, context)
        for finding in checked.findings:
            if finding.severity == "error":
                raise InvalidInput(finding.sentence, path=finding.path, code="invalid_profile", values=finding.values)
        async with self._database.begin() as session:
            _, version = await queries.add_version(
                session,
                name,
                now=time.time(),
                author=author,
                comment=comment.strip(),
                kv_transfer_config=checked.kv_transfer_config,
                flags=checked.flags,
                environment=checked.environment,
                allow=list(checked.allow),
            )
            await queries.add_validation(
                session,
                version_id=version.id,
                at=version.created_at,
                depth=1,
                against=against(context),
                findings=[told(finding) for finding in checked.findings],
                numbers={},
            )
        self._events.publish(Event("profile", name, {"version": version.number}))
        return await self.by_version_id(version.id)

    async def note_validation(
        self, version: VersionView, depth: int, against: dict[str, Any], findings: Sequence[Finding], numbers: Any
    ) -> VersionView:
        """Keep what a deeper check of a version said, beside the version."""
        async with self._database.begin() as session:
            await queries.add_validation(
                session,
                version_id=version.id,
                at=time.time(),
                depth=depth,
                against=against,
                findings=[told(finding) for finding in findings],
                numbers=numbers,
            )
        self._events.publish(Event("profile", version.profile, {"version": version.number}))
        return await self.by_version_id(version.id)

    async def clone(self, name: str, number: int, to: str, author: str, comment: str = "") -> VersionView:
        """Begin a new profile with the content of a version. Raises NotFound, Conflict, InvalidInput."""
        version = await self.version(name, number)
        return await self._new(to, exported(version.profile, version.number, version), author, comment)

    async def take_in(self, document: Any, author: str, name: str | None = None) -> VersionView:
        """Begin a new profile from an exported file. Raises Conflict, InvalidInput."""
        taken = imported(document)
        return await self._new(name or str(taken["name"]), taken, author, str(taken["comment"]))

    async def export(self, name: str, number: int | None = None) -> dict[str, Any]:
        """A version as a file to keep or to take elsewhere. Raises NotFound."""
        version = await self.version(name, number)
        return exported(version.profile, version.number, version)

    async def shell_command(self, name: str, number: int, fleet: str | None = None) -> str:
        """The start of an engine of a fleet with a version, as one line for a shell. Raises NotFound, InvalidInput."""
        version = await self.version(name, number)
        return shell_command(await self.engine_spec(version, fleet))

    async def engine_spec(self, version: VersionView, fleet: str | None = None) -> EngineSpec:
        """What an engine of a fleet would be started as. Raises NotFound, InvalidInput."""
        if self._surroundings is None:
            raise InvalidInput("There is no fleet to start it on.", path="fleet")
        spec = engine_spec(await self._surroundings.definition(fleet))
        profile = Profile(
            version.profile,
            version.number,
            version.id,
            version.kv_transfer_config,
            version.flags,
            version.environment,
        )
        return replace(spec, profile=profile)

    async def history(self, name: str, limit: int = RUNS_SHOWN) -> Sequence[Run]:
        """Where and when each version of a profile ran, newest first. Raises NotFound."""
        await self.version(name)
        async with self._database.session() as session:
            found = await runs.of_profile(session, name, limit)
        return [Run(one.number, one.engine, one.fleet, one.run.started_at, one.run.ended_at) for one in found]

    async def _new(self, name: str, document: Mapping[str, Any], author: str, comment: str) -> VersionView:
        async with self._database.session() as session:
            if await queries.versions_of(session, name):
                sentence = 'There is a profile named "%(name)s" already; choose another name.'
                raise Conflict(sentence, path="name", values={"name": name})
        return await self.save(name, draft_of(document), author, comment)


def differences(old: VersionView, new: VersionView) -> list[Change]:
    """Field by field, what is allowed included."""
    allowed = profile_text.changes({"allow": [*old.allow]}, {"allow": [*new.allow]})
    return [*profile_text.changes(old.content, new.content), *allowed]


def draft_of(document: Mapping[str, Any]) -> Draft:
    """A stored or exported version as a draft."""
    texts = [profile_text.as_text(document[part]) for part in ("kv_transfer_config", "flags", "environment")]
    return Draft(texts[0], texts[1], texts[2], tuple(document["allow"]))


def told(finding: Finding) -> dict[str, Any]:
    """A finding as it is kept with a version: template and values, so that any language can tell it."""
    return {
        "severity": finding.severity,
        "path": finding.path,
        "sentence": finding.sentence,
        "values": dict(finding.values),
        "message": finding.message,
    }


def against(context: Context) -> dict[str, Any]:
    """What a check was made against, as it is kept with a version."""
    return {
        "engine_version": context.version_text,
        "platform": context.platform,
        "model": context.model.name if context.model is not None else None,
    }


def _check_name(name: str) -> None:
    if not name or len(name) > NAME_LIMIT or not all(c.isalnum() or c in "-_." for c in name):
        sentence = "Name the profile with letters, digits, '-', '_' and '.', at most %(most)s of them."
        raise InvalidInput(sentence, path="name", values={"most": NAME_LIMIT})


def _view(
    name: str,
    row: ProfileVersionRow,
    running: Mapping[int, tuple[str, ...]],
    checked: Mapping[int, list[ValidationRow]],
) -> VersionView:
    return VersionView(
        id=row.id,
        profile=name,
        number=row.number,
        created_at=row.created_at,
        author=row.author,
        comment=row.comment,
        kv_transfer_config=row.kv_transfer_config,
        flags=row.flags,
        environment=row.environment,
        runs_on=running.get(row.id, ()),
        allow=tuple(row.allow),
        validations=tuple(
            ValidationView(one.at, one.depth, one.against, one.findings, one.numbers) for one in checked.get(row.id, ())
        ),
    )


def _summary(name: str, versions: list[VersionView]) -> ProfileSummary:
    runs_on = tuple((engine, version.number) for version in versions for engine in version.runs_on)
    return ProfileSummary(name, versions[0], len(versions), runs_on)
