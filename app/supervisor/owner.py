"""The one task that owns an engine: it alone moves the state, and everything that acts works for it.

What happens comes in through the inbox, `decide` says what follows, and each state has one activity
(a task) that does what the state stands for. A change of state cancels the activity of the old one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import structlog
from sqlalchemy.exc import SQLAlchemyError

from app.config import Settings
from app.errors import TierdeckError
from app.supervisor import phases
from app.supervisor.backoff import RetryPolicy
from app.supervisor.command import EngineSpec
from app.supervisor.decide import Found, Situation, Then, Trouble, continue_after_stop, decide, resume
from app.supervisor.faults import Fault
from app.supervisor.inbox import Envelope, Inbox
from app.supervisor.records import EngineRecords
from app.supervisor.states import EngineState, can_move
from app.supervisor.status import EngineStatus
from app.supervisor.work import EngineWork, Surroundings

log = structlog.get_logger(__name__)


class EngineOwner:
    """Supervises one engine: `open`, then `run` until cancelled, then `close`."""

    def __init__(self, spec: EngineSpec, records: EngineRecords, directory: Path, deck: Surroundings) -> None:
        self.inbox = Inbox()
        self.work = EngineWork(spec, records, directory, deck, self.inbox.report, self._tell)
        self._records = records
        self._deck = deck
        self._policy = _retry_policy(deck.settings)
        self._situation = Situation(EngineState.STOPPED, 0.0, "")
        self._activity: asyncio.Task[None] | None = None
        self._turn = object()

    @property
    def status(self) -> EngineStatus:
        """The engine now."""
        situation, run, spec = self._situation, self.work.run, self.work.spec
        phase = None
        if situation.state is EngineState.STARTING:
            phase = run.phase if run else phases.PREPARING
        return EngineStatus(
            name=spec.name,
            fleet=spec.fleet,
            model=spec.model,
            state=situation.state,
            since=situation.since,
            cause=situation.cause,
            base_url=spec.base_url,
            port=spec.port,
            pid=run.facts.process.pid if run else None,
            started_at=run.facts.started_at if run else None,
            wanted_profile=spec.profile.name,
            wanted_version=spec.profile.number,
            running_version=run.facts.version if run else None,
            phase=phase.sentence if phase else None,
            progress=phase.progress if phase else None,
            restarts=situation.restarts,
            next_try_at=situation.next_try_at,
            leftover_processes=self.work.alive,
            error_code=situation.error_code,
            wanted=situation.wanted,
        )

    async def set_version(self, version_id: int) -> None:
        """The version that the next start uses; what runs goes on."""
        await self._records.set_version(version_id)
        self.work.spec = await self._records.spec()
        self._tell()

    async def open(self) -> None:
        """Take over what the last deck left: adopt the process if it lives, else go on without it."""
        recorded = await self._records.recorded()
        found = Found(
            state=recorded.state,
            since=recorded.since,
            cause=recorded.cause,
            wanted=recorded.wanted,
            had_process=recorded.marker is not None,
            alive=await self.work.adopt(recorded),
            pid=recorded.process.pid if recorded.process else None,
        )
        self._situation = resume(time.time(), found)
        # Recorded even where the state is called the same: it is another deck's word for it.
        await self._save(recorded.state, self._situation, moved=self._situation.since != recorded.since)
        self._tell()

    async def run(self) -> None:
        """Act on what comes in, until cancelled."""
        self._begin_activity()
        while True:
            envelope = await self.inbox.next()
            if self._is_void(envelope.token):
                continue
            try:
                await self._handle(envelope)
            except TierdeckError as refusal:
                envelope.fail(refusal)
            except Exception as error:  # the owner must outlive every fault; the asker is told
                log.exception("handling a message failed", engine=self.work.spec.name, about=repr(envelope.message))
                envelope.fail(error)

    async def close(self) -> None:
        """Stop supervising; the process is left as it is."""
        await self._end_activity()
        await self.work.drop_run()

    async def _handle(self, envelope: Envelope) -> None:
        before, now = self._situation, time.time()
        chain = [decide(now, before, envelope.message, self._policy)]
        if chain[0].state is EngineState.STOPPED and chain[0].then is Then.START:
            chain.append(continue_after_stop(now, chain[0]))
        if chain[-1] != before:
            await self._enter(before, chain)
        envelope.answer(self.status)

    async def _enter(self, before: Situation, chain: list[Situation]) -> None:
        """Take on the last situation of `chain` at once; the ones before it are recorded on the way."""
        after = chain[-1]
        self._situation = after
        state_changed = after.since != before.since or after.state is not before.state
        if state_changed or (after.state is EngineState.DRAINING and after.then is not before.then):
            await self._end_activity()
        if state_changed and after.state in {EngineState.BACKOFF, EngineState.FAILED}:
            await self.work.drop_run()  # what ended is not shown as running while its remains are cleared
        self._tell()
        for old, new in zip([before, *chain], chain, strict=False):
            await self._record(old, new)
        if self._activity is None:
            self._begin_activity()

    async def _record(self, old: Situation, new: Situation) -> None:
        if old.state is not new.state:
            log.info("engine", engine=self.work.spec.name, old=old.state, new=new.state, cause=new.cause)
            if not can_move(old.state, new.state):
                log.error("a move that should not exist", engine=self.work.spec.name, old=old.state, new=new.state)
        await self._save(old.state, new, moved=new.state is not old.state)

    async def _save(self, old: EngineState, situation: Situation, *, moved: bool) -> None:
        try:
            await self._records.save(old, situation, moved=moved)
        except SQLAlchemyError:  # supervision goes on without its history; the next change writes the state again
            log.exception("the state of an engine could not be saved", engine=self.work.spec.name)

    def _is_void(self, token: object) -> bool:
        """True for what a task or a run reports that has been replaced since."""
        run = self.work.run
        return token is not None and token is not self._turn and (run is None or token != run.marker)

    def _tell(self) -> None:
        self._deck.on_status(self.status)

    def _begin_activity(self) -> None:
        work = self.work
        activities: dict[EngineState, Callable[[object], Awaitable[None]]] = {
            EngineState.STARTING: work.start,
            EngineState.READY: work.look_after,
            EngineState.STALLED: work.look_after,
            EngineState.DRAINING: work.await_idle,
            EngineState.STOPPING: work.stop,
            EngineState.BACKOFF: partial(work.back_off, self._situation.next_try_at),
            EngineState.FAILED: work.clear_away,
        }
        self._turn = object()
        if (act := activities.get(self._situation.state)) is not None:
            task_name = f"{self._situation.state}-{work.spec.name}"
            self._activity = asyncio.create_task(self._guarded(act, self._turn), name=task_name)

    async def _end_activity(self) -> None:
        activity, self._activity = self._activity, None
        if activity is not None:
            activity.cancel()
            await asyncio.gather(activity, return_exceptions=True)

    async def _guarded(self, act: Callable[[object], Awaitable[None]], turn: object) -> None:
        try:
            await act(turn)
        except Exception as error:  # the task's edge: it becomes the engine's fault, with a sentence
            log.exception("an activity failed", engine=self.work.spec.name, state=self._situation.state)
            sentence = f"The deck could not go on with this engine: {type(error).__name__}: {error}"
            self.inbox.report(Trouble(Fault("internal", sentence, fatal=False)), turn)


def _retry_policy(settings: Settings) -> RetryPolicy:
    return RetryPolicy(
        first_seconds=settings.restart_wait_seconds,
        cap_seconds=settings.restart_wait_cap_seconds,
        equal_limit=settings.restart_equal_failures,
        stable_seconds=settings.restart_stable_seconds,
    )
