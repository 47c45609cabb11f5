"""What follows from what happened, without a process, a clock or a loop."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.errors import Conflict
from app.supervisor.backoff import Failures, RetryPolicy, delay_seconds
from app.supervisor.decide import (
    INTERNAL,
    Drain,
    Drained,
    Exited,
    Found,
    Gone,
    Message,
    Overdue,
    PortFree,
    PortMoved,
    Refused,
    Restart,
    RetryDue,
    Serves,
    Shutdown,
    Silent,
    Situation,
    Stalled,
    Start,
    Stop,
    Then,
    Trouble,
    continue_after_stop,
    decide,
    resume,
)
from app.supervisor.faults import Exit, Fault
from app.supervisor.states import EngineState, can_move

S = EngineState
POLICY = RetryPolicy()
FATAL = Fault("kv_memory", "Too little.", fatal=True)
PASSING = Fault("device_memory_busy", "Busy.", fatal=False)
MESSAGES: list[Message] = [
    Start(),
    Stop(),
    Stop(now=True),
    Restart(),
    Drain(),
    Shutdown(),
    Refused(FATAL),
    Serves("yes"),
    Silent(9.0, ""),
    Exited(Exit(code=1), None, None),
    Exited(Exit(signal=9), FATAL, "x"),
    Stalled(PASSING),
    Overdue(60.0),
    PortFree(),
    PortMoved(8710, 8711, 30.0),
    Drained(0),
    Gone({}),
    Trouble(PASSING),
    RetryDue(),
]


def at(state: EngineState, **changes: object) -> Situation:
    return replace(Situation(state, 10.0, "before"), **changes)  # type: ignore[arg-type]


@given(st.sampled_from(list(S)), st.lists(st.sampled_from(MESSAGES), max_size=12))
def test_only_moves_that_exist(first: EngineState, messages: list[Message]) -> None:
    """Whatever comes in whatever order, the state moves along the table of transitions."""
    situation, now = at(first), 10.0
    for message in messages:
        now += 1
        try:
            after = decide(now, situation, message, POLICY)
        except Conflict:
            continue
        assert after.state is situation.state or can_move(situation.state, after.state)
        assert after.cause
        assert (after.next_try_at is not None) == (after.state is S.BACKOFF) or after.state is situation.state
        situation = after


@pytest.mark.parametrize(
    ("state", "command", "after", "then"),
    [
        (S.STOPPED, Start(), S.STARTING, Then.STAY),
        (S.FAILED, Start(), S.STARTING, Then.STAY),
        (S.BACKOFF, Start(), S.STARTING, Then.STAY),
        (S.DRAINING, Start(), S.READY, Then.STAY),
        (S.STOPPING, Start(), S.STOPPING, Then.START),
        (S.READY, Start(), S.READY, Then.STAY),
        (S.READY, Stop(), S.DRAINING, Then.STOP),
        (S.STALLED, Stop(), S.DRAINING, Then.STOP),
        (S.READY, Stop(now=True), S.STOPPING, Then.STOP),
        (S.DRAINING, Stop(now=True), S.STOPPING, Then.STOP),
        (S.STARTING, Stop(), S.STOPPING, Then.STOP),
        (S.BACKOFF, Stop(), S.STOPPING, Then.STOP),
        (S.FAILED, Stop(), S.STOPPING, Then.STOP),
        (S.STOPPED, Stop(), S.STOPPED, Then.STAY),
        (S.READY, Restart(), S.DRAINING, Then.START),
        (S.STARTING, Restart(), S.STOPPING, Then.START),
        (S.STOPPED, Restart(), S.STARTING, Then.STAY),
        (S.FAILED, Restart(), S.STARTING, Then.STAY),
        (S.READY, Drain(), S.DRAINING, Then.STAY),
    ],
)
def test_commands(state: EngineState, command: Message, after: EngineState, then: Then) -> None:
    """What each command does in each state."""
    found = decide(11.0, at(state), command, POLICY)
    assert (found.state, found.then) == (after, then)


@pytest.mark.parametrize("state", [S.STOPPED, S.STARTING, S.STOPPING, S.BACKOFF, S.FAILED])
def test_drain_needs_an_engine_that_serves(state: EngineState) -> None:
    """There is nothing to drain elsewhere."""
    with pytest.raises(Conflict):
        decide(11.0, at(state), Drain(), POLICY)


def test_operator_and_deck_stop_differ() -> None:
    """A deck that ends does not change what the operator wants."""
    assert decide(11.0, at(S.READY), Stop(), POLICY).wanted == "stopped"
    assert decide(11.0, at(S.READY), Shutdown(), POLICY).wanted == "running"


def test_fatal_reason_ends_a_start_at_once() -> None:
    """A deterministic failure of a start is not tried again; the same words in a crash later are."""
    exited = Exited(Exit(code=1), FATAL, None)
    failed = decide(11.0, at(S.STARTING), exited, POLICY)
    assert (failed.state, failed.cause, failed.error_code) == (S.FAILED, "Too little.", "kv_memory")
    crashed = decide(11.0, at(S.READY, ready_at=10.0), exited, POLICY)
    assert crashed.state is S.BACKOFF and "Too little." in crashed.cause


def test_equal_failures_end_the_tries() -> None:
    """The third equal failure in a row is the last; another failure in between starts the count anew."""
    situation = at(S.STARTING)
    for expected in (S.BACKOFF, S.BACKOFF, S.FAILED):
        situation = decide(20.0, replace(situation, state=S.STARTING), Exited(Exit(code=1), None, "same"), POLICY)
        assert situation.state is expected
    situation = at(S.STARTING)
    for words in ("a", "a", "b", "a", "a"):
        situation = decide(20.0, replace(situation, state=S.STARTING), Exited(Exit(code=1), None, words), POLICY)
        assert situation.state is S.BACKOFF


def test_stable_engine_has_a_clean_record() -> None:
    """Crashes that lie far apart never add up to the end of restarts."""
    situation = at(S.READY, ready_at=0.0, failures=Failures(2, 2, "crashed: x"))
    after = decide(500.0, situation, Exited(Exit(code=1), None, None), POLICY)
    assert after.failures.count == 1 and after.next_try_at == 500.0 + POLICY.first_seconds


def test_waits_double_up_to_the_cap() -> None:
    """1, 2, 4, ... and never more than the cap."""
    waits = [delay_seconds(POLICY, Failures(count=count)) for count in (1, 2, 3, 4, 40)]
    assert waits == [1, 2, 4, 8, 60]


def test_exit_while_draining_for_a_restart() -> None:
    """An engine that ends by itself while it is drained for a restart is restarted, not failed."""
    situation = at(S.DRAINING, then=Then.START)
    stopping = decide(11.0, situation, Exited(Exit(code=0), None, None), POLICY)
    assert (stopping.state, stopping.then) == (S.STOPPING, Then.START)
    stopped = decide(12.0, stopping, Gone({}), POLICY)
    assert (stopped.state, stopped.then) == (S.STOPPED, Then.START)
    assert continue_after_stop(12.0, stopped).state is S.STARTING


def test_drain_timeout_is_told() -> None:
    """Requests that were cut off are counted in the cause."""
    after = decide(11.0, at(S.DRAINING, then=Then.STOP, cause="Stop asked for."), Drained(3), POLICY)
    assert after.state is S.STOPPING and "3 requests were still in flight" in after.cause


def test_retry_counts() -> None:
    """A restart by the deck is counted; a start that was asked for begins at zero."""
    again = decide(11.0, at(S.BACKOFF, restarts=1, next_try_at=11.0), RetryDue(), POLICY)
    assert (again.state, again.restarts) == (S.STARTING, 2)
    assert decide(11.0, at(S.BACKOFF, restarts=5), Start(), POLICY).restarts == 0


@pytest.mark.parametrize(
    ("wanted", "alive", "had", "state", "expected"),
    [
        ("running", True, True, S.READY, S.STARTING),
        ("stopped", True, True, S.STOPPING, S.STOPPING),
        ("running", False, True, S.READY, S.STARTING),
        ("stopped", False, True, S.READY, S.STOPPING),
        ("running", False, False, S.STOPPED, S.STARTING),
        ("stopped", False, False, S.STOPPED, S.STOPPED),
        ("stopped", False, False, S.FAILED, S.STOPPING),
        ("running", False, False, S.FAILED, S.STARTING),
    ],
)
def test_resume(wanted: str, alive: bool, had: bool, state: EngineState, expected: EngineState) -> None:
    """What a new deck does with what it finds."""
    found = Found(state, 1.0, "before", wanted, had, alive, 7 if had else None)
    after = resume(50.0, found)
    assert after.state is expected and after.wanted == wanted
    if had and not alive:
        assert "(pid 7) ended while no deck was running" in after.cause


def test_stall_and_what_may_follow() -> None:
    """The evidence is kept with the move; tokens end it, and so does the deck, if it is told to."""
    stalled = decide(11.0, at(S.READY), Stalled(PASSING, {"waiting": 3}), POLICY)
    assert (stalled.state, stalled.error_code, stalled.evidence) == (S.STALLED, PASSING.code, {"waiting": 3})
    serves = decide(50.0, stalled, Serves("It gives tokens again."), POLICY)
    assert (serves.state, serves.error_code) == (S.READY, None)
    ended = decide(71.0, stalled, Overdue(60.0), POLICY)
    assert (ended.state, ended.error_code) == (S.BACKOFF, PASSING.code)
    assert ended.cause == "Ended by the deck after 60 s. Busy."


def test_a_stalled_engine_is_not_drained_for_long() -> None:
    """What is in flight there will hardly be answered; of one that serves, it will."""
    assert decide(11.0, at(S.STALLED), Restart(), POLICY).hopeless
    draining = decide(11.0, at(S.READY), Restart(), POLICY)
    assert draining.state is S.DRAINING and not draining.hopeless
    assert not decide(12.0, decide(11.0, at(S.STALLED), Stop(), POLICY), Drained(2), POLICY).hopeless


def test_stalls_that_come_again_end_the_restarts() -> None:
    """An engine that stalls after every start is not started for ever."""
    situation = at(S.STALLED, cause="Stalled for 120 s.")
    for seconds, expected in ((60.0, S.BACKOFF), (61.5, S.BACKOFF), (60.2, S.FAILED)):
        situation = decide(20.0, replace(situation, state=S.STALLED), Overdue(seconds), POLICY)
        situation = replace(situation, cause=f"Stalled for {seconds} s.")
        assert situation.state is expected


def test_a_stall_report_while_it_is_stopped_is_void() -> None:
    """What an engine logs on SIGTERM is no fault when a stop was asked for."""
    for state in (S.DRAINING, S.STOPPING, S.STARTING, S.STOPPED):
        assert decide(11.0, at(state), Stalled(PASSING), POLICY).state is state


def test_an_engine_is_not_given_up_for_what_the_deck_lacks() -> None:
    """Its database is away or its disk full: the engine is tried until that has passed."""
    lacking = Trouble(Fault(INTERNAL, "The database is locked.", fatal=False))
    now = Situation(S.STARTING, 0.0, "")
    for _ in range(9):
        failed = decide(1.0, now, lacking, POLICY)
        assert failed.state is S.BACKOFF and failed.cause == "The database is locked."
        now = decide(2.0, failed, RetryDue(), POLICY)
    assert now.state is S.STARTING


def test_equal_failures_may_differ_in_numbers() -> None:
    """A pid, an address or an amount of memory does not make another failure of it."""
    situation = at(S.STARTING)
    for words, expected in (
        ("pid 12 at 0x7f0a: 0.4 GiB free", S.BACKOFF),
        ("pid 13 at 0x7f0b: 12 GiB free", S.BACKOFF),
        ("pid 9 at 0xff: 3.25 GiB free", S.FAILED),
    ):
        situation = decide(20.0, replace(situation, state=S.STARTING), Exited(Exit(code=1), None, words), POLICY)
        assert situation.state is expected


def test_a_lost_port_is_waited_for() -> None:
    """Only by an engine that is to run, and only where the port was the reason."""
    lost = at(S.FAILED, error_code="port_in_use")
    assert decide(11.0, lost, PortFree(), POLICY).state is S.STARTING
    moved = decide(11.0, lost, PortMoved(8710, 8711, 30.0), POLICY)
    assert (moved.state, moved.evidence) == (S.STARTING, {"old_port": 8710, "new_port": 8711})
    assert moved.cause == "Port 8710 was still in use after 30 s; moved to port 8711."
    assert decide(11.0, replace(lost, wanted="stopped"), PortFree(), POLICY).state is S.FAILED
    assert decide(11.0, replace(lost, error_code="kv_memory"), PortFree(), POLICY).state is S.FAILED
