"""Rollouts, the turns of their engines, the steps of these, and their logs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import select, update
from sqlalchemy.ext.asyncio import AsyncSession

from app.errors import NotFound
from app.store.models import (
    EngineRow,
    FleetRow,
    MarkRow,
    RolloutLogRow,
    RolloutRow,
    RolloutStepRow,
    RolloutTurnRow,
)


@dataclass(frozen=True)
class NewTurn:
    """An engine that a rollout is to take."""

    engine_id: int
    before_id: int
    stopped_on_purpose: bool


@dataclass(frozen=True)
class TurnRows:
    """A turn with its engine, and the steps that were begun."""

    turn: RolloutTurnRow
    engine: EngineRow
    steps: Sequence[RolloutStepRow]


async def newest_ids(session: AsyncSession, limit: int, fleet_id: int | None = None) -> Sequence[int]:
    """Ids of the newest rollouts, newest first; of one fleet if it is given."""
    asked = select(RolloutRow.id).order_by(RolloutRow.id.desc()).limit(limit)
    if fleet_id is not None:
        asked = asked.where(RolloutRow.fleet_id == fleet_id)
    return (await session.scalars(asked)).all()


async def running(session: AsyncSession) -> Sequence[RolloutRow]:
    """Rollouts that have not ended."""
    return (await session.scalars(select(RolloutRow).where(RolloutRow.state == "running"))).all()


async def running_on(session: AsyncSession, fleet_id: int) -> RolloutRow | None:
    """The rollout that runs on a fleet, if one does."""
    row: RolloutRow | None = await session.scalar(
        select(RolloutRow).where(RolloutRow.state == "running", RolloutRow.fleet_id == fleet_id)
    )
    return row


async def newest_on(session: AsyncSession, fleet_id: int) -> int | None:
    """Id of the last rollout of a fleet."""
    query = select(RolloutRow.id).where(RolloutRow.fleet_id == fleet_id).order_by(RolloutRow.id.desc()).limit(1)
    found: int | None = await session.scalar(query)
    return found


async def get(session: AsyncSession, rollout_id: int) -> RolloutRow:
    """One rollout. Raises NotFound."""
    row = await session.get(RolloutRow, rollout_id)
    if row is None:
        raise NotFound(f"There is no rollout {rollout_id}.", path="id")
    return row


async def fleet_name(session: AsyncSession, fleet_id: int) -> str:
    """Name of a fleet. Raises NotFound."""
    row = await session.get(FleetRow, fleet_id)
    if row is None:
        raise NotFound(f"There is no fleet with id {fleet_id}.", path="fleet")
    return row.name


async def add(session: AsyncSession, turns: Sequence[NewTurn], now: float, **content: Any) -> RolloutRow:
    """Add a running rollout with its turns, in order, and mark it for the charts.

    `content`: fleet_id, version_id, strategy, author, drain_timeout_seconds, said.
    """
    before = turns[0].before_id if turns else None
    row = RolloutRow(state="running", previous_version_id=before, started_at=now, **content)
    session.add_all([row, MarkRow(engine_id=None, at=now, kind="rollout", text=f"Rollout started by {row.author}")])
    await session.flush()
    await add_turns(session, row.id, turns)
    return row


async def add_turns(session: AsyncSession, rollout_id: int, turns: Sequence[NewTurn]) -> None:
    """The engines that a rollout takes, in order."""
    session.add_all(
        RolloutTurnRow(
            rollout_id=rollout_id,
            engine_id=one.engine_id,
            position=position,
            before_id=one.before_id,
            stopped_on_purpose=one.stopped_on_purpose,
        )
        for position, one in enumerate(turns)
    )
    await session.flush()


async def turns_of(session: AsyncSession, rollout_id: int) -> list[TurnRows]:
    """The turns of a rollout, in order."""
    found = await session.execute(
        select(RolloutTurnRow, EngineRow)
        .join(EngineRow, EngineRow.id == RolloutTurnRow.engine_id)
        .where(RolloutTurnRow.rollout_id == rollout_id)
        .order_by(RolloutTurnRow.position)
    )
    turns = [(turn, engine) for turn, engine in found]
    ids = [turn.id for turn, _ in turns]
    steps = (await session.scalars(select(RolloutStepRow).where(RolloutStepRow.turn_id.in_(ids)))).all()
    return [TurnRows(turn, engine, [step for step in steps if step.turn_id == turn.id]) for turn, engine in turns]


async def engine(session: AsyncSession, name: str) -> EngineRow | None:
    """An engine by its name."""
    row: EngineRow | None = await session.scalar(select(EngineRow).where(EngineRow.name == name))
    return row


async def set_successor(session: AsyncSession, turn_id: int, name: str) -> None:
    """Note which engine is to take the place of a turn's."""
    await session.execute(update(RolloutTurnRow).where(RolloutTurnRow.id == turn_id).values(successor=name))


async def begin_step(session: AsyncSession, turn_id: int, way: str, step: str, now: float) -> bool:
    """Note that a step is about to be taken; False when it was in work already, for a deck that ended."""
    row = await _step(session, turn_id, way, step)
    if row is not None:
        return False
    session.add(RolloutStepRow(turn_id=turn_id, way=way, step=step, state="working", started_at=now))
    await session.flush()
    return True


async def end_step(
    session: AsyncSession, turn_id: int, way: str, step: str, state: str, said: dict[str, Any], now: float
) -> None:
    """Note what came of a step."""
    await session.execute(
        update(RolloutStepRow)
        .where(RolloutStepRow.turn_id == turn_id, RolloutStepRow.way == way, RolloutStepRow.step == step)
        .values(state=state, said=said, ended_at=now)
    )


async def set_step(session: AsyncSession, rollout_id: int, step: str) -> None:
    """What is being done, in one line."""
    await session.execute(update(RolloutRow).where(RolloutRow.id == rollout_id).values(step=step))


async def set_wish(session: AsyncSession, rollout_id: int, wish: str, by: str) -> None:
    """What the operator asks of a rollout; one that has ended goes on."""
    values = {"wish": wish, "wish_by": by, "state": "running", "ended_at": None, "reason": ""}
    await session.execute(update(RolloutRow).where(RolloutRow.id == rollout_id).values(**values))


async def finish(
    session: AsyncSession, rollout_id: int, state: str, reason: str, said: dict[str, Any], now: float
) -> None:
    """Record how a rollout ended."""
    values = {"state": state, "reason": reason, "said": said, "ended_at": now, "step": ""}
    await session.execute(update(RolloutRow).where(RolloutRow.id == rollout_id).values(**values))


async def add_log(session: AsyncSession, rollout_id: int, at: float, engine: str, said: dict[str, Any]) -> None:
    """A line of the log."""
    session.add(RolloutLogRow(rollout_id=rollout_id, at=at, engine=engine, said=said))


async def log_of(session: AsyncSession, rollout_id: int, limit: int) -> Sequence[RolloutLogRow]:
    """The last lines of a rollout's log, oldest first."""
    query = select(RolloutLogRow).where(RolloutLogRow.rollout_id == rollout_id).order_by(RolloutLogRow.id.desc())
    return (await session.scalars(query.limit(limit))).all()[::-1]


async def _step(session: AsyncSession, turn_id: int, way: str, step: str) -> RolloutStepRow | None:
    row: RolloutStepRow | None = await session.scalar(
        select(RolloutStepRow).where(
            RolloutStepRow.turn_id == turn_id, RolloutStepRow.way == way, RolloutStepRow.step == step
        )
    )
    return row
