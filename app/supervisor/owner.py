"""The one task that owns an engine: it alone moves the state, and everything that acts works for it.

What happens comes in through the inbox, `decide` says what follows, and each state has one activity
(a task) that does what the state stands for. A change of state cancels the activity of the old one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial
from operator import is_not
from pathlib import Path

import structlog
from sqlalchemy.exc import SQLAlchemyError

from app.config import Settings
from app.errors import TierdeckError, in_short
from app.supervisor.backoff import RetryPolicy
from app.supervisor.causes import Cause
from app.supervisor.command import EngineSpec
from app.supervisor.decide import INTERNAL, Found, Situation, Then, Trouble, continue_after_stop, decide, resume
from app.supervisor.faults import Fault
from app.supervisor.inbox import Envelope, Inbox
from app.supervisor.phases import Phase
from app.supervisor.records import EngineRecords
from app.supervisor.run import RunFacts
from app.supervisor.states import SERVING, EngineState, can_move
from app.supervisor.status import EngineStatus
from app.supervisor.tree import Left
from app.supervisor.work import EngineWork, Surroundings

log = structlog.get_logger(__name__)

_AGAIN_SECONDS = 5.0
#: It serves, whether it is watched or not; or nothing more can go wrong with it.
_TRIES_AGAIN = SERVING | {EngineState.FAILED}


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
        self._held = ""
        self._parts: tuple[object, ...] = ()
        self._status: EngineStatus | None = None
        """Made of `_parts`, none of which ever changes in itself."""
        self._written = asyncio.Event()
        self._written.set()

    @property
    def status(self) -> EngineStatus:
        """The engine now. Each request at the door asks for it: it is put together anew only after a change."""
        work, run = self.work, self.work.run
        phase = None
        if self._situation.state is EngineState.STARTING:
            phase = run.phase if run else work.ground.phase
        facts, last_token_at = (run.facts, work.life.life.last_token_at) if run else (None, None)
        parts = (self._situation, work.spec, facts, phase, work.left, last_token_at, self._held)
        if self._status is None or any(map(is_not, parts, self._parts)):
            self._parts, self._status = parts, _status(*parts)
        return self._status

    async def written(self) -> None:
        """Wait until every move that was told is in the database, as far as that takes it."""
        await self._written.wait()

    def hold(self, why: str) -> None:
        """Keep traffic from it, whatever its state, until `hold("")`."""
        if why != self._held:
            self._held = why
            self._tell()

    async def set_version(self, version_id: int) -> None:
        """The version that the next start uses; what runs goes on."""
        await self._records.set_version(version_id)
        await self.reload()

    async def reload(self) -> None:
        """Take up what was changed in the database: the next start uses it; what runs goes on."""
        self.work.spec = await self._records.spec()
        self._tell()

    async def spec_with(self, version_id: int) -> EngineSpec:
        """What a start with another version would be. Raises NotFound."""
        return await self._records.spec_with(version_id)

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
        await self._records.save(recorded.state, self._situation, moved=self._situation.since != recorded.since)
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
        await self._records.close()

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
        self._written.clear()
        self._tell()
        try:
            for old, new in zip([before, *chain], chain, strict=False):
                await self._record(old, new)
        finally:
            self._written.set()
        if self._activity is None:
            self._begin_activity()

    async def _record(self, old: Situation, new: Situation) -> None:
        if old.state is not new.state:
            log.info("engine", engine=self.work.spec.name, old=old.state, new=new.state, cause=new.cause)
            if not can_move(old.state, new.state):
                log.error("a move that should not exist", engine=self.work.spec.name, old=old.state, new=new.state)
        await self._records.save(old.state, new, moved=new.state is not old.state)

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
            EngineState.READY: work.keep_watch,
            EngineState.STALLED: partial(work.await_token, self._situation.since),
            EngineState.DRAINING: partial(work.await_idle, self._situation.hopeless),
            EngineState.STOPPING: work.stop,
            EngineState.BACKOFF: partial(work.back_off, self._situation.next_try_at),
            EngineState.FAILED: partial(work.clear_away, self._situation.error_code),
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
        while True:
            try:
                return await act(turn)
            except (SQLAlchemyError, OSError) as error:  # database or disk: where it came up says nothing
                why = in_short(error)
                log.warning("an activity failed", engine=self.work.spec.name, why=why)
            except Exception as error:  # the task's edge: it becomes the engine's fault, with a sentence
                why = in_short(error)
                log.exception("an activity failed", engine=self.work.spec.name, state=self._situation.state)
            if self._situation.state not in _TRIES_AGAIN:
                sentence = Cause.DECK_FAILED % {"why": why}
                return self.inbox.report(Trouble(Fault(INTERNAL, sentence, fatal=False)), turn)
            await asyncio.sleep(_AGAIN_SECONDS)


def _retry_policy(settings: Settings) -> RetryPolicy:
    return RetryPolicy(
        first_seconds=settings.restart_wait_seconds,
        cap_seconds=settings.restart_wait_cap_seconds,
        equal_limit=settings.restart_equal_failures,
        stable_seconds=settings.restart_stable_seconds,
    )


def _status(
    situation: Situation,
    spec: EngineSpec,
    facts: RunFacts | None,
    phase: Phase | None,
    left: Left,
    last_token_at: float | None,
    held: str,
) -> EngineStatus:
    given = (facts and facts.given) or spec.given
    return EngineStatus(
        name=spec.name,
        fleet=spec.fleet,
        model=given.model,
        state=situation.state,
        since=situation.since,
        cause=situation.cause,
        base_url=spec.base_url,
        port=spec.port,
        pid=facts.process.pid if facts else None,
        started_at=facts.started_at if facts else None,
        wanted_profile=spec.profile.name,
        wanted_version=spec.profile.number,
        running_version=facts.version if facts else None,
        phase=phase.sentence if phase else None,
        progress=phase.progress if phase else None,
        restarts=situation.restarts,
        next_try_at=situation.next_try_at,
        leftover_processes=left.processes,
        leftover_bytes=left.held_bytes,
        last_token_at=last_token_at,
        error_code=situation.error_code,
        wanted=situation.wanted,
        served_model_name=given.served_model_name,
        devices=given.devices,
        routing=spec.settings.routing,
        join_identical=spec.settings.join_identical,
        restart_for=given.differing(spec.given),
        leaving=spec.leaving,
        held=held,
    )
