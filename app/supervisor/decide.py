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

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from app.errors import Conflict
from app.supervisor.backoff import Failures, RetryPolicy, delay_seconds, gives_up
from app.supervisor.faults import Exit, Fault
from app.supervisor.states import EngineState


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
Message = Command | Refused | Serves | Silent | Exited | Stalled | Drained | Gone | Trouble | RetryDue

_S = EngineState
_SERVING = frozenset({_S.READY, _S.STALLED})
_AT_REST = frozenset({_S.STOPPED, _S.FAILED, _S.BACKOFF})


def decide(now: float, before: Situation, message: Message, policy: RetryPolicy) -> Situation:
    """The situation after `message`; `before` itself when nothing follows. Raises Conflict for a command."""
    match message:
        case Start():
            return _start(now, before)
        case Stop():
            return _stop(now, replace(before, wanted="stopped"), "Stop asked for.", at_once=message.now)
        case Shutdown():
            return _stop(now, before, "The deck ends.", at_once=True)
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
        case Stalled(fault), _S.READY:
            return replace(_move(now, before, _S.STALLED, fault.sentence), error_code=fault.code)
        case Exited(), _S.STARTING | _S.READY | _S.STALLED | _S.DRAINING:
            return _after_exit(now, before, message, policy)
        case Drained(left), _S.DRAINING:
            return _after_drain(now, before, left)
        case Gone(evidence), _S.STOPPING:
            return _after_stop(now, before, evidence)
        case Trouble(fault), _S.STOPPING:
            return replace(_move(now, before, _S.FAILED, fault.sentence), error_code=fault.code)
        case RetryDue(), _S.BACKOFF:
            again = _move(now, before, _S.STARTING, f"Try {before.failures.count + 1}, after: {before.cause}")
            return replace(again, restarts=before.restarts + 1)
        case _:
            return before


def _start(now: float, before: Situation) -> Situation:
    wanting = replace(before, wanted="running")
    if before.state in _AT_REST:
        return replace(_move(now, wanting, _S.STARTING, "Start asked for."), failures=Failures(), restarts=0)
    if before.state is _S.DRAINING:
        return replace(_move(now, wanting, _S.READY, "Start asked for: draining was called off."), then=Then.STAY)
    return replace(wanting, then=Then.START) if before.state is _S.STOPPING else wanting


def _stop(now: float, before: Situation, cause: str, *, at_once: bool) -> Situation:
    if before.state is _S.STOPPED:
        return before
    if before.state is _S.STOPPING:
        return replace(before, then=Then.STOP)
    if before.state is _S.DRAINING and not at_once:
        return replace(before, then=Then.STOP, cause=cause)
    drains = before.state in _SERVING and not at_once
    return replace(_move(now, before, _S.DRAINING if drains else _S.STOPPING, cause), then=Then.STOP)


def _restart(now: float, before: Situation) -> Situation:
    cause = "Restart asked for."
    if before.state is _S.STOPPED or before.state in _AT_REST:
        return replace(_move(now, before, _S.STARTING, cause), failures=Failures(), restarts=0)
    if before.state in {_S.DRAINING, _S.STOPPING}:
        return replace(before, then=Then.START, cause=cause)
    state = _S.DRAINING if before.state in _SERVING else _S.STOPPING
    return replace(_move(now, before, state, cause), then=Then.START)


def _drain(now: float, before: Situation) -> Situation:
    if before.state in _SERVING:
        return replace(_move(now, before, _S.DRAINING, "Drain asked for."), then=Then.STAY)
    if before.state is _S.DRAINING:
        return before
    raise Conflict(f"The engine is {before.state}; only one that serves can be drained.", code="not_serving")


def _after_exit(now: float, before: Situation, message: Exited, policy: RetryPolicy) -> Situation:
    evidence = {"exit_code": message.exit.code, "exit_signal": message.exit.signal}
    if before.state is _S.DRAINING and before.then is not Then.STAY:
        cause = f"The engine {message.exit.describe()} while it was drained for a {before.then}."
        return replace(_move(now, before, _S.STOPPING, cause, evidence), then=before.then)
    return _fail(now, before, explain_exit(before.state, message), evidence, policy)


def explain_exit(state: EngineState, message: Exited) -> Fault:
    """An end that nobody asked for is a fault, whatever its exit code says."""
    if message.fault is not None and state is _S.STARTING:
        return message.fault
    when = "while starting" if state is _S.STARTING else "while it served"
    why = message.fault.sentence if message.fault is not None else message.last_words
    sentence = f"The engine {message.exit.describe()} {when}" + (f": {why}" if why else ".")
    return Fault("crashed", sentence, fatal=False)


def _silence(seconds: float, detail: str) -> Fault:
    tail = f" ({detail})" if detail else ""
    sentence = f"Start timeout: no progress for {seconds:.0f} s{tail}; the deck ended it."
    return Fault("start_timeout", sentence, fatal=False)


def _fail(now: float, before: Situation, fault: Fault, evidence: dict[str, Any], policy: RetryPolicy) -> Situation:
    stable = before.ready_at is not None and now - before.ready_at >= policy.stable_seconds
    failures = (Failures() if stable else before.failures).add(f"{fault.code}: {fault.sentence}")
    cause, state = fault.sentence, _S.BACKOFF
    if fault.fatal and before.state is _S.STARTING:
        state = _S.FAILED
    elif gives_up(policy, failures):
        state, cause = _S.FAILED, f"{cause} Given up after {failures.equal} equal failures."
    after = replace(_move(now, before, state, cause, evidence), failures=failures, error_code=fault.code, ready_at=None)
    if state is _S.BACKOFF:
        return replace(after, next_try_at=now + delay_seconds(policy, failures))
    return after


def _after_drain(now: float, before: Situation, left: int) -> Situation:
    how = "Nothing is in flight." if not left else f"{left} requests were still in flight when the wait ended."
    if before.then is Then.STAY:
        return replace(before, cause=f"Drained. {how}")
    return replace(_move(now, before, _S.STOPPING, f"{before.cause} {how}"), then=before.then)


def _after_stop(now: float, before: Situation, evidence: dict[str, Any]) -> Situation:
    stopped = _move(now, before, _S.STOPPED, "Every process of it has ended.", evidence)
    return replace(stopped, then=before.then, ready_at=None, failures=Failures(), restarts=0)


def _move(
    now: float, before: Situation, state: EngineState, cause: str, evidence: dict[str, Any] | None = None
) -> Situation:
    keeps_error = state in {_S.BACKOFF, _S.FAILED, _S.STARTING} and before.state is not _S.STOPPED
    return replace(
        before,
        state=state,
        since=now,
        cause=cause,
        evidence=evidence or {},
        next_try_at=None,
        error_code=before.error_code if keeps_error else None,
    )


def continue_after_stop(now: float, stopped: Situation) -> Situation:
    """The start that a restart asked for, once everything is stopped."""
    return replace(_move(now, stopped, _S.STARTING, "Started anew for the restart."), then=Then.STAY)


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
        return _move(now, fresh, _S.STARTING, f"The deck was started and found this engine running (pid {found.pid}).")
    if found.alive:
        cause = f"The deck was started and found this engine running (pid {found.pid}), though it is to be stopped."
        return replace(_move(now, fresh, _S.STOPPING, cause), then=Then.STOP)
    ended = f"Its process (pid {found.pid}) ended while no deck was running. " if found.had_process else ""
    if found.wanted == "running":
        return _move(now, fresh, _S.STARTING, f"{ended}Started with the deck.")
    if found.had_process or found.state is not _S.STOPPED:
        return replace(_move(now, fresh, _S.STOPPING, f"{ended}It is to be stopped."), then=Then.STOP)
    return fresh
