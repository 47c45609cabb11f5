"""Rollouts."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import select, update
from sqlalchemy.ext.asyncio import AsyncSession

from app.errors import NotFound
from app.store.models import EngineRow, FleetRow, MarkRow, RolloutRow


async def newest_ids(session: AsyncSession, limit: int) -> Sequence[int]:
    """Ids of the newest rollouts, newest first."""
    return (await session.scalars(select(RolloutRow.id).order_by(RolloutRow.id.desc()).limit(limit))).all()


async def running(session: AsyncSession) -> Sequence[RolloutRow]:
    """Rollouts that have not ended."""
    return (await session.scalars(select(RolloutRow).where(RolloutRow.state == "running"))).all()


async def running_on(session: AsyncSession, fleet_id: int) -> RolloutRow | None:
    """The rollout that runs on a fleet, if one does."""
    row: RolloutRow | None = await session.scalar(
        select(RolloutRow).where(RolloutRow.state == "running", RolloutRow.fleet_id == fleet_id)
    )
    return row


async def fleet_name(session: AsyncSession, fleet_id: int) -> str:
    """Name of a fleet. Raises NotFound."""
    row = await session.get(FleetRow, fleet_id)
    if row is None:
        raise NotFound(f"There is no fleet with id {fleet_id}.", path="fleet")
    return row.name


async def add(
    session: AsyncSession, *, fleet_id: int, version_id: int, strategy: str, author: str, now: float
) -> RolloutRow:
    """Add a running rollout, remembering what the fleet ran before, and mark it for the charts."""
    before = await session.scalar(
        select(EngineRow.profile_version_id).where(EngineRow.fleet_id == fleet_id).order_by(EngineRow.name).limit(1)
    )
    row = RolloutRow(
        fleet_id=fleet_id,
        version_id=version_id,
        previous_version_id=before,
        strategy=strategy,
        state="running",
        author=author,
        started_at=now,
    )
    session.add_all([row, MarkRow(engine_id=None, at=now, kind="rollout", text=f"Rollout started by {author}")])
    await session.flush()
    return row


async def set_step(session: AsyncSession, rollout_id: int, step: str) -> None:
    """Record what is about to be done."""
    await session.execute(update(RolloutRow).where(RolloutRow.id == rollout_id).values(step=step))


async def finish(session: AsyncSession, rollout_id: int, state: str, reason: str, now: float) -> None:
    """Record how a rollout ended."""
    await session.execute(
        update(RolloutRow).where(RolloutRow.id == rollout_id).values(state=state, reason=reason, ended_at=now)
    )
