"""Pages are never given twice, never lost, and come in few runs where they can."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from engine.page_arena import PageArena, Run, page_bytes, pages_of

STEPS = st.lists(st.tuples(st.booleans(), st.integers(0, 12)), max_size=60)


@given(pages=st.integers(0, 40), steps=STEPS)
def test_pages_agree_with_a_set(pages: int, steps: list[tuple[bool, int]]) -> None:
    """Whatever is taken and given back: no page twice, none beyond the arena, as many free as the set has."""
    arena = PageArena(pages)
    free = set(range(pages))
    slots: list[tuple[Run, ...]] = []
    for takes, number in steps:
        if takes:
            runs = arena.take(number)
            assert (runs is None) == (number > len(free))
            taken = [page for run in runs or () for page in range(run.first, run.first + run.pages)]
            assert len(taken) == (0 if runs is None else number)
            assert free.issuperset(taken)
            assert len(set(taken)) == len(taken)
            free.difference_update(taken)
            slots += [runs] if runs else []
        elif slots:
            runs = slots.pop(number % len(slots))
            arena.give(runs)
            free.update(page for run in runs for page in range(run.first, run.first + run.pages))
        assert arena.free == len(free)


def test_neighbours_are_joined_again() -> None:
    """What was cut up comes back as one run, so that large slots do not stay in pieces for ever."""
    arena = PageArena(30)
    slots = [arena.take(3) for _ in range(10)]
    for number in (1, 0, 3, 2, 4, 9, 7, 8, 5, 6):
        arena.give(slots[number] or ())
    assert arena.take(30) == (Run(0, 30),)


def test_a_token_slot_is_a_whole_number_of_pages() -> None:
    """Pages of at most 128 KiB that waste at most a machine page each."""
    for slot in (393_216, 3_200_000, 150_000, 4_096, 100):
        page = page_bytes(slot, 52_000_000)
        assert page <= 131_072
        assert page % 4_096 == 0
        assert pages_of(slot, page) * page - slot < 4_096 * pages_of(slot, page)


def test_without_attention_the_state_decides() -> None:
    """Linear layers alone: there are no token slots to measure."""
    assert page_bytes(0, 1_000_000) <= 131_072
