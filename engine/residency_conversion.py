"""What host memory keeps when slots of a static split become pages of one arena, or the other way round.

Pure: every worker and the scheduler come to the same from the same rows, so that none has to tell another one
what goes where. The bytes of a slot are the same in both.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from engine.arena_ledger import ArenaRow
from engine.layout import HostLayout, PoolName
from engine.page_arena import Run, pages_of
from engine.residency_index import Entry
from engine.residency_plan import ARENA

POOLS: Final[tuple[PoolName, PoolName]] = ("token", "state")


class Span(NamedTuple):
    """Neighbouring bytes of a file."""

    first: int
    length: int


@dataclass(frozen=True, slots=True, eq=False)
class Held:
    """One slot of the old layout."""

    file: str  # the name of the old pool
    pool: PoolName
    block_hash: bytes
    parent: bytes | None
    end: int  # tokens
    ready: int
    rank: int  # when it was used last, in nanoseconds since the epoch; below 0: superseded
    spans: tuple[Span, ...]  # of the old file


class Target(NamedTuple):
    """Where it goes. `rank` is that of the best one that needs it."""

    held: Held
    file: str  # the name of the new pool
    place: int  # of the new pool's slots or the arena's pages
    offset: int  # bytes of the new file
    rank: int


@dataclass(frozen=True)
class Conversion:
    """What is kept, in the order in which it lay, and how many slots are not."""

    targets: tuple[Target, ...]
    dropped: int

    def digest(self, basis: str) -> str:
        """Equal for whoever came to the same from the same; `basis` is what else has to be the same."""
        return hashlib.sha256(f"{basis} {self.targets!r}".encode()).hexdigest()


def of_split(layout: HostLayout, entries: Mapping[PoolName, Iterable[Entry]]) -> list[Held]:
    """The slots of a static split; a block that takes several is left out."""
    return [
        Held(
            pool,
            pool,
            entry.block_hash,
            entry.parent,
            entry.end_tokens,
            entry.ready,
            entry.rank,
            (Span(entry.slot * layout.slot_bytes(pool), layout.slot_bytes(pool)),),
        )
        for pool, found in entries.items()
        for entry in found
        if entry.pieces == 1
    ]


def of_arena(layout: HostLayout, rows: Iterable[ArenaRow], page_bytes: int) -> list[Held]:
    """The slots of one arena; one whose pages cannot hold it is left out."""
    found = []
    for row in sorted(rows, key=_first_page):
        pool: PoolName = "state" if row.is_state else "token"
        slot_bytes = layout.slot_bytes(pool)
        if sum(run.pages for run in row.pages) == pages_of(slot_bytes, page_bytes):
            spans = tuple(_spans(row.pages, page_bytes, slot_bytes))
            found.append(Held(ARENA, pool, row.block_hash, row.parent, row.end, row.ready, _rank(row), spans))
    return found


def _first_page(row: ArenaRow) -> tuple[bool, int]:
    return row.is_state, row.pages[0].first


def _rank(row: ArenaRow) -> int:
    """Of two that were used at once the deeper one is the newer one."""
    used = round(row.used_at * 1e9) + row.end * row.is_state
    return -used if row.superseded else used


def _spans(runs: Iterable[Run], page_bytes: int, slot_bytes: int) -> Iterator[Span]:
    for run in runs:
        length = min(run.pages * page_bytes, slot_bytes)
        yield Span(run.first * page_bytes, length)
        slot_bytes -= length


def converted(held: list[Held], layout: HostLayout) -> Conversion:
    """The most valuable that fit into the new `layout`, each with all blocks before it.

    What is worth something is a state (without linear layers: a block) whose chain is whole; blocks are worth what
    the best one behind them is.
    """
    blocks = _rooted(held, layout)
    ranks = _chosen(blocks, _ends(held, blocks, layout), _Room(layout))
    targets = tuple(_placed((one for one in held if one in ranks), ranks, layout))
    return Conversion(targets, len(held) - len(targets))


def _rooted(held: list[Held], layout: HostLayout) -> dict[bytes, Held]:
    """Whole blocks of which all blocks before them are whole, by hash."""
    rooted: dict[bytes, Held] = {}
    for one in sorted((one for one in held if one.pool == "token" and _is_whole(one, layout)), key=_roots_first):
        above = rooted.get(one.parent) if one.parent is not None else None
        begins = above.end if above is not None else 0 if one.parent is None else -1
        if begins + layout.chunk_tokens == one.end:
            rooted.setdefault(one.block_hash, one)
    return rooted


def _is_whole(one: Held, layout: HostLayout) -> bool:
    known, needed = layout.known_parts(one.pool), layout.needed_parts(one.pool)
    return not one.ready & ~known and one.ready & needed == needed


def _roots_first(one: Held) -> tuple[int, int]:
    return one.end, -one.rank


def _ends(held: list[Held], blocks: Mapping[bytes, Held], layout: HostLayout) -> list[Held]:
    """Where sessions could go on, the most valuable first; of two copies, the better one."""
    if not layout.pool_groups("state"):
        return sorted(blocks.values(), key=_worth, reverse=True)
    states: dict[bytes, Held] = {}
    whole = (one for one in held if one.pool == "state" and _is_whole(one, layout))
    for one in sorted(whole, key=_worth, reverse=True):
        if not layout.pool_groups("token") or _is_reached(one, blocks, layout.chunk_tokens):
            states.setdefault(one.block_hash, one)
    return list(states.values())


def _worth(one: Held) -> tuple[bool, int, int]:
    """Superseded ones last, and of a chain that was never used on its own its beginning first."""
    return one.rank >= 0, abs(one.rank), -one.end


def _is_reached(state: Held, blocks: Mapping[bytes, Held], chunk_tokens: int) -> bool:
    """All blocks before it are there: it sits on the last one, or inside the one behind that."""
    own, above = blocks.get(state.block_hash), blocks.get(state.parent) if state.parent is not None else None
    if own is not None:
        return own.end == state.end
    if above is None and state.parent is not None:
        return False
    return 0 < state.end - (above.end if above is not None else 0) < chunk_tokens


def _chosen(blocks: Mapping[bytes, Held], ends: list[Held], room: _Room) -> dict[Held, int]:
    """What fits, and the rank of the best one that needs it."""
    ranks: dict[Held, int] = {}
    for end in ends:
        states = [end] if end.pool == "state" else []
        most = room.blocks_beside(len(states))
        way: list[Held] = []
        at = blocks.get(end.block_hash) or _above(end, blocks)
        while at is not None and at not in ranks and len(way) <= most:
            way.append(at)
            at = _above(at, blocks)
        if len(way) <= most:
            room.take(len(way), len(states))
            ranks.update(dict.fromkeys([*states, *way], end.rank))
    return ranks


def _above(one: Held, blocks: Mapping[bytes, Held]) -> Held | None:
    return blocks.get(one.parent) if one.parent is not None else None


class _Room:
    """What is left of the new layout."""

    def __init__(self, layout: HostLayout) -> None:
        self._shared = bool(layout.pages)
        self._each = {pool: slot_pages(layout, pool) if layout.pages else 1 for pool in POOLS}
        self._free = {pool: layout.pages or layout.slots(pool) for pool in POOLS}

    def blocks_beside(self, states: int) -> int:
        """How many blocks fit beside so many states; below 0 if not even these do."""
        if self._shared:
            return (self._free["state"] - states * self._each["state"]) // max(self._each["token"], 1)
        return self._free["token"] if states <= self._free["state"] else -1

    def take(self, blocks: int, states: int) -> None:
        """They are there from now on."""
        taken = {"token": blocks * self._each["token"], "state": states * self._each["state"]}
        for pool in POOLS:
            self._free[pool] -= sum(taken.values()) if self._shared else taken[pool]


def slot_pages(layout: HostLayout, pool: PoolName) -> int:
    """Pages of one slot in an arena."""
    return pages_of(layout.slot_bytes(pool), layout.page_bytes)


def _placed(kept: Iterable[Held], ranks: Mapping[Held, int], layout: HostLayout) -> Iterator[Target]:
    """One behind the other, in the order in which they lay, so that both files are passed through once."""
    free: Counter[str] = Counter()
    for one in kept:
        file = ARENA if layout.pages else one.pool
        place, size = free[file], layout.page_bytes or layout.slot_bytes(one.pool)
        free[file] += slot_pages(layout, one.pool) if layout.pages else 1
        yield Target(one, file, place, place * size, ranks[one])


def entries_of(conversion: Conversion, pool: str) -> list[Entry]:
    """The rows of a pool of a static split."""
    return [
        Entry(target.place, one.block_hash, one.ready, one.end, one.parent, _split_rank(target))
        for target in conversion.targets
        if (one := target.held).pool == pool
    ]


def _split_rank(target: Target) -> int:
    """A block was used when the best one behind it was, and of one chain the last one is the first to go."""
    return target.held.rank if target.held.pool == "state" else target.rank - target.held.end


def rows_of(conversion: Conversion, layout: HostLayout) -> list[ArenaRow]:
    """The rows of an arena. How often a session came back is nothing that a split knows."""
    return [
        ArenaRow(
            is_state=(is_state := one.pool == "state"),
            block_hash=one.block_hash,
            parent=one.parent,
            end=one.end,
            ready=one.ready,
            pages=(Run(target.place, slot_pages(layout, one.pool)),),
            used_at=abs(one.rank) / 1e9,
            superseded=is_state and one.rank < 0,
        )
        for target in conversion.targets
        for one in (target.held,)
    ]
