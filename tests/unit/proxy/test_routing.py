"""Which engine serves a request, and when waiting makes sense."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.errors import InvalidInput, NotFound
from app.proxy.routing import (
    SETTLED_AFTER_SECONDS,
    SPILL_MARGIN,
    Choice,
    Refuse,
    Serve,
    Session,
    Wait,
    choose,
    serving,
)
from app.supervisor.states import EngineState
from app.supervisor.status import EngineStatus
from tests.integration.door_rig import engine

NOW = 1000.0
A, B = engine(1, name="a"), engine(2, name="b")


def choice(*engines: EngineStatus, busy: dict[str, int] | None = None, avoid: dict[str, float] | None = None) -> Choice:
    return choose(engines, lambda name: (busy or {}).get(name, 0), NOW, avoid or {})


def test_the_least_busy_ready_engine_serves() -> None:
    """Requests in flight decide; equal ones go by name, so that the choice is the same every time."""
    a, b = engine(1, name="a"), engine(2, name="b")
    assert choice(a, b, busy={"a": 3, "b": 2}) == Serve(B)
    assert choice(b, a) == Serve(A)


@pytest.mark.parametrize("state", [state for state in EngineState if state is not EngineState.READY])
def test_nothing_is_sent_to_an_engine_that_is_not_ready(state: EngineState) -> None:
    """Stalled and draining engines get no new requests either."""
    assert not isinstance(choice(engine(state=state)), Serve)
    assert choice(engine(1, state, name="a"), engine(2, name="b"), busy={"b": 99}) == Serve(B)


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
    assert choice(a, b, busy={"b": 9}, avoid={"a": NOW + 0.5}) == Serve(B)
    assert choice(a, avoid={"a": NOW + 0.5}) == Wait("Engine a takes no connection.", 0.5)
    assert isinstance(choice(a, avoid={"a": NOW - 0.1}), Serve)


def test_a_deck_without_engines_refuses() -> None:
    """There is nothing to wait for."""
    assert choice() == Refuse("no_engine", "The deck has no engine.")


@pytest.mark.parametrize("state", list(EngineState))
def test_an_engine_that_is_held_is_waited_for(state: EngineState) -> None:
    """Whoever holds it brings it back, whatever state it passes through; others serve meanwhile."""
    held = engine(state=state, name="a", held="Rollout 1 tests engine a.")
    assert choice(held) == Wait("Rollout 1 tests engine a.")
    assert choice(held, engine(2, name="b"), busy={"b": 99}) == Serve(B)


HERE = Session("s", "a", lambda _: 0)
NEW = Session("s", None, lambda name: {"a": 5, "b": 2}.get(name, 0))


def sticky(*engines: EngineStatus, session: Session, busy: dict[str, int] | None = None) -> EngineStatus:
    found = choose(engines, lambda name: (busy or {}).get(name, 0), NOW, {}, session)
    assert isinstance(found, Serve)
    return found.engine


def test_a_session_goes_home_though_others_are_idle() -> None:
    """The cache is where the session was."""
    assert sticky(A, B, session=HERE, busy={"a": SPILL_MARGIN}) == A


def test_a_session_leaves_a_home_that_is_overrun() -> None:
    """By far, not by one request; and it is measured against the idlest."""
    assert sticky(A, B, session=HERE, busy={"a": SPILL_MARGIN + 1}) == B
    assert sticky(A, B, session=HERE, busy={"a": SPILL_MARGIN + 1, "b": 1}) == A


def test_a_session_has_one_stand_in_while_its_home_is_away() -> None:
    """Every turn goes to the same other engine, whatever the load, and home again when that is back."""
    others = [engine(number, name=f"e{number}") for number in range(5)]
    away = engine(1, EngineState.STARTING, name="a")
    stand_ins = {sticky(away, *others, session=HERE, busy={f"e{busy}": 3}).name for busy in range(5)}
    assert len(stand_ins) == 1
    assert sticky(A, *others, session=HERE) == A
    assert len({sticky(away, *others, session=Session(f"s{n}", "a", lambda _: 0)).name for n in range(40)}) == 5


def test_a_new_session_goes_where_there_is_room() -> None:
    """Fewest requests, then fewest sessions at home; one whose engine is gone is new."""
    assert sticky(A, B, session=NEW, busy={"b": 1}) == A
    assert sticky(A, B, session=NEW) == B
    assert sticky(A, B, session=Session("s", "gone", NEW.at_home)) == B


def fleet(name: str, model: str, *engines: EngineStatus) -> list[EngineStatus]:
    return [replace(one, fleet=name, served_model_name=model) for one in engines]


def test_a_model_is_served_by_its_fleet() -> None:
    """Or by all fleets that have it."""
    small, large, twin = fleet("f", "small", A), fleet("g", "large", B), fleet("h", "large", engine(3, name="c"))
    assert serving([*small, *large], "large", None) == large
    assert serving([*small, *large, *twin], "large", None) == [*large, *twin]
    assert serving([*small, *large], None, "b") == large


def test_one_fleet_gets_everything() -> None:
    """Its engine knows names that the deck does not, and answers for itself."""
    only = fleet("f", "small", A, B)
    assert serving(only, "an-adapter", None) == only and serving(only, None, None) == only


def test_a_model_that_no_fleet_serves_is_named_with_those_that_are() -> None:
    """The client can put it right."""
    engines = [*fleet("f", "small", A), *fleet("g", "large", B)]
    with pytest.raises(NotFound, match="'tiny'; there are 'large', 'small'") as missing:
        serving(engines, "tiny", None)
    assert missing.value.path == "model" and missing.value.code == "model_not_found"
    with pytest.raises(InvalidInput, match="Name the model"):
        serving(engines, None, None)
