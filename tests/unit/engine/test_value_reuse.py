"""What is learned of reuse, and how it decides."""

from __future__ import annotations

from itertools import pairwise

import pytest

from engine.policies.reuse import BINS, EDGES, STEP_ENDS, STEPS, ReuseIndex, bin_of, klass_of, step_of
from engine.policies.value import ValuePolicy
from engine.prefix_tree import Block, State

ONCE, OFTEN = klass_of(False, 1, 5_000, 0), klass_of(False, 9, 5_000, 0)


def test_bins_double_and_have_no_end() -> None:
    """From 8 seconds on; the last one takes all that is older."""
    assert [bin_of(age) for age in (0, 7.9, 8, 15.9, 16, 31, 1e12)] == [0, 0, 1, 1, 2, 2, BINS - 1]
    assert all(bin_of(EDGES[at]) == at for at in range(1, BINS))


def test_steps_are_parts_of_bins() -> None:
    """Each ends where the next one begins, and the edges of bins are edges of steps."""
    assert step_of(0) == step_of(STEP_ENDS[0] - 0.1) == 0
    assert all(step_of(end * 0.999) == at and step_of(end * 1.001) == at + 1 for at, end in enumerate(STEP_ENDS[:-1]))
    assert all(step_of(edge * 0.999) < step_of(edge * 1.001) for edge in EDGES[1:-2])
    assert step_of(1e12) == STEPS - 1


def test_before_anything_is_known_older_means_less() -> None:
    """The first guess: the longer not used, the less likely to be used."""
    index = ReuseIndex().index(ONCE)
    assert all(later <= earlier for earlier, later in pairwise(index[step_of(EDGES[5]) :]))
    assert index[-1] > 0


def test_only_what_vram_had_lost_counts() -> None:
    """A class that is always used again while VRAM still has it is worth less than one that is not."""
    index = ReuseIndex()
    for _ in range(200):
        for klass, lost in ((ONCE, False), (OFTEN, True)):
            index.request()
            index.made(klass)
            for age_bin in range(1, bin_of(1_000.0) + 1):
                index.aged(klass, age_bin)
            index.used(klass, 1_000.0, lost)
    assert index.index(OFTEN)[0] > 5 * index.index(ONCE)[0]


def refreshed(index: ReuseIndex, klass: int) -> list[float]:
    """When it has had its turn once more."""
    for _ in range(100):
        index.request()
    return list(index.index(klass))


def test_what_is_young_says_nothing_about_what_is_old() -> None:
    """Only those that got to an age unused tell how likely it is to be used there."""
    index, day = ReuseIndex(), step_of(86_400.0)
    before = refreshed(index, ONCE)
    for _ in range(1_000):
        index.made(ONCE)
    assert refreshed(index, ONCE)[day] == pytest.approx(before[day])
    for age_bin in range(1, BINS):
        for _ in range(1_000):
            index.aged(ONCE, age_bin)
    assert refreshed(index, ONCE)[day] < before[day] / 3


def test_a_class_is_taken_to_be_like_its_kind_until_it_shows_what_it_is() -> None:
    """Junctions do not speak for the ends of sessions, nor the other way round."""
    index = ReuseIndex()
    shared, own = klass_of(True, 1, 5_000, 0), klass_of(False, 2, 90_000, 1)
    before = {klass: refreshed(index, klass)[0] for klass in (shared, own)}
    for _ in range(300):
        index.made(ONCE)
        index.used(ONCE, 1_000.0, lost=True)
    assert refreshed(index, own)[0] > 2 * before[own]
    assert refreshed(index, shared)[0] == pytest.approx(before[shared])


def test_what_was_learned_fades() -> None:
    """Habits change: after some thousand requests the new one rules."""
    index = ReuseIndex()
    for klass in (ONCE, OFTEN):
        for _ in range(3_000):
            index.request()
            for made in (ONCE, OFTEN):
                for age_bin in range(8 if made == klass else BINS):
                    index.aged(made, age_bin)
            index.used(klass, 1_000.0, True)
    at = step_of(600.0)
    assert index.index(OFTEN)[at] > 3 * index.index(ONCE)[at]


def test_counts_do_not_overflow() -> None:
    """Newer counts are larger, and scaled down in time."""
    index = ReuseIndex()
    for _ in range(200_000):
        index.request()
    index.made(ONCE)
    index.used(ONCE, 10.0, True)
    assert 0 < index.index(ONCE)[0] < 1
    assert max(max(by_bin) for counts in index.learned().classes.values() for by_bin in counts) == pytest.approx(1.0)


def state(name: bytes, last_used: float, klass: int = ONCE) -> State:
    return State(Block(name, None, 1_000, live=1), last_used, gain=1.0, klass=klass)


def test_the_victim_is_the_least_valuable_of_all_groups() -> None:
    """As a look at every single state would find it, whatever ages and classes."""
    densities = {bytes([number]): 1.0 + (number * 7) % 11 for number in range(60)}
    policy = ValuePolicy(lambda one: densities[one.block.block_hash])
    states = []
    for number in range(60):
        states.append(state(bytes([number]), 30.0 * number, (ONCE, OFTEN)[number % 2]))
        policy.add(states[-1])
    now = 30.0 * 60
    while states:
        victim = policy.victim(now)
        assert victim is not None
        scores = {
            one: policy.index.index(one.klass)[step_of(now - one.last_used)] * densities[one.block.block_hash]
            for one in states
        }
        assert scores[victim] == min(scores.values())
        policy.remove(victim)
        states.remove(victim)
    assert policy.victim(now) is None


def test_pinned_states_are_passed_over_and_come_back() -> None:
    """A running request's state is no victim however light, and is one later."""
    policy = ValuePolicy(lambda one: float(one.block.block_hash[0]))
    light, heavy = state(b"\x01", 0.0), state(b"\x09", 0.0)
    for one in (light, heavy):
        policy.add(one)
    light.holds = 1
    assert policy.victim(10.0) is heavy
    light.holds = 0
    assert policy.victim(10.0) is light
    heavy.holds = light.holds = 1
    assert policy.victim(10.0) is None
