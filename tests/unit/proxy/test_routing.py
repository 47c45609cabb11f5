"""Which engine serves a request, and when waiting makes sense."""

from __future__ import annotations

import pytest

from app.proxy.routing import SETTLED_AFTER_SECONDS, Choice, Refuse, Serve, Wait, choose
from app.supervisor.states import EngineState
from app.supervisor.status import EngineStatus
from tests.integration.door_rig import engine

NOW = 1000.0


def choice(*engines: EngineStatus, busy: dict[str, int] | None = None, avoid: dict[str, float] | None = None) -> Choice:
    return choose(engines, lambda name: (busy or {}).get(name, 0), NOW, avoid or {})


def test_the_least_busy_ready_engine_serves() -> None:
    """Requests in flight decide; equal ones go by name, so that the choice is the same every time."""
    a, b = engine(1, name="a"), engine(2, name="b")
    assert choice(a, b, busy={"a": 3, "b": 2}) == Serve("b", "http://127.0.0.1:2")
    assert choice(b, a) == Serve("a", "http://127.0.0.1:1")


@pytest.mark.parametrize("state", [state for state in EngineState if state is not EngineState.READY])
def test_nothing_is_sent_to_an_engine_that_is_not_ready(state: EngineState) -> None:
    """Stalled and draining engines get no new requests either."""
    assert not isinstance(choice(engine(state=state)), Serve)
    assert choice(engine(1, state, name="a"), engine(2, name="b"), busy={"b": 99}) == Serve("b", "http://127.0.0.1:2")


@pytest.mark.parametrize(
    "state",
    [EngineState.STARTING, EngineState.BACKOFF, EngineState.DRAINING, EngineState.STOPPING, EngineState.STALLED],
)
def test_waiting_makes_sense_while_an_engine_may_come_back(state: EngineState) -> None:
    """One engine on its way is enough, whatever the others do."""
    failed = engine(state=EngineState.FAILED, name="z", cause="No memory.")
    assert choice(failed, engine(state=state, cause="Because.")) == Wait(f"Engine main-1 is {state.value}: Because.")


@pytest.mark.parametrize("state", [EngineState.FAILED, EngineState.STOPPED])
def test_an_engine_that_stays_away_is_not_waited_for(state: EngineState) -> None:
    """Its own sentence is the answer."""
    assert choice(engine(state=state, cause="It was stopped.")) == Refuse(
        f"engine_{state.value}", f"Engine main-1 is {state.value}: It was stopped."
    )


def test_a_stop_that_just_happened_may_be_part_of_a_restart() -> None:
    """Stopped for less than the settling time: look again when it is over."""
    stopped = engine(state=EngineState.STOPPED, since=NOW - 0.25)
    assert choice(stopped) == Wait("Engine main-1 is stopped.", SETTLED_AFTER_SECONDS - 0.25)


def test_an_engine_that_took_no_connection_is_left_alone_for_a_moment() -> None:
    """Then it is tried again; meanwhile another serves."""
    a, b = engine(1, name="a"), engine(2, name="b")
    assert choice(a, b, busy={"b": 9}, avoid={"a": NOW + 0.5}) == Serve("b", "http://127.0.0.1:2")
    assert choice(a, avoid={"a": NOW + 0.5}) == Wait("Engine a takes no connection.", 0.5)
    assert isinstance(choice(a, avoid={"a": NOW - 0.1}), Serve)


def test_a_deck_without_engines_refuses() -> None:
    """There is nothing to wait for."""
    assert choice() == Refuse("no_engine", "The deck has no engine.")
