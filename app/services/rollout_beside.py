"""Steps of a rollout that starts new engines beside the old ones, and has them take their places."""

from __future__ import annotations

from dataclasses import replace

from app.errors import NotFound
from app.rollouts.decide import EndState
from app.rollouts.holds import Hold
from app.rollouts.said import say
from app.rollouts.steps import Step, StepState, Turn, Way
from app.services.fleets import Fleets
from app.services.rollout_records import RolloutRecords
from app.services.rollout_work import Outcome, StepFailed, StepWork, Tools, skipped
from app.supervisor.states import EngineState


class BesideWork(StepWork):
    """The old engine of a turn stays, stopped, until the rollout has ended: till then it can be gone back to."""

    def __init__(self, records: RolloutRecords, tools: Tools, drain_seconds: float, fleets: Fleets) -> None:
        super().__init__(records, tools, drain_seconds)
        self._fleets = fleets

    async def hold(self, turn: Turn) -> None:
        """The new one until it is tested; once it has taken over, the old one, unless that is to come back."""
        has_taken_over = turn.is_over(Way.FORWARD, Step.RELEASE)
        held = turn.engine if has_taken_over else turn.successor
        if held in self._staying() and not (has_taken_over and turn.called_off):
            await self._hold(held, turn)

    async def close(self, turns: tuple[Turn, ...], state: EndState) -> None:
        """Take the old engines out of service where new ones have their places. Their host memory is given back."""
        if state == "failed":
            return
        for turn in turns:
            if turn.arrived and turn.successor and turn.engine in self._staying():
                fleet = self._engines.status(turn.engine).fleet
                await self._fleets.remove_engine(fleet, turn.engine, rollout_id=self._records.id)

    async def _start(self, turn: Turn, way: Way) -> Outcome:
        if way is Way.BACK or turn.stopped_on_purpose:
            return await super()._start(turn, way)
        name = turn.successor
        if name and name not in self._staying():  # written, and the database was away before it was taken up
            await self._engines.load()
        if name not in self._staying():
            name = await self._add(turn)
        self._engines.hold(name, Hold.TESTS % {"id": self._records.id, "engine": name})
        return await super()._start(replace(turn, engine=name), way)

    async def _add(self, turn: Turn) -> str:
        fleet, turn_id = self._engines.status(turn.engine).fleet, self._records.turn_id(turn.engine)
        added = await self._fleets.add_engine(
            fleet, version_id=turn.after, rollout_id=self._records.id, turn_id=turn_id
        )
        return added.name

    async def _ready(self, turn: Turn, way: Way) -> Outcome:
        return await super()._ready(await self._acted_on(turn, way), way)

    async def _canary(self, turn: Turn, way: Way) -> Outcome:
        return await super()._canary(await self._acted_on(turn, way), way)

    async def _release(self, turn: Turn, way: Way) -> Outcome:
        return await super()._release(await self._acted_on(turn, way), way)

    async def _drain(self, turn: Turn, way: Way) -> Outcome:
        leaving = await self._leaving(turn, way)
        if turn.stopped_on_purpose or leaving is None:
            return self._nothing_to_end(turn)
        return await super()._drain(leaving, way)

    async def _stop(self, turn: Turn, way: Way) -> Outcome:
        leaving = await self._leaving(turn, way)
        if turn.stopped_on_purpose or leaving is None:
            return self._nothing_to_end(turn)
        if way is Way.FORWARD:
            return await super()._stop(leaving, way)
        fleet = self._engines.status(leaving.engine).fleet
        await self._fleets.remove_engine(fleet, leaving.engine, rollout_id=self._records.id)
        await self._until_gone(leaving.engine)
        return Outcome(say("%(engine)s is out of service again.", engine=leaving.engine))

    async def _acted_on(self, turn: Turn, way: Way) -> Turn:
        """The new engine on the way forward, the old one on the way back."""
        if way is Way.BACK or turn.stopped_on_purpose:
            return turn
        if not (name := await self._records.successor(turn.engine)):
            raise StepFailed(say("The new engine is not there any more."))
        return replace(turn, engine=name)

    async def _leaving(self, turn: Turn, way: Way) -> Turn | None:
        """The other one of the two; None where it was never made, or is gone."""
        if way is Way.FORWARD:
            return turn
        name = await self._records.successor(turn.engine)
        return replace(turn, engine=name) if name in self._staying() else None

    async def _until_gone(self, engine: str) -> None:
        try:
            await self._until(engine, lambda one: one.state is EngineState.STOPPED)
        except NotFound:  # it is not even supervised any more
            return

    def _staying(self) -> set[str]:
        return {one.name for one in self._engines.statuses() if not one.leaving}

    def _is_left_alone(self, turn: Turn, _: Way) -> bool:
        return turn.stopped_on_purpose

    def _nothing_to_end(self, turn: Turn) -> Outcome:
        if turn.stopped_on_purpose:
            return skipped(turn)
        return Outcome(say("No new engine was made."), StepState.SKIPPED)
