"""What follows from what happened to an engine. Pure: the owner acts, this module decides.

command  | stopped   starting   ready/stalled     draining        stopping      backoff    failed
---------+------------------------------------------------------------------------------------------
start    | starting  -          -                 ready           then start    starting   starting
stop     | -         stopping   draining, stop    then stop       then stop     stopping   stopping
stop now | -         stopping   stopping          stopping        then stop     stopping   stopping
restart  | starting  stopping,  draining, start   then start      then start    starting   starting
         |           start
drain    | conflict  conflict   draining, stay    (as it was)     conflict      conflict   conflict
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from app.errors import Conflict
from app.supervisor.backoff import Failures, RetryPolicy, delay_seconds, gives_up
from app.supervisor.causes import Cause
from app.supervisor.faults import Exit, Fault
from app.supervisor.states import PORT_IN_USE, SERVING, EngineState


class Then(StrEnum):
    """What comes after draining and stopping."""

    STAY = "stay"
    STOP = "stop"
    START = "start"


@dataclass(frozen=True)
class Situation:
    """All that a decision depends on."""

    state: EngineState
    since: float
    cause: str
    wanted: str = "running"
    then: Then = Then.STAY
    error_code: str | None = None
    failures: Failures = field(default_factory=Failures)
    ready_at: float | None = None
    restarts: int = 0
    next_try_at: float | None = None
    evidence: dict[str, Any] = field(default_factory=dict)
    hopeless: bool = False
    """It was stalled when its drain began: what is in flight will hardly be answered."""


@dataclass(frozen=True)
class Start:
    """The operator wants it to run."""


@dataclass(frozen=True)
class Stop:
    """The operator wants it not to run; `now` does not wait for requests in flight."""

    now: bool = False


@dataclass(frozen=True)
class Restart:
    """The operator wants a new process."""


@dataclass(frozen=True)
class Drain:
    """The operator wants no new requests on it."""


@dataclass(frozen=True)
class Shutdown:
    """The deck ends and takes its engines with it; what the operator wanted stays."""


@dataclass(frozen=True)
class Refused:
    """A start was not even tried."""

    fault: Fault


@dataclass(frozen=True)
class Serves:
    """It gave a token."""

    cause: str


@dataclass(frozen=True)
class Silent:
    """A start showed no progress for too long."""

    seconds: float
    detail: str


@dataclass(frozen=True)
class Exited:
    """The process ended without being told to by the deck (or while it was being told)."""

    exit: Exit
    fault: Fault | None
    last_words: str | None


@dataclass(frozen=True)
class Stalled:
    """It lives and gives no tokens."""

    fault: Fault
    evidence: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Overdue:
    """It has been stalled for as long as the settings let it."""

    seconds: float


@dataclass(frozen=True)
class PortFree:
    """Nobody listens any more on the port that it lost."""


@dataclass(frozen=True)
class PortMoved:
    """It has another port, as the one that it lost stayed in use."""

    old: int
    new: int
    seconds: float


@dataclass(frozen=True)
class Drained:
    """Nothing is in flight any more, or waiting for it took too long."""

    left: int


@dataclass(frozen=True)
class Gone:
    """No process of it is left."""

    evidence: dict[str, Any]


@dataclass(frozen=True)
class Trouble:
    """The deck itself failed at what it was doing with the engine."""

    fault: Fault


@dataclass(frozen=True)
class RetryDue:
    """The wait before the next try is over."""


Command = Start | Stop | Restart | Drain | Shutdown
Waited = PortFree | PortMoved | RetryDue
Message = Command | Refused | Serves | Silent | Exited | Stalled | Overdue | Drained | Gone | Trouble | Waited

#: A fault of the deck, its database or its disk: the engine is not given up for it.
INTERNAL = "internal"

#: While it started, or later: without and with its last words.
_ENDED = {
    True: (Cause.ENDED_STARTING, Cause.ENDED_STARTING_WITH),
    False: (Cause.ENDED_SERVING, Cause.ENDED_SERVING_WITH),
}

_NUMBERS = re.compile(r"0x[0-9a-fA-F]+|\d+(?:[.,]\d+)*")

_S = EngineState
_AT_REST = frozenset({_S.STOPPED, _S.FAILED, _S.BACKOFF})


def decide(now: float, before: Situation, message: Message, policy: RetryPolicy) -> Situation:
    """The situation after `message`; `before` itself when nothing follows. Raises Conflict for a command."""
    match message:
        case Start():
            return _start(now, before)
        case Stop():
            return _stop(now, replace(before, wanted="stopped"), Cause.STOP.value, at_once=message.now)
        case Shutdown():
            return _stop(now, before, Cause.DECK_ENDS.value, at_once=True)
        case Restart():
            return _restart(now, replace(before, wanted="running"))
        case Drain():
            return _drain(now, before)
        case _:
            return _react(now, before, message, policy)


def _react(now: float, before: Situation, message: Message, policy: RetryPolicy) -> Situation:
    match message, before.state:
        case (Refused(fault), _S.STARTING) | (Trouble(fault), _S.STARTING | _S.BACKOFF):
            return _fail(now, before, fault, {}, policy)
        case Trouble(), _S.DRAINING:
            return _after_drain(now, before, 0)
        case Serves(cause), _S.STARTING | _S.STALLED:
            return replace(_move(now, before, _S.READY, cause), ready_at=now, error_code=None, then=Then.STAY)
        case Silent(seconds, detail), _S.STARTING:
            return _fail(now, before, _silence(seconds, detail), {"silent_seconds": seconds}, policy)
        case Stalled(fault, evidence), _S.READY:
            return replace(_move(now, before, _S.STALLED, fault.sentence, evidence), error_code=fault.code)
        case Overdue(seconds), _S.STALLED:
            return _fail(now, before, _overdue(before, seconds), {"stalled_seconds": seconds}, policy)
        case PortFree(), _S.FAILED if _waits_for_port(before):
            return _move(now, before, _S.STARTING, Cause.PORT_FREE)
        case PortMoved(), _S.FAILED if _waits_for_port(before):
            cause = Cause.PORT_MOVED % {"old": message.old, "new": message.new, "seconds": f"{message.seconds:g}"}
            return _move(now, before, _S.STARTING, cause, {"old_port": message.old, "new_port": message.new})
        case Exited(), _S.STARTING | _S.READY | _S.STALLED | _S.DRAINING:
            return _after_exit(now, before, message, policy)
        case Drained(left), _S.DRAINING:
            return _after_drain(now, before, left)
        case Gone(evidence), _S.STOPPING:
            return _after_stop(now, before, evidence)
        case Trouble(fault), _S.STOPPING:
            return replace(_move(now, before, _S.FAILED, fault.sentence), error_code=fault.code)
        case RetryDue(), _S.BACKOFF:
            cause = Cause.TRY % {"number": before.failures.count + 1, "cause": before.cause}
            again = _move(now, before, _S.STARTING, cause)
            return replace(again, restarts=before.restarts + 1)
        case _:
            return before


def _waits_for_port(before: Situation) -> bool:
    return before.wanted == "running" and before.error_code == PORT_IN_USE


def _start(now: float, before: Situation) -> Situation:
    wanting = replace(before, wanted="running")
    if before.state in _AT_REST:
        return replace(_move(now, wanting, _S.STARTING, Cause.START), failures=Failures(), restarts=0)
    if before.state is _S.DRAINING:
        return replace(_move(now, wanting, _S.READY, Cause.START_INSTEAD), then=Then.STAY)
    return replace(wanting, then=Then.START) if before.state is _S.STOPPING else wanting


def _stop(now: float, before: Situation, cause: str, *, at_once: bool) -> Situation:
    if before.state is _S.STOPPED:
        return before
    if before.state is _S.STOPPING:
        return replace(before, then=Then.STOP)
    if before.state is _S.DRAINING and not at_once:
        return replace(before, then=Then.STOP, cause=cause)
    drains = before.state in SERVING and not at_once
    return replace(_move(now, before, _S.DRAINING if drains else _S.STOPPING, cause), then=Then.STOP)


def _restart(now: float, before: Situation) -> Situation:
    cause = Cause.RESTART.value
    if before.state is _S.STOPPED or before.state in _AT_REST:
        return replace(_move(now, before, _S.STARTING, cause), failures=Failures(), restarts=0)
    if before.state in {_S.DRAINING, _S.STOPPING}:
        return replace(before, then=Then.START, cause=cause)
    state = _S.DRAINING if before.state in SERVING else _S.STOPPING
    return replace(_move(now, before, state, cause), then=Then.START)


def _drain(now: float, before: Situation) -> Situation:
    if before.state in SERVING:
        return replace(_move(now, before, _S.DRAINING, Cause.DRAIN), then=Then.STAY)
    if before.state is _S.DRAINING:
        return before
    raise Conflict(f"The engine is {before.state}; only one that serves can be drained.", code="not_serving")


def _after_exit(now: float, before: Situation, message: Exited, policy: RetryPolicy) -> Situation:
    evidence = {"exit_code": message.exit.code, "exit_signal": message.exit.signal}
    if before.state is _S.DRAINING and before.then is not Then.STAY:
        cause = Cause.ENDED_WHILE_DRAINED % {"end": message.exit.describe(), "then": before.then}
        return replace(_move(now, before, _S.STOPPING, cause, evidence), then=before.then)
    return _fail(now, before, explain_exit(before.state, message), evidence, policy)


def explain_exit(state: EngineState, message: Exited) -> Fault:
    """An end that nobody asked for is a fault, whatever its exit code says."""
    if message.fault is not None and state is _S.STARTING:
        return message.fault
    why = message.fault.sentence if message.fault is not None else message.last_words
    bare, told = _ENDED[state is _S.STARTING]
    sentence = (told if why else bare) % {"end": message.exit.describe(), "why": why}
    return Fault("crashed", sentence, fatal=False)


def _silence(seconds: float, detail: str) -> Fault:
    sentence = (Cause.SILENT_WITH if detail else Cause.SILENT) % {"seconds": f"{seconds:.0f}", "why": detail}
    return Fault("start_timeout", sentence, fatal=False)


def _fail(now: float, before: Situation, fault: Fault, evidence: dict[str, Any], policy: RetryPolicy) -> Situation:
    stable = before.ready_at is not None and now - before.ready_at >= policy.stable_seconds
    failures = (Failures() if stable else before.failures).add(_key(fault))
    cause, state = fault.sentence, _S.BACKOFF
    if fault.fatal and before.state is _S.STARTING:
        state = _S.FAILED
    elif fault.code != INTERNAL and gives_up(policy, failures):
        state, cause = _S.FAILED, Cause.GIVEN_UP % {"cause": cause, "count": failures.equal}
    after = replace(_move(now, before, state, cause, evidence), failures=failures, error_code=fault.code, ready_at=None)
    if state is _S.BACKOFF:
        return replace(after, next_try_at=now + delay_seconds(policy, failures))
    return after


def _key(fault: Fault) -> str:
    """What two equal failures have in common: pids, addresses and amounts of memory differ from one to the next."""
    return f"{fault.code}: {_NUMBERS.sub('#', fault.sentence)}"


def _overdue(before: Situation, seconds: float) -> Fault:
    sentence = Cause.OVERDUE % {"seconds": f"{seconds:.0f}", "cause": before.cause}
    return Fault(before.error_code or "stalled", sentence, fatal=False)


def _after_drain(now: float, before: Situation, left: int) -> Situation:
    how = Cause.STILL_IN_FLIGHT % {"count": left} if left else Cause.NOTHING_IN_FLIGHT.value
    if before.then is Then.STAY:
        return replace(before, cause=f"{Cause.DRAINED} {how}")
    return replace(_move(now, before, _S.STOPPING, f"{before.cause} {how}"), then=before.then)


def _after_stop(now: float, before: Situation, evidence: dict[str, Any]) -> Situation:
    stopped = _move(now, before, _S.STOPPED, Cause.ALL_ENDED, evidence)
    return replace(stopped, then=before.then, ready_at=None, failures=Failures(), restarts=0)


def _move(
    now: float, before: Situation, state: EngineState, cause: str, evidence: dict[str, Any] | None = None
) -> Situation:
    keeps_error = state in {_S.BACKOFF, _S.FAILED, _S.STARTING} and before.state is not _S.STOPPED
    return replace(
        before,
        state=state,
        since=now,
        cause=str(cause),
        evidence=evidence or {},
        next_try_at=None,
        error_code=before.error_code if keeps_error else None,
        hopeless=before.state is _S.STALLED and state is _S.DRAINING,
    )


def continue_after_stop(now: float, stopped: Situation) -> Situation:
    """The start that a restart asked for, once everything is stopped."""
    return replace(_move(now, stopped, _S.STARTING, Cause.FOR_THE_RESTART), then=Then.STAY)


@dataclass(frozen=True)
class Found:
    """What a starting deck finds of an engine that its predecessor supervised."""

    state: EngineState
    since: float
    cause: str
    wanted: str
    had_process: bool
    alive: bool
    pid: int | None


def resume(now: float, found: Found) -> Situation:
    """How supervision goes on after a restart of the deck."""
    fresh = Situation(found.state, found.since, found.cause, wanted=found.wanted)
    if found.alive and found.wanted == "running":
        return _move(now, fresh, _S.STARTING, Cause.FOUND % {"pid": found.pid})
    if found.alive:
        cause = Cause.FOUND_UNWANTED % {"pid": found.pid}
        return replace(_move(now, fresh, _S.STOPPING, cause), then=Then.STOP)
    ended = f"{Cause.GONE_MEANWHILE % {'pid': found.pid}} " if found.had_process else ""
    if found.wanted == "running":
        return _move(now, fresh, _S.STARTING, f"{ended}{Cause.WITH_THE_DECK}")
    if found.had_process or found.state is not _S.STOPPED:
        return replace(_move(now, fresh, _S.STOPPING, f"{ended}{Cause.TO_BE_STOPPED}"), then=Then.STOP)
    return fresh
