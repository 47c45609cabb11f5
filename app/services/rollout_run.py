"""The one task that owns a running rollout: it writes each step before it takes it, and asks `decide` what follows."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeVar

import structlog
from sqlalchemy.exc import SQLAlchemyError

from app.errors import TierdeckError, in_short
from app.rollouts.decide import Decision, Do, End, decide
from app.rollouts.said import NOTHING, Said, say
from app.rollouts.steps import Rollout, Step, StepState, Turn, Way, Wish
from app.services.engines import Engines
from app.services.rollout_records import RolloutRecords
from app.services.rollout_work import StepFailed, StepWork

log = structlog.get_logger(__name__)

T = TypeVar("T")
AGAIN_SECONDS = 5.0


class RolloutRun:
    """Sees one rollout through: `open`, then `run` until it ends or is cancelled. `tell` is called after a change."""

    def __init__(
        self, records: RolloutRecords, work: StepWork, engines: Engines, tell: Callable[[], Awaitable[None]]
    ) -> None:
        self._records = records
        self._work = work
        self._engines = engines
        self._tell = tell
        self._tasks: dict[Do, asyncio.Task[None]] = {}
        self._woken = asyncio.Event()
        self._told = NOTHING
        self._was_away = False

    def wake(self) -> None:
        """Something was asked of it."""
        self._woken.set()

    async def open(self) -> None:
        """Hold the engines that were being worked on when the last deck ended."""
        for turn in (await self._records.load()).turns:
            if _is_in_work(turn):
                await self._work.hold(turn)

    async def run(self) -> None:
        """Until it has ended. Cancelled, it stays as it is, for the next deck."""
        try:
            await self._outlast(self.open)
            while not await self._outlast(self._advance):
                pass
        finally:
            await self._leave()

    async def give_up(self, said: Said) -> None:
        """End it as failed, whatever it was doing; its engines take requests again."""
        rollout = await self._outlast(self._records.load)
        await self._outlast(partial(self._end, rollout, End("failed", said)))

    async def _outlast(self, act: Callable[[], Awaitable[T]]) -> T:
        """Do it; while the database is away, again and again. What waits for a step or an engine goes on meanwhile."""
        while True:
            try:
                return await act()
            except SQLAlchemyError as error:
                log.warning("a rollout waits for the database", rollout=self._records.id, why=in_short(error))
                self._was_away = True
                await asyncio.sleep(AGAIN_SECONDS)

    async def _advance(self) -> bool:
        """Do what follows and wait for what comes of it; True when the rollout has ended."""
        self._woken.clear()
        # Watched from before the look, so that no change between look and wait is missed.
        change = asyncio.ensure_future(self._engines.changed())
        try:
            rollout = await self._records.load()
            if self._was_away:
                await self._records.note(say("The database did not answer for a while; the rollout went on."))
                self._was_away = False
            for task in self._tasks.values():
                if task.done():  # it ends with its step written, or it has failed
                    task.result()
            decision = decide(rollout, self._serving(rollout))
            if await self._call_off(decision):
                return False
            if decision.end is not None:
                await self._end(rollout, decision.end)
                return True
            await self._begin(decision)
            await self._await_change(change if not decision.work else None)
            return False
        finally:
            change.cancel()

    async def _begin(self, decision: Decision) -> None:
        for do in decision.work:
            if do not in self._tasks:
                await self._records.begin(do)
                self._tasks[do] = asyncio.create_task(self._take(do), name=f"{do.step}-{do.engine}")
        if decision.waits_for != self._told:
            if decision.waits_for.sentence:
                await self._records.note(decision.waits_for)
            self._told = decision.waits_for
        await self._tell()

    async def _await_change(self, change: asyncio.Future[None] | None) -> None:
        """The end of a step or a wish; an engine's state too, where nothing can be done without another one."""
        woken = asyncio.ensure_future(self._woken.wait())
        waits: list[asyncio.Future[Any]] = [woken] if change is None else [woken, change]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            woken.cancel()

    async def _take(self, do: Do) -> None:
        try:
            state, said = await self._outlast(partial(self._outcome, do))
            await self._outlast(partial(self._records.end_step, do, state, said))
            self._tasks.pop(do, None)
        finally:
            self.wake()

    async def _outcome(self, do: Do) -> tuple[StepState, Said]:
        """A step that the database comes in the way of is taken again. Raises SQLAlchemyError."""
        try:
            turn = next(one for one in (await self._records.load()).turns if one.engine == do.engine)
            outcome = await self._work.take(turn, do)
        except SQLAlchemyError:
            raise
        except StepFailed as error:
            return StepState.FAILED, error.said
        except TierdeckError as error:
            return StepState.FAILED, say(error.message)
        except Exception as error:  # the task's edge: whatever went wrong is the step's end
            log.exception("a step of a rollout failed", rollout=self._records.id, engine=do.engine, step=do.step)
            return StepState.FAILED, say("The deck could not go on: %(error)s", error=in_short(error))
        return outcome.state, outcome.said

    async def _call_off(self, decision: Decision) -> bool:
        """End the steps that should not go on; True when there were any."""
        unwanted = [do for do in self._tasks if do not in decision.work]
        for do in unwanted:
            task = self._tasks.pop(do, None)
            if task is None:
                continue
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            if task.cancelled():
                await self._outlast(partial(self._records.end_step, do, StepState.SKIPPED, say("Called off.")))
        return bool(unwanted)

    async def _end(self, rollout: Rollout, end: End) -> None:
        await self._work.close(rollout.turns, end.state)
        for engine in _engines_of(rollout) & {one.name for one in self._engines.statuses()}:
            self._engines.release(engine)
        row = await self._records.row()
        asked = NOTHING
        if end.state == "cancelled":
            asked = say("Cancelled by %(who)s.", who=row.wish_by)
        elif end.state == "rolled_back" and rollout.wish is Wish.ROLLBACK:
            asked = say("Rolled back by %(who)s.", who=row.wish_by)
        await self._records.finish(end, [end.reason, asked, await self._who_runs_what(rollout, end)])
        await self._tell()

    async def _who_runs_what(self, rollout: Rollout, end: End) -> Said:
        """Told whenever it is not simply the version that was asked for."""
        if end.state == "done":
            return NOTHING
        present = _engines_of(rollout) & {one.name for one in self._engines.statuses() if not one.leaving}
        runs = [(engine, await self._records.runs(engine)) for engine in sorted(present)]
        if end.state == "rolled_back" and len({one.version_id for _, one in runs}) == 1:
            return NOTHING
        parts = [f"{engine}: {await self._records.label(one.version_id)}" for engine, one in runs]
        return say("What runs now: %(engines)s.", engines=", ".join(parts))

    def _serving(self, rollout: Rollout) -> set[str]:
        own = _engines_of(rollout)
        fleets = {one.fleet for one in self._engines.statuses() if one.name in own}
        return {one.name for one in self._engines.statuses() if one.fleet in fleets and one.serves}

    async def _leave(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)


def _engines_of(rollout: Rollout) -> set[str]:
    return {name for turn in rollout.turns for name in (turn.engine, turn.successor) if name}


def _is_in_work(turn: Turn) -> bool:
    first = Step.START if turn.beside else Step.DRAIN
    drained = turn.fact(Way.FORWARD, first).state is not StepState.WAITING
    return drained and not turn.arrived and not (turn.called_off and turn.returned)
