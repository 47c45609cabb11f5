"""Which slots of another layout are kept, and where they go."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from engine.arena_ledger import ArenaRow
from engine.layout import HostLayout
from engine.page_arena import Run
from engine.residency_conversion import Conversion, Held, converted, entries_of, of_arena, of_split, rows_of
from engine.residency_index import Entry
from tests.unit.engine.chains import CHUNK
from tests.unit.engine.conversion_rig import (
    PAGE,
    STATE_BYTES,
    STATE_PAGES,
    TOKEN_BYTES,
    TOKEN_PAGES,
    Kind,
    layout_of,
)

CHAINS = ("abcdef", "abcxyz", "klm", "klmnop", "q")
HASHES = sorted({chain[:end] for chain in CHAINS for end in range(1, len(chain) + 1)})


def entry(slot: int, name: str, rank: int, ready: int = 1, pieces: int = 1) -> Entry:
    parent = name[:-1].encode() or None
    return Entry(slot, name.encode(), ready, len(name) * CHUNK, parent, rank, 0, pieces)


def row(page: int, name: str, used_at: float, is_state: bool = False, superseded: bool = False) -> ArenaRow:
    pages, ready = (STATE_PAGES, 3) if is_state else (TOKEN_PAGES, 1)
    parent = name[:-1].encode() or None
    runs = (Run(page, pages),)
    return ArenaRow(is_state, name.encode(), parent, len(name) * CHUNK, ready, runs, used_at, superseded=superseded)


def kept(conversion: Conversion, pool: str) -> set[str]:
    return {target.held.block_hash.decode() for target in conversion.targets if target.held.pool == pool}


def held_by_a_split(tokens: list[Entry], states: list[Entry]) -> list[Held]:
    return of_split(layout_of("split", 30, 30), {"token": tokens, "state": states})


def test_a_superseded_state_goes_before_an_older_one() -> None:
    """And with it the blocks that only it needs."""
    tokens = [entry(number, name, 9) for number, name in enumerate(("a", "ab", "k", "kl"))]
    held = held_by_a_split(tokens, [entry(0, "ab", -50, 3), entry(1, "kl", 10, 3)])
    found = converted(held, layout_of("arena", 2, 1))
    assert kept(found, "state") == {"kl"}
    assert kept(found, "token") == {"k", "kl"}
    assert found.dropped == 3


def test_what_two_sessions_share_is_kept_once() -> None:
    """The second one needs room for its own blocks alone."""
    tokens = [entry(number, name, 9) for number, name in enumerate(("a", "ab", "abc", "abx"))]
    held = held_by_a_split(tokens, [entry(0, "abc", 1, 3), entry(1, "abx", 2, 3)])
    assert kept(converted(held, layout_of("arena", 4, 2)), "state") == {"abc", "abx"}
    assert kept(converted(held, layout_of("arena", 3, 2)), "state") == {"abx"}


def test_of_two_copies_the_better_one_stays() -> None:
    """A process was killed after it had copied a slot, before it forgot the old one."""
    tokens = [entry(0, "a", 5), entry(7, "a", 5)]
    found = converted(held_by_a_split(tokens, [entry(0, "a", 3, 3), entry(1, "a", 4, 3)]), layout_of("arena", 9, 9))
    assert [target.held.rank for target in found.targets if target.held.pool == "state"] == [4]
    assert len(found.targets) == 2


def test_what_is_in_pieces_or_unknown_is_not_kept() -> None:
    """A block over several slots, parts of a group that is not there."""
    tokens = [entry(0, "a", 5, pieces=2), entry(1, "k", 5, ready=5), entry(2, "q", 5)]
    states = [entry(number, name, 5, 3) for number, name in enumerate("akq")]
    assert kept(converted(held_by_a_split(tokens, states), layout_of("arena", 9, 9)), "token") == {"q"}


def test_a_state_inside_a_block_is_kept_with_the_blocks_before_it() -> None:
    """It needs those that end before it, and no other one."""
    inside = Entry(0, b"ab+", 3, 2 * CHUNK + 16, b"ab", 9)
    behind = Entry(1, b"abc+", 3, 3 * CHUNK + 16, b"abc", 9)
    tokens = [entry(0, "a", 5), entry(1, "ab", 5)]
    found = converted(held_by_a_split(tokens, [inside, behind]), layout_of("arena", 9, 9))
    assert kept(found, "state") == {"ab+"}
    assert kept(found, "token") == {"a", "ab"}


def test_times_and_order_go_both_ways() -> None:
    """Blocks of a split were used when the newest state behind them was, the last one of a chain a little earlier."""
    second = 10**9
    rows = [row(0, "a", 0), row(1, "ab", 0), row(2, "a", 20.0, True, True), row(4, "ab", 40.0, True)]
    layout = layout_of("split", 9, 9)
    found = converted(of_arena(layout, rows, PAGE), layout)
    blocks, states = entries_of(found, "token"), entries_of(found, "state")
    assert [one.block_hash for one in sorted(blocks, key=lambda one: one.rank)] == [b"ab", b"a"]
    assert [round(one.rank / second, 3) for one in blocks] == [40, 40]
    assert [(one.block_hash, round(one.rank / second)) for one in states] == [(b"a", -20), (b"ab", 40)]
    arena = layout_of("arena", 9, 9)
    back = rows_of(converted(of_split(layout, {"token": blocks, "state": states}), arena), arena)
    assert [(one.is_state, one.block_hash, one.superseded) for one in back] == [
        (False, b"a", False),
        (False, b"ab", False),
        (True, b"a", True),
        (True, b"ab", False),
    ]
    assert [round(one.used_at, 3) for one in back] == [40, 40, 20, 40]


ROWS = st.lists(
    st.tuples(st.booleans(), st.sampled_from(HASHES), st.integers(-50, 50), st.sampled_from([1, 3])), max_size=40
)


@given(rows=ROWS, old=st.sampled_from(["split", "arena"]), blocks=st.integers(0, 14), states=st.integers(1, 8))
def test_what_is_kept_is_whole_fits_and_overlaps_nothing(
    rows: list[tuple[bool, str, int, int]], old: Kind, blocks: int, states: int
) -> None:
    """Whatever the rows say: targets lie inside, apart from each other, each state has its chain and each block a
    state behind it; and no state that is worth more than a kept one is left out if it would have fitted.
    """
    new: Kind = "arena" if old == "split" else "split"
    layout = layout_of(new, blocks, states)
    held = _held(rows, old)
    found = converted(held, layout)
    assert len(found.targets) + found.dropped == len(held)
    assert found.digest("") == converted(_held(rows, old), layout).digest("")
    tokens, ends = kept(found, "token"), kept(found, "state")
    assert all(end[:number] in tokens for end in ends for number in range(1, len(end) + 1))
    assert all(any(end.startswith(block) for end in ends) for block in tokens)
    _check_places(found, layout)
    usable = [one for one in held if one.pool == "state" and one.ready == 3 and _chain(one) <= _whole_blocks(held)]
    worst = min(((one.rank >= 0, abs(one.rank)) for one in _states(found)), default=(True, 99))
    for one in usable:
        if one.block_hash.decode() not in ends and (one.rank >= 0, abs(one.rank)) > worst:
            wanted = len(_chain(one) | tokens)
            assert not _fits(wanted, len(ends) + 1, layout)


def _held(rows: list[tuple[bool, str, int, int]], old: Kind) -> list[Held]:
    if old == "split":
        tokens = [entry(slot, name, rank, 1) for slot, (state, name, rank, _) in enumerate(rows) if not state]
        states = [entry(slot, name, rank, ready) for slot, (state, name, rank, ready) in enumerate(rows) if state]
        return held_by_a_split(tokens, states)
    found = [
        row(STATE_PAGES * at, name, abs(rank), is_state, is_state and rank < 0)._replace(ready=ready if is_state else 1)
        for at, (is_state, name, rank, ready) in enumerate(rows)
    ]
    return of_arena(layout_of("arena", 99, 99), found, PAGE)


def _chain(one: Held) -> set[str]:
    name = one.block_hash.decode()
    return {name[:number] for number in range(1, len(name) + 1)}


def _whole_blocks(held: list[Held]) -> set[str]:
    return {one.block_hash.decode() for one in held if one.pool == "token"}


def _states(found: Conversion) -> list[Held]:
    return [target.held for target in found.targets if target.held.pool == "state"]


def _fits(blocks: int, states: int, layout: HostLayout) -> bool:
    if layout.pages:
        return blocks * TOKEN_PAGES + states * STATE_PAGES <= layout.pages
    return blocks <= layout.slots("token") and states <= layout.slots("state")


def _check_places(found: Conversion, layout: HostLayout) -> None:
    sizes = {"token": TOKEN_BYTES, "state": STATE_BYTES}
    spans = sorted((target.file, target.offset, target.offset + sizes[target.held.pool]) for target in found.targets)
    for before, after in itertools.pairwise(spans):
        assert before[0] != after[0] or before[2] <= after[1]
    limits = {"arena": layout.pages * PAGE, **{pool: layout.slots(pool) * sizes[pool] for pool in ("token", "state")}}
    assert all(end <= limits[file] for file, _, end in spans)
