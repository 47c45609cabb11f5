"""What becomes of the contents of a pool that has another size now."""

from __future__ import annotations

import time
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from engine.residency_index import Entry, IndexFile, fit


def entry(slot: int, name: str, rank: int, piece: int = 0, pieces: int = 1) -> Entry:
    return Entry(slot, name.encode(), 1, 100, None, rank, piece, pieces)


def test_the_most_valuable_stay_and_move_only_if_they_must() -> None:
    """Superseded ones have ranks below zero and go first."""
    found = [entry(0, "a", 5), entry(1, "b", -90), entry(7, "c", 9), entry(3, "d", 7)]
    fitted = fit(found, 3)
    assert [one.block_hash for one in fitted.kept] == [b"a"]
    assert {(move.entry.block_hash, move.target) for move in fitted.moves} == {(b"c", 1), (b"d", 2)}
    assert [one.block_hash for one in fitted.dropped] == [b"b"]


def test_of_two_copies_one_stays() -> None:
    """A process was killed after it had copied a slot, before it forgot the old one."""
    fitted = fit([entry(0, "a", 5), entry(9, "a", 5)], 4)
    assert len(fitted.kept) + len(fitted.moves) == 1
    assert len(fitted.dropped) == 1


def test_a_block_in_several_slots_is_whole_or_gone() -> None:
    """One missing piece makes the others useless."""
    whole = [entry(slot, "w", 3, piece, 3) for piece, slot in enumerate((0, 5, 2))]
    part = [entry(slot, "p", 9, piece, 3) for piece, slot in enumerate((1, 3))]
    fitted = fit([*whole, *part], 4)
    assert {one.block_hash for one in fitted.dropped} == {b"p"}
    assert sorted(one.slot for one in fitted.kept) == [0, 2]
    assert [(move.entry.piece, move.target) for move in fitted.moves] == [(1, 1)]


def test_ranks_are_times(tmp_path: Path) -> None:
    """Of a layout that keeps times, a rank tells when a slot was used; many at once still have an order."""
    index = IndexFile(tmp_path / "a.index", 4)
    index.commit(0, b"a", 1, 100, None)
    time.sleep(0.002)  # that time passes is what is tried
    before = time.time_ns()
    index.used([1, 2])
    index.commit(1, b"b", 1, 100, None)
    first, second = (entry.rank for entry in index.entries(1))
    index.close()
    assert before - 10**9 < first < before < second < time.time_ns() + 10


@given(
    slots=st.integers(0, 12),
    found=st.lists(st.tuples(st.integers(0, 19), st.integers(-50, 50)), max_size=20, unique_by=lambda one: one[0]),
)
def test_nobody_moves_onto_anybody(slots: int, found: list[tuple[int, int]]) -> None:
    """Targets are free, inside and different; as much is kept as fits; nothing kept is worth less than what went."""
    entries = [entry(slot, f"block {slot}", rank) for slot, rank in found]
    fitted = fit(entries, slots)
    stays = [one.slot for one in fitted.kept] + [move.target for move in fitted.moves]
    assert len(set(stays)) == len(stays) == min(slots, len(entries))
    assert all(0 <= slot < slots for slot in stays)
    kept = [one.rank for one in fitted.kept] + [move.entry.rank for move in fitted.moves]
    assert not fitted.dropped or not kept or min(kept) >= max(one.rank for one in fitted.dropped)
