"""Boundaries grow old, against a list that is looked through each time."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from engine.ghosts import STALE_ENTRIES, Boundaries, Record
from engine.policies.reuse import BINS, EDGES, bin_of

STEPS = st.lists(
    st.tuples(st.sampled_from(["set", "pop", "wait"]), st.integers(0, 5), st.floats(0.0, 100_000.0)), max_size=60
)


@dataclass
class Known:
    """One boundary, as the list has it."""

    name: bytes
    record: Record
    age_bin: int = 0


def record(at: float, klass: int = 0) -> Record:
    return Record(at, klass, 1, 0)


@given(STEPS, st.integers(1, 6))
def test_each_boundary_is_told_of_once_in_each_bin_that_it_reaches_unused(
    steps: list[tuple[str, int, float]], most: int
) -> None:
    """Those that were used, replaced or forgotten meanwhile are not."""
    told: Counter[tuple[int, int]] = Counter()
    boundaries = Boundaries(lambda klass, age_bin: told.update([(klass, age_bin)]), most)
    expected: Counter[tuple[int, int]] = Counter()
    known: list[Known] = []
    now = 0.0
    for what, number, seconds in steps:
        name = bytes([number])
        if what == "wait":
            now += seconds
            boundaries.let_age(now)
            for one in known:
                until = max((at for at in range(BINS) if one.record.at + EDGES[at] <= now), default=0)
                expected.update((one.record.klass, at) for at in range(one.age_bin + 1, until + 1))
                one.age_bin = max(until, one.age_bin)
        else:
            known = [one for one in known if one.name != name]
            if what == "pop":
                boundaries.pop(name)
            else:
                known.append(Known(name, record(now, number)))
                boundaries.set(name, known[-1].record)
                known = known[-most:]
    assert told == expected


def test_one_of_an_earlier_run_is_told_of_from_its_age_on() -> None:
    """How it got there was seen by nobody."""
    told: list[int] = []
    boundaries = Boundaries(lambda _, age_bin: told.append(age_bin))
    boundaries.set(b"old", record(-1_000.0), bin_of(1_000.0))
    boundaries.let_age(0.0)
    assert told == []
    boundaries.let_age(EDGES[bin_of(1_000.0) + 1] - 1_000.0)
    assert told == [bin_of(1_000.0) + 1]


def test_what_was_used_leaves_nothing_behind() -> None:
    """However many sessions come and go, no more is kept than there are boundaries, and a few."""
    boundaries = Boundaries(lambda *_: None)
    for number in range(50 * STALE_ENTRIES):
        name = number.to_bytes(4, "big")
        boundaries.set(name, record(float(number)))
        boundaries.let_age(float(number))
        boundaries.pop(name)
    assert sum(map(len, boundaries._waiting)) <= STALE_ENTRIES + 1
