"""What a running rollout reads and writes in the database."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import cast

from app.rollouts.decide import Do, End, EndState
from app.rollouts.said import Said, as_json, said_of, say
from app.rollouts.steps import STEP_WORDS, Rollout, Step, StepFact, StepState, Turn, Way, Wish
from app.rollouts.strategy import Strategy
from app.store.database import Database
from app.store.models import RolloutRow, RolloutStepRow
from app.store.queries import profiles
from app.store.queries import rollouts as queries
from app.store.queries.rollouts import TurnRows

END_WORDS: dict[EndState, str] = {
    "done": "It ended: done.",
    "rolled_back": "It ended: rolled back.",
    "cancelled": "It ended: cancelled.",
    "failed": "It ended: failed.",
}


@dataclass(frozen=True)
class Runs:
    """What an engine's process was started with; None without one. `marker` is the secret of that start."""

    version_id: int | None
    marker: str


class RolloutRecords:
    """The rows of one rollout."""

    def __init__(self, database: Database, rollout_id: int) -> None:
        self.id = rollout_id
        self._database = database
        self._turn_ids: dict[str, int] = {}
        self._turns: dict[str, Turn] = {}

    async def load(self) -> Rollout:
        """The rollout as it stands. Raises NotFound."""
        async with self._database.session() as session:
            row = await queries.get(session, self.id)
            turns = await queries.turns_of(session, self.id)
        self._turn_ids = {one.engine.name: one.turn.id for one in turns}
        rollout = rollout_of(row, turns)
        self._turns = {turn.engine: turn for turn in rollout.turns}
        return rollout

    async def row(self) -> RolloutRow:
        """Its own row. Raises NotFound."""
        async with self._database.session() as session:
            return await queries.get(session, self.id)

    async def runs(self, engine: str) -> Runs:
        """What an engine runs now."""
        async with self._database.session() as session:
            found = await queries.engine(session, engine)
        return Runs(found.running_version_id, found.marker or "") if found is not None else Runs(None, "")

    async def successor(self, engine: str) -> str:
        """Who was to take its place; empty if nobody yet."""
        return next(turn.successor for turn in (await self.load()).turns if turn.engine == engine)

    def turn_id(self, engine: str) -> int:
        """The row of its turn."""
        return self._turn_ids[engine]

    async def label(self, version_id: int | None) -> str:
        """`profile v3`."""
        async with self._database.session() as session:
            found = await profiles.version_with_profile(session, version_id) if version_id is not None else None
        return f"{found[0].name} v{found[1].number}" if found is not None else "nothing"

    async def begin(self, do: Do) -> None:
        """Written before the step is taken."""
        now = time.time()
        async with self._database.begin() as session:
            is_new = await queries.begin_step(session, self._turn_ids[do.engine], do.way, do.step, now)
            await queries.set_step(session, self.id, _line(do, self._turns[do.engine]))
            said = say("%(step)s begins.", step=_named(do))
            if not is_new:
                said = say("%(step)s begins again, as the deck was started anew.", step=_named(do))
            await queries.add_log(session, self.id, now, do.engine, as_json(said))

    async def end_step(self, do: Do, state: StepState, said: Said) -> None:
        """What came of it."""
        now = time.time()
        async with self._database.begin() as session:
            await queries.end_step(session, self._turn_ids[do.engine], do.way, do.step, state, as_json(said), now)
            told = say("%(step)s ended: %(said)s", step=_named(do), said=said)
            if state is StepState.FAILED:
                told = say("%(step)s failed: %(said)s", step=_named(do), said=said)
            await queries.add_log(session, self.id, now, do.engine, as_json(told))

    async def note(self, said: Said, engine: str = "") -> None:
        """A line of the log."""
        async with self._database.begin() as session:
            await queries.add_log(session, self.id, time.time(), engine, as_json(said))

    async def finish(self, end: End, reason: list[Said]) -> None:
        """How it ended, and why."""
        now, text = time.time(), " ".join(one.text for one in reason if one.sentence)
        async with self._database.begin() as session:
            row = await queries.get(session, self.id)
            said = {**row.said, "reason": [as_json(one) for one in reason if one.sentence]}
            await queries.finish(session, self.id, end.state, text, said, now)
            told = say(END_WORDS[end.state])
            for one in (told, *reason):
                if one.sentence:
                    await queries.add_log(session, self.id, now, "", as_json(one))


def rollout_of(row: RolloutRow, turns: list[TurnRows]) -> Rollout:
    """The rows as facts."""
    return Rollout(
        strategy=cast(Strategy, row.strategy),
        wish=Wish(row.wish),
        turns=tuple(turn_of(one, row) for one in turns),
    )


def turn_of(rows: TurnRows, row: RolloutRow) -> Turn:
    """An engine's part as facts."""
    return Turn(
        engine=rows.engine.name,
        before=rows.turn.before_id,
        after=row.version_id,
        stopped_on_purpose=rows.turn.stopped_on_purpose,
        steps=tuple(_fact(step) for step in rows.steps),
        beside=row.strategy == "blue_green",
        successor=rows.turn.successor,
    )


def _fact(row: RolloutStepRow) -> StepFact:
    return StepFact(Way(row.way), Step(row.step), StepState(row.state), row.started_at, row.ended_at, said_of(row.said))


def _named(do: Do) -> Said:
    step = say(STEP_WORDS[do.step])
    return step if do.way is Way.FORWARD else say("back: %(step)s", step=step)


def _line(do: Do, turn: Turn) -> str:
    return f"{turn.acted_on(do.way, do.step)}: {_named(do).text}"
