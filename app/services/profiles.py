"""Profiles: named, versioned settings of the engines. A version never changes once it is saved."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from app.derive import profile_text
from app.derive.profile_text import Change, Finding, ParsedText
from app.errors import InvalidInput, NotFound
from app.events import Event, Events
from app.services.connector_check import check_extra_config
from app.store.database import Database
from app.store.models import ProfileRow, ProfileVersionRow
from app.store.queries import profiles as queries

NAME_LIMIT = 64


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
class Draft:
    """A profile as typed: three texts, each one JSON object."""

    kv_transfer_config: str
    flags: str
    environment: str = ""


@dataclass(frozen=True)
class Checked:
    """A draft that was read, with everything there is to say about it."""

    kv_transfer_config: dict[str, Any]
    flags: dict[str, Any]
    environment: dict[str, str]
    findings: tuple[Finding, ...]

    @property
    def is_valid(self) -> bool:
        """True when it may be saved."""
        return not any(finding.severity == "error" for finding in self.findings)


class Profiles:
    """Reads, checks and saves profiles."""

    def __init__(self, database: Database, events: Events) -> None:
        self._database = database
        self._events = events

    async def list(self) -> Sequence[ProfileSummary]:
        """Every profile, by name."""
        async with self._database.session() as session:
            rows = await queries.all_versions(session)
            running = await queries.engines_by_running_version(session)
        grouped: dict[str, list[VersionView]] = {}
        for profile, version in rows:
            grouped.setdefault(profile.name, []).append(_view(profile, version, running))
        return [_summary(name, versions) for name, versions in grouped.items()]

    async def versions(self, name: str) -> Sequence[VersionView]:
        """The versions of a profile, newest first. Raises NotFound."""
        async with self._database.session() as session:
            rows = await queries.versions_of(session, name)
            running = await queries.engines_by_running_version(session)
        if not rows:
            raise NotFound(f"There is no profile named {name!r}.", path="profile")
        return [_view_named(name, row, running) for row in rows]

    async def version(self, name: str, number: int | None = None) -> VersionView:
        """One version; the newest when `number` is None. Raises NotFound."""
        versions = await self.versions(name)
        if number is None:
            return versions[0]
        for version in versions:
            if version.number == number:
                return version
        raise NotFound(f"Profile {name!r} has no version {number}; the newest is {versions[0].number}.", path="version")

    async def by_version_id(self, version_id: int) -> VersionView:
        """The version with this id. Raises NotFound."""
        async with self._database.session() as session:
            found = await queries.version_with_profile(session, version_id)
            running = await queries.engines_by_running_version(session)
        if found is None:
            raise NotFound(f"There is no profile version with id {version_id}.", path="version_id")
        return _view(*found, running)

    def validate(self, draft: Draft) -> Checked:
        """Read a draft and say what is wrong with it; nothing is saved."""
        config = profile_text.parse_object(draft.kv_transfer_config, "kv-transfer-config")
        flags = profile_text.parse_object(draft.flags, "flags")
        environment = profile_text.parse_object(draft.environment, "environment")
        findings = [
            *_after_parse(config, profile_text.check_transfer_config(config.value, check_extra_config)),
            *_after_parse(flags, profile_text.check_flags(flags.value)),
            *_after_parse(environment, profile_text.check_environment(environment.value)),
        ]
        return Checked(config.value, flags.value, environment.value, tuple(findings))

    async def save(self, name: str, draft: Draft, author: str, comment: str = "") -> VersionView:
        """Save `draft` as the next version of `name`. Raises InvalidInput with the first error."""
        _check_name(name)
        checked = self.validate(draft)
        for finding in checked.findings:
            if finding.severity == "error":
                raise InvalidInput(finding.message, path=finding.path, code="invalid_profile")
        async with self._database.begin() as session:
            profile, version = await queries.add_version(
                session,
                name,
                now=time.time(),
                author=author,
                comment=comment.strip(),
                kv_transfer_config=checked.kv_transfer_config,
                flags=checked.flags,
                environment=checked.environment,
            )
        view = _view(profile, version, {})
        self._events.publish(Event("profile", name, {"version": view.number}))
        return view

    async def compare(self, name: str, old: int, new: int) -> Sequence[Change]:
        """Fields that differ between two versions of a profile. Raises NotFound."""
        before, after = await self.version(name, old), await self.version(name, new)
        return profile_text.changes(before.content, after.content)


def _after_parse(parsed: ParsedText, checked: list[Finding]) -> tuple[Finding, ...]:
    """A text that could not be read has its syntax finding alone."""
    return (*parsed.findings, *checked) if parsed.is_valid else parsed.findings


def _check_name(name: str) -> None:
    if not name or len(name) > NAME_LIMIT or not all(c.isalnum() or c in "-_." for c in name):
        raise InvalidInput(
            f"Name the profile with letters, digits, '-', '_' and '.', at most {NAME_LIMIT} of them.", path="name"
        )


def _view(profile: ProfileRow, version: ProfileVersionRow, running: Mapping[int, tuple[str, ...]]) -> VersionView:
    return _view_named(profile.name, version, running)


def _view_named(name: str, row: ProfileVersionRow, running: Mapping[int, tuple[str, ...]]) -> VersionView:
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
    )


def _summary(name: str, versions: list[VersionView]) -> ProfileSummary:
    runs_on = tuple((engine, version.number) for version in versions for engine in version.runs_on)
    return ProfileSummary(name, versions[0], len(versions), runs_on)
