"""How long a drain waits, and how long drains and starts take, from what was seen."""

from __future__ import annotations

import pytest

from app.rollouts.expect import Lengths, Observed, StateChange, drain_limit, expected_seconds, observed, unseen
from app.supervisor.states import EngineState as S


@pytest.mark.parametrize(
    ("asked", "fleet", "p99", "seconds"),
    [
        (5.0, 90.0, 100.0, 5.0),
        (None, 90.0, 100.0, 90.0),
        (None, None, 100.0, 200.0),
        (None, None, 0.4, 30.0),
        (None, None, 4000.0, 1800.0),
        (None, None, None, 300.0),
    ],
)
def test_the_drain_waits_for_twice_what_requests_took(
    asked: float | None, fleet: float | None, p99: float | None, seconds: float
) -> None:
    """What was asked for wins, then the fleet's own; an observed length is kept within 30 s and 30 min."""
    limit = drain_limit(asked, fleet, Lengths(1000, p99), 300.0)
    assert limit.seconds == seconds
    assert limit.why.text


def test_the_length_that_was_observed_is_told() -> None:
    """The number that the limit was made from stands beside it."""
    assert "within 100 s" in drain_limit(None, None, Lengths(1000, 100.0), 300.0).why.text


def test_few_requests_say_nothing_about_the_next_one() -> None:
    """A first minute of short ones must not cut a long one."""
    limit = drain_limit(None, None, Lengths(20, 0.4), 300.0)
    assert limit.seconds == 300.0
    assert "Too few requests" in limit.why.text


def life(at: float, *, drain: float, stop: float, start: float) -> list[StateChange]:
    return [
        StateChange(at, S.READY, S.DRAINING),
        StateChange(at + drain, S.DRAINING, S.STOPPING),
        StateChange(at + drain + stop, S.STOPPING, S.STOPPED),
        StateChange(at + drain + stop, S.STOPPED, S.STARTING),
        StateChange(at + drain + stop + start, S.STARTING, S.READY),
    ]


def test_medians_of_the_newest_moves() -> None:
    """Over all engines of the fleet; one slow start among many does not count."""
    one = [*life(0, drain=4, stop=1, start=30), *life(100, drain=2, stop=1, start=28)]
    other = life(50, drain=3, stop=2, start=300)
    assert observed([one, other]) == Observed(3, 1, 30)


def test_old_moves_are_forgotten() -> None:
    """Five of each are looked at."""
    slow = [change for at in range(0, 900, 300) for change in life(at, drain=1, stop=1, start=200)]
    quick = [change for at in range(2000, 2500, 100) for change in life(at, drain=1, stop=1, start=20)]
    assert observed([[*slow, *quick]]).start_seconds == 20


def test_a_found_engine_is_no_start() -> None:
    """A deck that finds an engine running asks it once; that says nothing about loading."""
    found = [StateChange(0, S.READY, S.STARTING), StateChange(0.1, S.STARTING, S.READY)]
    assert observed([found]) == Observed(None, None, None)


def test_a_failed_start_is_none() -> None:
    """Only a start that came to serve tells how long one takes."""
    assert (
        observed([[StateChange(0, S.STOPPED, S.STARTING), StateChange(9, S.STARTING, S.FAILED)]]).start_seconds is None
    )


def test_expected_time_is_unknown_until_a_start_was_seen() -> None:
    """Else one engine after the other."""
    assert expected_seconds(Observed(3, 1, None), 2) is None
    assert expected_seconds(Observed(3, 1, 30), 2) == 68
    assert expected_seconds(Observed(None, None, 30), 1) == 30
    assert "at least" in unseen(Observed(None, 1, 30)).text
    assert "No start" in unseen(Observed(3, 1, None)).text
    assert not unseen(Observed(3, 1, 30)).text
