"""Profiles and their versions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncSession

from app.errors import NotFound
from app.store.models import EngineRow, ProfileRow, ProfileVersionRow, ValidationRow


async def all_versions(session: AsyncSession) -> Sequence[tuple[ProfileRow, ProfileVersionRow]]:
    """Every version with its profile, by profile name, newest first."""
    rows = await session.execute(
        select(ProfileRow, ProfileVersionRow)
        .join(ProfileVersionRow, ProfileVersionRow.profile_id == ProfileRow.id)
        .order_by(ProfileRow.name, ProfileVersionRow.number.desc())
    )
    return [(profile, version) for profile, version in rows]


async def versions_of(session: AsyncSession, name: str) -> Sequence[ProfileVersionRow]:
    """The versions of one profile, newest first; empty when there is no such profile."""
    rows = await session.scalars(
        select(ProfileVersionRow)
        .join(ProfileRow, ProfileRow.id == ProfileVersionRow.profile_id)
        .where(ProfileRow.name == name)
        .order_by(ProfileVersionRow.number.desc())
    )
    return rows.all()


async def version_with_profile(session: AsyncSession, version_id: int) -> tuple[ProfileRow, ProfileVersionRow] | None:
    """One version and its profile."""
    row = (
        await session.execute(
            select(ProfileRow, ProfileVersionRow)
            .join(ProfileVersionRow, ProfileVersionRow.profile_id == ProfileRow.id)
            .where(ProfileVersionRow.id == version_id)
        )
    ).one_or_none()
    return None if row is None else (row[0], row[1])


async def known_version(session: AsyncSession, version_id: int) -> tuple[ProfileRow, ProfileVersionRow]:
    """One version and its profile. Raises NotFound."""
    found = await version_with_profile(session, version_id)
    if found is None:
        values = {"id": version_id}
        raise NotFound("There is no profile version with id %(id)s.", path="version_id", values=values)
    return found


async def add_version(
    session: AsyncSession, name: str, *, now: float, **content: Any
) -> tuple[ProfileRow, ProfileVersionRow]:
    """Add the next version of `name`, making the profile if it is new.

    `content`: author, comment, kv_transfer_config, flags, environment, allow.
    """
    profile = await session.scalar(select(ProfileRow).where(ProfileRow.name == name))
    if profile is None:
        profile = ProfileRow(name=name, created_at=now)
        session.add(profile)
        await session.flush()
    highest = await session.scalar(
        select(func.max(ProfileVersionRow.number)).where(ProfileVersionRow.profile_id == profile.id)
    )
    version = ProfileVersionRow(profile_id=profile.id, number=(highest or 0) + 1, created_at=now, **content)
    session.add(version)
    await session.flush()
    return profile, version


async def engines_by_running_version(session: AsyncSession) -> dict[int, tuple[str, ...]]:
    """Version id -> names of the engines whose process was started with it."""
    rows = await session.execute(
        select(EngineRow.running_version_id, EngineRow.name)
        .where(EngineRow.running_version_id.is_not(None), EngineRow.pid.is_not(None))
        .order_by(EngineRow.name)
    )
    found: dict[int, list[str]] = {}
    for version_id, name in rows:
        if version_id is not None:
            found.setdefault(version_id, []).append(name)
    return {version_id: tuple(names) for version_id, names in found.items()}


async def add_validation(session: AsyncSession, **content: Any) -> None:
    """Note what a version was checked against; `content` are the columns of ValidationRow."""
    session.add(ValidationRow(**content))
    await session.flush()


async def newest_validations(
    session: AsyncSession, version_ids: Sequence[int] | None = None
) -> dict[int, list[ValidationRow]]:
    """Version id -> the newest validation of each depth, deepest first."""
    newest = select(func.max(ValidationRow.id)).group_by(ValidationRow.version_id, ValidationRow.depth)
    query = select(ValidationRow).where(ValidationRow.id.in_(newest)).order_by(ValidationRow.depth.desc())
    if version_ids is not None:
        query = query.where(ValidationRow.version_id.in_(version_ids))
    found: dict[int, list[ValidationRow]] = {}
    for row in await session.scalars(query):
        found.setdefault(row.version_id, []).append(row)
    return found
