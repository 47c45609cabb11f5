"""Counters across restarts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.derive.counters import Counter, ProcessStart, advance, from_zero, has_restarted


def follow(values: list[float], restarts: frozenset[int] = frozenset(), same: bool = False) -> list[Counter]:
    """The counter after each value; `restarts` are the indices before which the process restarted."""
    counter = Counter(values[0], values[0])
    seen = [counter]
    for index, value in enumerate(values[1:], start=1):
        if index in restarts:
            counter = from_zero({"x": counter})["x"]
        counter = advance(counter, value, same and index not in restarts).counter
        seen.append(counter)
    return seen


def test_reset_counts_all_of_the_new_value() -> None:
    """1000, 1400, restart, 50, 250 is 400 + 50 + 200 = 650, never -750 and never 250."""
    seen = follow([1000, 1400, 50, 250])
    assert seen[-1].total - seen[0].total == 650


def test_restart_that_ends_higher_is_counted_from_zero() -> None:
    """1000, restart, 1200 is 1200 new tokens, not 200: the start record tells what the values hide."""
    seen = follow([1000, 1200], restarts=frozenset({1}))
    assert seen[-1].total - seen[0].total == 1200


def test_fall_in_the_same_process_is_a_fault_and_adds_nothing() -> None:
    """A counter that goes back although its process did not restart is wrong data, not a reset."""
    step = advance(Counter(1000, 1000), 999, same_process=True)
    assert (step.fell, step.increase, step.counter) == (True, 0, Counter(999, 1000))
    assert advance(step.counter, 1009, same_process=True).counter.total == 1010


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (ProcessStart(100.0, 99.0), ProcessStart(100.01, 99.0), False),
        (ProcessStart(100.0, 99.0), ProcessStart(130.0, 129.0), True),
        (ProcessStart(None, 99.0), ProcessStart(None, 129.0), True),
        (ProcessStart(None, 99.0), ProcessStart(None, 99.2), False),
        (ProcessStart(100.0, None), ProcessStart(None, 129.0), None),
        (ProcessStart(), ProcessStart(), None),
        # The page's own record decides: an adopting deck may write down the start anew.
        (ProcessStart(100.0, 99.0), ProcessStart(100.0, 180.0), False),
    ],
)
def test_restart_is_seen_by_the_page_or_by_the_supervisor(
    old: ProcessStart, new: ProcessStart, expected: bool | None
) -> None:
    """Either record is enough; with neither nobody can tell."""
    assert has_restarted(old, new) is expected


runs = st.lists(st.lists(st.integers(0, 10_000), min_size=1, max_size=6), min_size=1, max_size=5)


@given(runs)
def test_total_is_the_sum_of_what_each_process_counted(increments: list[list[int]]) -> None:
    """With restarts known, the total is exactly what was counted, whatever the raw values look like."""
    values: list[float] = []
    restarts: set[int] = set()
    for process in increments:
        if values:
            restarts.add(len(values))
        raw = 0
        for increment in process:
            raw += increment
            values.append(raw)
    assert follow(values, frozenset(restarts))[-1].total == sum(sum(process) for process in increments)


@given(st.lists(st.floats(0, 1e12), min_size=1, max_size=30), st.booleans())
def test_total_never_falls(values: list[float], same: bool) -> None:
    """No sequence of readings makes an increase negative."""
    totals = [counter.total for counter in follow(values, same=same)]
    assert totals == sorted(totals)
