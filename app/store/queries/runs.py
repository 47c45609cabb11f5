"""Which version each start of an engine used, and from when to when."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import select, update
from sqlalchemy.ext.asyncio import AsyncSession

from app.store.models import EngineRow, FleetRow, ProfileRow, ProfileVersionRow, RunRow


@dataclass(frozen=True)
class RunOf:
    """A run with the names that it is told by."""

    run: RunRow
    engine: str
    fleet: str
    number: int


async def begin(session: AsyncSession, engine_id: int, version_id: int, marker: str, now: float) -> None:
    """Note a start; whatever of this engine was still open has ended by then."""
    await end(session, engine_id, now)
    session.add(RunRow(engine_id=engine_id, version_id=version_id, marker=marker, started_at=now, ended_at=None))
    await session.flush()


async def end(session: AsyncSession, engine_id: int, now: float) -> None:
    """Note the end of the run that is open."""
    open_runs = update(RunRow).where(RunRow.engine_id == engine_id, RunRow.ended_at.is_(None))
    await session.execute(open_runs.values(ended_at=now))


async def of_profile(session: AsyncSession, name: str, limit: int) -> Sequence[RunOf]:
    """The runs of every version of a profile, newest first."""
    rows = await session.execute(
        select(RunRow, EngineRow.name, FleetRow.name, ProfileVersionRow.number)
        .join(EngineRow, EngineRow.id == RunRow.engine_id)
        .join(FleetRow, FleetRow.id == EngineRow.fleet_id)
        .join(ProfileVersionRow, ProfileVersionRow.id == RunRow.version_id)
        .join(ProfileRow, ProfileRow.id == ProfileVersionRow.profile_id)
        .where(ProfileRow.name == name)
        .order_by(RunRow.started_at.desc())
        .limit(limit)
    )
    return [RunOf(run, engine, fleet, number) for run, engine, fleet, number in rows]
