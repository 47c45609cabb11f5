"""The steps of a rollout, taken: each may be taken again, and finds out by itself what is left to do."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import httpx

from app.errors import Conflict
from app.profiles.sizes import size_text
from app.profiles.transfer import extra_of
from app.rollouts.decide import Do, EndState
from app.rollouts.holds import Hold
from app.rollouts.said import NOTHING, Said, say
from app.rollouts.steps import Step, StepState, Turn, Way
from app.services.canary import Canary, CanaryFailed, NotAsked, Patient
from app.services.engines import Engines
from app.services.profiles import Profiles
from app.services.rollout_records import RolloutRecords
from app.services.surroundings import host_bytes
from app.supervisor import machine
from app.supervisor.states import ANSWERING, EngineState
from app.supervisor.status import EngineStatus

_S = EngineState
RUNNING = ANSWERING | {_S.STARTING}
#: On the way forward the first crash says enough; on the way back the supervisor may try as often as it does.
GIVEN_UP = {Way.FORWARD: frozenset({_S.FAILED, _S.BACKOFF}), Way.BACK: frozenset({_S.FAILED})}


class StepFailed(Exception):
    """The step cannot be done; `said` is the reason."""

    def __init__(self, said: Said) -> None:
        super().__init__(said.text)
        self.said = said


@dataclass(frozen=True)
class Outcome:
    """What came of a step that did not fail."""

    said: Said
    state: StepState = StepState.DONE


@dataclass(frozen=True)
class Tools:
    """What steps are taken with."""

    engines: Engines
    profiles: Profiles
    client: httpx.AsyncClient


class StepWork:
    """Takes the steps of one rollout."""

    def __init__(self, records: RolloutRecords, tools: Tools, drain_seconds: float) -> None:
        self._records = records
        self._engines = tools.engines
        self._tools = tools
        self._drain_seconds = drain_seconds

    async def take(self, turn: Turn, do: Do) -> Outcome:
        """Do one step. Raises StepFailed, and what the deck raises on purpose."""
        steps: dict[Step, Callable[[Turn, Way], Awaitable[Outcome]]] = {
            Step.CHECK: self._check,
            Step.DRAIN: self._drain,
            Step.STOP: self._stop,
            Step.MEMORY: self._memory,
            Step.START: self._start,
            Step.READY: self._ready,
            Step.CANARY: self._canary,
            Step.RELEASE: self._release,
        }
        return await steps[do.step](turn, do.way)

    async def close(self, turns: tuple[Turn, ...], state: EndState) -> None:
        """The rollout is about to end as `state`. May be called again."""

    async def hold(self, turn: Turn) -> None:
        """Keep traffic from an engine that was being worked on when the last deck ended."""
        await self._hold(turn.engine, turn)

    async def _hold(self, engine: str, turn: Turn) -> None:
        version = await self._records.label(turn.after)
        values = {"id": self._records.id, "engine": turn.engine, "version": version}
        self._engines.hold(engine, Hold.CHANGES % values)

    async def _check(self, turn: Turn, _: Way) -> Outcome:
        fault = await self._engines.check_version(turn.engine, turn.after)
        if fault is not None:
            raise StepFailed(say(fault.sentence))
        return Outcome(
            say("Nothing speaks against a start with %(version)s.", version=await self._records.label(turn.after))
        )

    async def _drain(self, turn: Turn, way: Way) -> Outcome:
        if self._is_left_alone(turn, way):
            return skipped(turn)
        await self._hold(turn.engine, turn)
        if self._engines.status(turn.engine).state not in ANSWERING:
            return Outcome(say("It serves nobody: there is nothing to wait for."), StepState.SKIPPED)
        open_requests, begun = self._engines.in_flight(turn.engine), time.monotonic()
        try:
            await self._engines.drain(turn.engine)
            async with asyncio.timeout(self._drain_seconds):
                await self._engines.idle(turn.engine)
        except Conflict:  # it ended by itself at this moment
            return Outcome(say("It serves nobody: there is nothing to wait for."), StepState.SKIPPED)
        except TimeoutError:
            left, seconds = self._engines.in_flight(turn.engine), f"{self._drain_seconds:g}"
            return Outcome(
                say(
                    "%(left)s requests are still open after %(seconds)s s; they end with it.",
                    left=left,
                    seconds=seconds,
                )
            )
        if not open_requests:
            return Outcome(say("No request was open."))
        seconds = f"{time.monotonic() - begun:.1f}"
        return Outcome(say("%(count)s open requests ended within %(seconds)s s.", count=open_requests, seconds=seconds))

    async def _stop(self, turn: Turn, way: Way) -> Outcome:
        if self._is_left_alone(turn, way):
            return skipped(turn)
        await self._hold(turn.engine, turn)
        begun = time.monotonic()
        await self._engines.stop(turn.engine, now=True)
        reached = await self._until(turn.engine, lambda status: status.state in {_S.STOPPED, _S.FAILED})
        if reached.state is _S.FAILED:
            raise StepFailed(say(reached.cause))
        return Outcome(
            say("Every process of it ended, after %(seconds)s s.", seconds=f"{time.monotonic() - begun:.1f}")
        )

    async def _memory(self, turn: Turn, way: Way) -> Outcome:
        if self._is_left_alone(turn, way):
            return skipped(turn)
        target = _target(turn, way)
        if left := self._engines.status(turn.engine).leftover_processes:
            raise StepFailed(say("%(count)s of its processes could not be ended.", count=left))
        fault = await self._engines.check_version(turn.engine, target)
        if fault is not None:
            raise StepFailed(say(fault.sentence))
        version = await self._tools.profiles.by_version_id(target)
        spec = await self._tools.profiles.engine_spec(version, self._engines.status(turn.engine).fleet)
        asked = host_bytes(version, spec.base_flags, spec.base_environment)
        sentence = "%(free)s of memory are free; the host tier asks for %(asked)s, what it holds already included."
        return Outcome(say(sentence, free=size_text(machine.free_bytes()), asked=size_text(asked)))

    async def _start(self, turn: Turn, way: Way) -> Outcome:
        target = _target(turn, way)
        await self._engines.apply_version(turn.engine, target)
        if turn.stopped_on_purpose:
            return skipped(turn)
        version, running = await self._records.label(target), await self._records.runs(turn.engine)
        if self._engines.status(turn.engine).state in RUNNING and running.version_id != target:
            await self._engines.stop(turn.engine, now=True)  # started by somebody else meanwhile
            await self._until(turn.engine, lambda status: status.state not in RUNNING | {_S.STOPPING})
        await self._engines.start(turn.engine)
        status = await self._come_up(turn.engine, way, lambda one: one.pid is not None)
        return Outcome(say("Process %(pid)s runs %(version)s.", pid=status.pid, version=version))

    async def _ready(self, turn: Turn, way: Way) -> Outcome:
        if turn.stopped_on_purpose:
            return skipped(turn)
        status = await self._come_up(turn.engine, way, lambda one: one.state is _S.READY)
        return Outcome(say(status.cause))

    async def _canary(self, turn: Turn, way: Way) -> Outcome:
        if turn.stopped_on_purpose:
            return skipped(turn)
        version = await self._tools.profiles.by_version_id(turn.after)
        runs, status = await self._records.runs(turn.engine), await self._settled(turn, way)
        patient = patient_of(status, runs.marker, version.kv_transfer_config)
        try:
            return Outcome(
                await Canary(self._tools.client, patient).run(f"{self._records.id} {turn.engine} {time.time()}")
            )
        except NotAsked as reason:
            return Outcome(reason.said, StepState.SKIPPED)
        except CanaryFailed as error:
            raise StepFailed(_by_hand(self._engines.status(turn.engine)) or error.said) from error

    async def _release(self, turn: Turn, way: Way) -> Outcome:
        if turn.stopped_on_purpose:
            return skipped(turn)
        status = await self._settled(turn, way)
        if status.state is not _S.READY:
            raise StepFailed(_by_hand(status) or say(status.cause))
        self._engines.release(turn.engine)
        return Outcome(say("It takes requests again."))

    def _is_left_alone(self, turn: Turn, way: Way) -> bool:
        """It does not run on purpose; or it is to go back, and its process was never touched."""
        if turn.stopped_on_purpose:
            return True
        untouched = turn.fact(Way.FORWARD, Step.STOP).state is StepState.WAITING
        return way is Way.BACK and untouched and self._engines.status(turn.engine).state in RUNNING

    async def _come_up(self, engine: str, way: Way, is_there: Callable[[EngineStatus], bool]) -> EngineStatus:
        """Until `is_there`. Raises StepFailed once it is known that it will not be.

        A port that another program has passes by itself: it is waited for as long as a start may be silent.
        """
        limit, lost_at = self._engines.start_limit(engine), time.monotonic()
        while not is_there(status := self._engines.status(engine)):
            lost_at = lost_at if status.waits_for_port else time.monotonic()
            left = None if limit is None or not status.waits_for_port else lost_at + limit - time.monotonic()
            if (why := _why_not(status, way, left)).sentence:
                raise StepFailed(why)
            with suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self._engines.changed()
        return status

    async def _settled(self, turn: Turn, way: Way) -> EngineStatus:
        """Once it is known whether it serves: a deck that comes up does not know that of an engine it found running.
        Raises StepFailed if it does not.
        """
        return await self._come_up(turn.engine, way, lambda one: one.state is not _S.STARTING)

    async def _until(self, engine: str, is_there: Callable[[EngineStatus], bool]) -> EngineStatus:
        while not is_there(status := self._engines.status(engine)):
            await self._engines.changed()
        return status


def patient_of(status: EngineStatus, marker: str, config: dict[str, Any]) -> Patient:
    """What the canary has to know of an engine."""
    extra = extra_of(config)
    return Patient(
        base_url=status.base_url,
        model=status.served_model_name,
        marker=marker,
        has_tier=bool(config) and config.get("kv_role", "kv_both") == "kv_both",
        chunk_blocks=_whole(extra.get("blocks_per_chunk")),
        stored_after=_whole(extra.get("store_threshold")),
    )


def _whole(value: Any) -> int:
    return value if isinstance(value, int) and value > 0 else 1


def _target(turn: Turn, way: Way) -> int:
    return turn.after if way is Way.FORWARD else turn.before


def _by_hand(status: EngineStatus) -> Said | None:
    """Behind its start nobody but an operator stops it."""
    return say("It was stopped by hand.") if status.wanted == "stopped" else None


def _why_not(status: EngineStatus, way: Way, left_seconds: float | None) -> Said:
    """Why it will not come up: a crash, a failure, or an operator who stopped it; NOTHING while it may."""
    if status.state is _S.STOPPED and status.wanted == "stopped":
        return say("It was stopped by hand while it started.")
    if status.waits_for_port:
        return NOTHING if left_seconds is None or left_seconds > 0 else say(status.cause)
    return say(status.cause) if status.state in GIVEN_UP[way] else NOTHING


def skipped(turn: Turn) -> Outcome:
    """Nothing is done with the engine, and why."""
    if turn.stopped_on_purpose:
        return Outcome(say("It was stopped; it takes the version for its next start."), StepState.SKIPPED)
    return Outcome(say("It still runs the version before."), StepState.SKIPPED)
