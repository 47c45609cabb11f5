"""Engines, what they were started as, and how their states changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Row, Select, or_, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from app.store.models import EngineRow, FleetRow, MarkRow, ProfileRow, ProfileVersionRow, TransitionRow


@dataclass(frozen=True)
class EngineDefinition:
    """An engine with its fleet and the profile version that its next start uses."""

    engine: EngineRow
    fleet: FleetRow
    profile: ProfileRow
    version: ProfileVersionRow


def _definitions() -> Select[EngineRow, FleetRow, ProfileRow, ProfileVersionRow]:
    return (
        select(EngineRow, FleetRow, ProfileRow, ProfileVersionRow)
        .join(FleetRow, FleetRow.id == EngineRow.fleet_id)
        .join(ProfileVersionRow, ProfileVersionRow.id == EngineRow.profile_version_id)
        .join(ProfileRow, ProfileRow.id == ProfileVersionRow.profile_id)
        .order_by(EngineRow.name)
    )


def _definition(row: Row[EngineRow, FleetRow, ProfileRow, ProfileVersionRow]) -> EngineDefinition:
    return EngineDefinition(row[0], row[1], row[2], row[3])


async def all_definitions(session: AsyncSession) -> list[EngineDefinition]:
    """Every engine in service, by name."""
    in_service = _definitions().where(EngineRow.retired_at.is_(None))
    return [_definition(row) for row in await session.execute(in_service)]


async def supervised(session: AsyncSession) -> list[EngineDefinition]:
    """Every engine in service, and those out of it that may still have a process; by name."""
    wanted = or_(EngineRow.retired_at.is_(None), EngineRow.marker.is_not(None))
    return [_definition(row) for row in await session.execute(_definitions().where(wanted))]


async def definition(session: AsyncSession, engine_id: int) -> EngineDefinition:
    """One engine, in service or not; raises NoResultFound."""
    return _definition((await session.execute(_definitions().where(EngineRow.id == engine_id))).one())


async def version_number(session: AsyncSession, version_id: int | None) -> int | None:
    """The number of a profile version."""
    number: int | None = await session.scalar(
        select(ProfileVersionRow.number).where(ProfileVersionRow.id == version_id)
    )
    return number


async def change(session: AsyncSession, engine_id: int, **values: Any) -> None:
    """Set columns of one engine."""
    await session.execute(update(EngineRow).where(EngineRow.id == engine_id).values(**values))


async def add_transition(session: AsyncSession, engine_id: int, **values: Any) -> None:
    """Record a change of state: at, old_state, new_state, cause, evidence."""
    session.add(TransitionRow(engine_id=engine_id, **values))


async def add_mark(session: AsyncSession, engine_id: int, at: float, kind: str, text: str) -> None:
    """Something to be drawn on the charts."""
    session.add(MarkRow(engine_id=engine_id, at=at, kind=kind, text=text))


async def newest_transitions(session: AsyncSession, engine_id: int, limit: int) -> Sequence[TransitionRow]:
    """The last changes of state, newest first."""
    rows = await session.scalars(
        select(TransitionRow).where(TransitionRow.engine_id == engine_id).order_by(TransitionRow.id.desc()).limit(limit)
    )
    return rows.all()
