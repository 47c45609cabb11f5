"""Samples on a grid."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.derive.lines import KINDS
from app.derive.points import MOST_POINTS, Gain, Point, Track, drawing, gained, gains, per_minute
from app.scrape.names import SeriesKey

NOW = 1_800_000_001.3
WINDOWS = {"5m": 300, "1h": 3600, "3h": 10800, "6h": 21600, "24h": 86400, "7d": 604800, "15d": 1296000}


def point(at: float, total: float) -> Point:
    return Point(at, total, total)


@pytest.mark.parametrize("window", WINDOWS.values(), ids=WINDOWS.keys())
def test_every_window_is_covered_by_some_hundred_points(window: float) -> None:
    """The grid covers the window, reaches now, and is not finer than a chart can show."""
    drawn = drawing(window, NOW, 2.0)
    assert 30 <= drawn.grid.count <= MOST_POINTS + 2
    assert drawn.grid.from_ <= NOW - window
    assert drawn.grid.ends[-1] == NOW
    assert drawn.by_minute == (window > 3 * 3600)


@given(st.floats(1, 1_296_000), st.floats(0.5, 60), st.floats(1.7e9, 1.9e9))
def test_grid_rises_and_ends_now(window: float, beat: float, now: float) -> None:
    """Any window and beat: times rise strictly, and a bucket holds more than one beat."""
    drawn = drawing(window, now, beat)
    ends = drawn.grid.ends
    assert all(a < b for a, b in itertools.pairwise(ends))
    assert drawn.grid.step >= 2 * beat or drawn.by_minute


def test_edges_stand_still_while_time_goes_on() -> None:
    """A point that was drawn stays where it is at the next refresh."""
    first, second = drawing(3600, 1_800_000_000.0, 2.0), drawing(3600, 1_800_000_004.0, 2.0)
    assert set(second.grid.ends[:-2]) <= set(first.grid.ends) | {first.grid.from_ + first.grid.step * first.grid.count}


def test_holes_are_none_and_what_came_in_them_is_told_after() -> None:
    """No sample, no value; the counter itself bridges the hole."""
    track = Track({0: point(12, 120), 3: point(42, 200)}, before=point(2, 100))
    assert gains(track, 4) == [Gain(20, 10), None, None, Gain(80, 30)]
    assert per_minute(gains(track, 4)) == [120, None, None, 160]


def test_first_sample_of_all_has_gained_nothing() -> None:
    """What a counter held when it was first met belongs to no bucket."""
    assert gains(Track({1: point(10, 5000)}), 2) == [None, Gain(0, 0)]


def test_smoothing_looks_back_but_not_into_holes() -> None:
    """A bucket sums the ones before it; where there is no sample it stays empty."""
    key = SeriesKey("x")
    track = Track({0: point(1, 10), 1: point(2, 30), 3: point(4, 35)}, before=point(0, 0))
    assert [found and found[key] for found in gained({key: track}, 4, 2)] == [10, 30, None, 5]


def test_token_origin_chart_stacks_to_one_and_leaves_gaps() -> None:
    """Four shares that add up to 1 where tokens flowed; None where none did or nothing is known."""

    def source(name: str, totals: dict[int, float]) -> tuple[SeriesKey, Track]:
        buckets = {index: point(float(index), total) for index, total in totals.items()}
        return SeriesKey("prompt_tokens_by_source", (("source", name),)), Track(buckets, point(-1, 0))

    tracks = dict(
        [
            source("local_cache_hit", {0: 50, 1: 50, 3: 150}),
            source("external_kv_transfer", {0: 25, 1: 25, 3: 25}),
            source("local_compute", {0: 25, 1: 25, 3: 125}),
        ]
    )
    lines = {line.key: line.values for line in KINDS["token-origin"].draw([tracks], 4, 1)}
    assert lines["vram"] == [0.5, None, None, 0.5]
    assert lines["host"] == [0.25, None, None, 0]
    assert lines["recomputed"] == [0.25, None, None, 0.5]
    assert list(lines) == ["vram", "host", "avoidable", "recomputed"]


def test_several_engines_are_added_up() -> None:
    """Requests add up over engines; the engine that is down leaves the other's values standing."""
    key = SeriesKey("requests_running")
    one, other = Track({0: Point(1, 2, 2), 1: Point(2, 3, 3)}), Track({0: Point(1, 5, 5)})
    lines = {line.key: line.values for line in KINDS["load"].draw([{key: one}, {key: other}], 3, 1)}
    assert lines["running"] == [7, 3, None]
    assert lines["preemptions"] == [None, None, None]


def test_memory_weighs_pools_by_their_bytes() -> None:
    """Half of a 3 GB pool and all of a 1 GB pool are 62.5 % of the host tier."""

    def gauge(name: str, pool: str, value: float) -> tuple[SeriesKey, Track]:
        labels = (("pool", pool),) if name == "host_bytes" else (("group", "all"), ("pool", pool))
        return SeriesKey(name, labels), Track({0: Point(1, value, value)})

    tracks = dict(
        [
            *(gauge("host_bytes", "token", 3e9), gauge("host_bytes", "state", 1e9)),
            *(gauge("host_slots", "token", 100), gauge("host_slots_used", "token", 50)),
            *(gauge("host_slots", "state", 8), gauge("host_slots_used", "state", 8)),
        ]
    )
    lines = {line.key: line.values for line in KINDS["memory"].draw([tracks], 1, 1)}
    assert lines["host"] == [0.625]
    assert lines["kv"] == [None]
    slots = {line.key: line.values for line in KINDS["slots"].draw([tracks], 1, 1)}
    assert slots == {"token-slots": [0.5], "state-slots": [1.0]}
