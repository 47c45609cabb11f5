"""The state machine: what gaps, restarts and idle times do to an alert."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.alerts.machine import Flip, Memory, step, switch_off
from app.alerts.rules import HostHitsLow, Observation

T0 = 1_700_000_000.0
RULE = HostHitsLow()


def seen(at: float, host: float, recomputed: float = 0.4, tokens: int = 100_000) -> Observation:
    return Observation(at, host, recomputed, tokens)


def gap(at: float, reason: str = "scrape of main-1 failed since 2026-01-01 14:02 UTC: timeout") -> Observation:
    return Observation(at, None, None, None, reason)


def idle(at: float, tokens: int = 0) -> Observation:
    return Observation(at, None, None, tokens)


def play(observations, rule: HostHitsLow = RULE, memory: Memory = Memory(), restart: bool = False):  # noqa: B008
    """Every look in turn; `restart` sends the memory through the database's JSON between any two."""
    flips: list[tuple[float, Flip]] = []
    for observation in observations:
        made = step(memory, rule.judge(observation), observation.at, rule.hold_seconds)
        memory = made.memory
        if restart:
            memory = Memory.from_json(json.loads(json.dumps(memory.to_json())))
        if made.flip is not None:
            flips.append((observation.at, made.flip))
    return memory, flips


def a01() -> list[Observation]:
    """One look a minute; the scrapes fail for twelve minutes, and what is down stays down."""
    before = [0.62, 0.60, 0.02, 0.01, 0.01]
    after = [0.01, 0.01, 0.58, 0.60, 0.61]
    looks = [seen(T0 + 60 * i, host) for i, host in enumerate(before)]
    looks += [gap(T0 + 60 * i) for i in range(5, 17)]
    return looks + [seen(T0 + 60 * (17 + i), host) for i, host in enumerate(after)]


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("below", [0.02, 0.05])
def test_a_data_gap_makes_neither_a_second_firing_nor_a_resolve(restart: bool, below: float):
    """One firing, one resolve, none of them in the gap, whether it fired before the gap or after."""
    _, flips = play(a01(), HostHitsLow(host_share_below=below), restart=restart)
    assert [flip.new for _, flip in flips] == ["firing", "ok"]
    fired_minute, resolved_minute = ((at - T0) / 60 for at, _ in flips)
    assert fired_minute == (4 if below == 0.05 else 18)
    assert resolved_minute == 21  # 0.58, 0.60, 0.61: two minutes of good looks


def test_a_deck_that_was_down_in_the_gap_goes_on_where_it_was():
    """No looks at all for twelve minutes count as little as looks without data."""
    memory, fired = play([seen(T0 + 60 * i, 0.01) for i in range(3)])
    later = T0 + 900
    _, flips = play([seen(later, 0.6), seen(later + 60, 0.6), seen(later + 120, 0.6)], memory=memory, restart=True)
    assert [flip.new for _, flip in fired] == ["firing"]
    assert [(at - later, flip.new) for at, flip in flips] == [(120, "ok")]


def test_a_firing_alert_says_that_it_still_fires_in_a_gap():
    """The page shows the alert and the missing data together."""
    memory, _ = play([seen(T0 + 60 * i, 0.01) for i in range(3)] + [gap(T0 + 180)])
    assert memory.state == "firing"
    assert memory.sentence.startswith("Still firing. No data: scrape of main-1 failed since")


def test_no_requests_idle_and_no_data_are_three_different_things():
    """Each has its own sentence; none has a share; none fires however long it lasts."""
    fresh, fresh_flips = play([idle(T0 + 10 * i) for i in range(400)])
    quiet, quiet_flips = play([seen(T0, 0.63, 0.1)] + [idle(T0 + 10 * i) for i in range(1, 400)])
    down, down_flips = play([gap(T0 + 10 * i) for i in range(400)])
    assert [fresh.state, quiet.state, down.state] == ["idle", "idle", "no_data"]
    assert fresh.sentence == "No requests yet."
    assert quiet.sentence.startswith("No input tokens in the last 5 min. Last seen: host 63.0 %")
    assert "at 2023-11-14 22:13 UTC" in quiet.sentence
    assert down.sentence.startswith("No data: scrape of main-1 failed since")
    assert fresh_flips == quiet_flips == down_flips == []
    assert all(memory.evidence["host_share"] is None for memory in (fresh, quiet, down))


def test_traffic_that_stops_does_not_resolve():
    """A firing alert needs good looks to end, not the absence of looks."""
    memory, _ = play([seen(T0 + 60 * i, 0.0) for i in range(3)])
    memory, flips = play([idle(T0 + 180 + 10 * i) for i in range(300)], memory=memory)
    assert flips == []
    assert memory.state == "firing"


def test_one_good_look_breaks_what_was_held():
    """A dip that comes back before the hold time is over is not an alert."""
    dips = [0.0, 0.0, 0.5, 0.0, 0.0, 0.5]
    _, flips = play([seen(T0 + 59 * i, host) for i, host in enumerate(dips)])
    assert flips == []


def test_bad_minutes_of_two_days_do_not_add_up():
    """What was held is forgotten an hour after the last verdict."""
    memory, _ = play([seen(T0, 0.0), seen(T0 + 80, 0.0)])
    assert memory.state == "pending"
    _, flips = play([seen(T0 + 86_400, 0.0), seen(T0 + 86_460, 0.0)], memory=memory)
    assert flips == []


def test_a_clock_that_jumps_back_counts_for_nothing():
    """Held time never falls and never grows by a jump."""
    memory, flips = play([seen(T0, 0.0), seen(T0 - 5000, 0.0), seen(T0 - 4990, 0.0)])
    assert memory.held_seconds == 10
    assert flips == []


def test_since_is_the_start_of_the_shown_state():
    """Looks that change nothing do not move it."""
    memory, _ = play([seen(T0, 0.5), seen(T0 + 10, 0.5), seen(T0 + 20, 0.5)])
    assert (memory.state, memory.since) == ("ok", T0)


def test_switching_a_firing_rule_off_tells_its_end_once():
    """Whoever was told of the firing is told that it ended, and why."""
    memory, _ = play([seen(T0 + 60 * i, 0.0) for i in range(3)])
    off = switch_off(memory)
    assert off.flip is not None
    assert (off.flip.new, off.flip.sentence) == ("ok", "The rule was switched off while it was firing.")
    assert switch_off(off.memory).flip is None


def test_an_older_decks_memory_is_readable():
    """Unknown fields are dropped, missing ones get their defaults."""
    memory = Memory.from_json({"is_firing": True, "of_the_future": 1})
    assert memory.is_firing
    assert memory.held_seconds == 0


looks = st.lists(
    st.tuples(
        st.floats(0, 400),
        st.one_of(
            st.none(),
            st.just(0),
            st.tuples(st.floats(0, 1), st.floats(0, 1), st.integers(0, 10**7)),
        ),
    ),
    max_size=60,
)


def observations_of(drawn) -> list[Observation]:
    at, made = T0, []
    for wait, what in drawn:
        at += wait
        if what is None:
            made.append(gap(at))
        elif what == 0:
            made.append(idle(at))
        else:
            made.append(Observation(at, *what))
    return made


@given(looks)
def test_firing_and_resolved_take_turns(drawn):
    """Never two firings without a resolve between, never a flip in a gap, the first is a firing."""
    observations = observations_of(drawn)
    _, flips = play(observations)
    assert all(flip.new == ("firing" if i % 2 == 0 else "ok") for i, (_, flip) in enumerate(flips))
    assert all(first.new == second.old for (_, first), (_, second) in pairwise(flips))
    verdict_times = {o.at for o in observations if RULE.judge(o).verdict in ("bad", "good")}
    assert all(at in verdict_times for at, _ in flips)


@given(looks)
def test_a_restart_between_any_two_looks_changes_nothing(drawn):
    """What is stored is all there is."""
    observations = observations_of(drawn)
    assert play(observations) == play(observations, restart=True)


@given(looks)
def test_no_flip_without_the_hold_time_of_watched_time(drawn):
    """Between two flips lie at least `hold_seconds`."""
    _, flips = play(observations_of(drawn))
    assert all(later - earlier >= RULE.hold_seconds for (earlier, _), (later, _) in pairwise(flips))
