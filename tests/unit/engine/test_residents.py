"""Counting the sessions that could come back, without the engine's steps waiting for it."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from engine.manager import TierManager
from engine.residents import LEAST_SECONDS, MOST_SECONDS, SHARE, RestorableCount, count_restorable
from tests.unit.engine.chains import Clock, layout, run


class StepClock:
    """Each look at it takes a little."""

    def __init__(self, look_seconds: float) -> None:
        self.now = 1_000.0
        self._look_seconds = look_seconds

    def __call__(self) -> float:
        self.now += self._look_seconds
        return self.now


def filled(prompts: Sequence[str]) -> TierManager:
    manager = TierManager(layout(5_000, 5_000), clock=Clock())
    for number, prompt in enumerate(prompts):
        run(manager, f"r{number}", prompt)
    return manager


def test_many_sessions_are_counted_a_little_at_a_time() -> None:
    """No call takes longer than its share of the time that has passed, and the count is right in the end."""
    manager = filled([f"{number:03}" + "x" * 12 for number in range(300)])
    clock = StepClock(0.004)
    count = RestorableCount(manager._pools, manager._layout, clock)
    count.outdated()
    longest, calls = 0.0, 0
    while count.value() != 300:
        began = clock.now
        count.value()
        longest = max(longest, clock.now - began)
        clock.now += 5.0
        calls += 1
    assert longest <= MOST_SECONDS + 0.013, "the look at the clock that ends it included"
    assert 1 < calls < 50


def test_steps_in_quick_succession_do_not_count_at_all() -> None:
    """What is left of the share is too little to begin with."""
    manager = filled(["abc"])
    clock = StepClock(0.0)
    count = RestorableCount(manager._pools, manager._layout, clock)
    count.outdated()
    assert count.value() == 1
    clock.now -= (MOST_SECONDS / SHARE) - LEAST_SECONDS / SHARE / 2
    run(manager, "more", "xyz")
    count.outdated()
    assert count.value() == 1


@given(st.lists(st.text("ab", min_size=2, max_size=6), max_size=8))
def test_the_count_is_that_of_prompts_that_no_other_goes_on_from(prompts: list[str]) -> None:
    """Each prompt keeps a state before its last block: distinct ones of these, less those on the way to others."""
    manager = filled(prompts)
    ends = {prompt[:-1] for prompt in prompts}
    expected = sum(not any(other != end and other.startswith(end) for other in ends) for end in ends)
    assert [*count_restorable(manager._pools, manager._layout)][-1] == expected
