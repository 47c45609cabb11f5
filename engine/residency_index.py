"""What lies in which slot, in a file that outlives the scheduler's process.

One row per slot. A row counts only while its first word is not 0. Before a slot is given to anything else the
word is set to 0, and only when every worker has copied the last byte is it set to the parts that are whole. So
whenever a process is killed, a slot that was being overwritten has no row: it is dropped, never served.
The word is one aligned store; what it vouches for was written before it, and carries a checksum.
"""

from __future__ import annotations

import struct
import time
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from engine.residency_rows import MOST_HASH_BYTES, NO_PARENT, RowFile

# The body of a row: end tokens, piece, pieces, lengths of hash and parent, hash, parent.
_BODY: Final = struct.Struct("<IHHBB6x32s32s")
# In front of it three words: the one that vouches for the row, its rank, the body's checksum.
_READY, _RANK, _CHECKSUM, _HEAD_WORDS = 0, 1, 2, 3
ROW_BYTES: Final = 8 * _HEAD_WORDS + _BODY.size
_WORDS: Final = ROW_BYTES // 8


class Entry(NamedTuple):
    """One slot of a pool and what it holds. Higher ranks are more valuable; those below 0 are superseded.

    A block that takes several slots has one entry for each: piece 0 to pieces - 1.
    """

    slot: int
    block_hash: bytes
    ready: int
    end_tokens: int
    parent: bytes | None
    rank: int
    piece: int = 0
    pieces: int = 1


class PoolLedger(Protocol):
    """What a manager tells about one of its pools as things happen."""

    def drop(self, index: int) -> None:
        """The slot is about to be overwritten. Must be called before a worker hears of it."""

    def commit(
        self,
        index: int,
        block_hash: bytes,
        ready: int,
        end_tokens: int,
        parent: bytes | None,
        piece: int = 0,
        pieces: int = 1,
    ) -> None:
        """Every worker has copied the last byte of these parts."""

    def used(self, indices: Sequence[int], superseded: bool = False) -> None:
        """These were used now, the last one last. A hint: nothing but the order of value depends on it."""

    def clear(self) -> None:
        """Nothing is there any more."""


class NoLedger:
    """For memory that goes with the engine."""

    def drop(self, index: int) -> None:
        """Nothing to forget."""

    def commit(
        self,
        index: int,
        block_hash: bytes,
        ready: int,
        end_tokens: int,
        parent: bytes | None,
        piece: int = 0,
        pieces: int = 1,
    ) -> None:
        """Nothing to remember."""

    def used(self, indices: Sequence[int], superseded: bool = False) -> None:
        """Nothing to order."""

    def clear(self) -> None:
        """Nothing to forget."""


class IndexFile(RowFile):
    """The rows of one pool."""

    _table: NDArray[np.int64]

    def __init__(self, path: Path, slots: int, is_copy: bool = False) -> None:
        self._rank = 0
        super().__init__(path, slots, ROW_BYTES, is_copy)

    def drop(self, index: int) -> None:
        """The slot is about to be overwritten."""
        self._words[index * _WORDS] = 0

    def commit(
        self,
        index: int,
        block_hash: bytes,
        ready: int,
        end_tokens: int,
        parent: bytes | None,
        piece: int = 0,
        pieces: int = 1,
    ) -> None:
        """Put the row down as used now, and vouch for it last."""
        self._put(index, ready, self._next_rank(1), end_tokens, block_hash, parent, piece, pieces)

    def place(self, entry: Entry) -> None:
        """As `commit`, with the rank that it has."""
        _, block_hash, ready, end_tokens, parent, rank, piece, pieces = entry
        self._put(entry.slot, ready, rank, end_tokens, block_hash, parent, piece, pieces)

    def _put(
        self,
        index: int,
        ready: int,
        rank: int,
        end_tokens: int,
        block_hash: bytes,
        parent: bytes | None,
        piece: int,
        pieces: int,
    ) -> None:
        hash_bytes, parent_bytes = len(block_hash), NO_PARENT if parent is None else len(parent)
        if hash_bytes > MOST_HASH_BYTES or MOST_HASH_BYTES < parent_bytes != NO_PARENT:
            return  # not a hash of vLLM's: it is served, but not kept
        body = _BODY.pack(end_tokens, piece, pieces, hash_bytes, parent_bytes, block_hash, parent or b"")
        words, word = self._words, index * _WORDS
        words[word] = 0
        words[word + _RANK] = rank
        words[word + _CHECKSUM] = zlib.crc32(body)
        begin = (word + _HEAD_WORDS) * 8
        self._bytes[begin : begin + _BODY.size] = body
        words[word] = ready

    def used(self, indices: Sequence[int], superseded: bool = False) -> None:
        """New ranks, rising in the order of `indices`; negative for what is superseded."""
        if not indices:
            return
        first = self._next_rank(len(indices))
        ranks: NDArray[np.int64] = np.arange(first, first + len(indices), dtype=np.int64)
        self._table[list(indices), _RANK] = -ranks if superseded else ranks

    def clear(self) -> None:
        """No row counts any more."""
        self._table[:, _READY] = 0

    def entries(self, all_parts: int) -> Iterator[Entry]:
        """The rows that count; one that does not hold what it says is dropped."""
        for index in np.flatnonzero(self._table[:, _READY]).tolist():
            entry = self._entry(index)
            if entry is None or entry.ready & ~all_parts:
                self.drop(index)
            else:
                yield entry

    def close(self) -> None:
        """Let go of the file."""
        self._table = self._table[:0].copy()
        super().close()

    def _open(self, rows: int) -> None:
        super()._open(rows)
        self._table = np.frombuffer(self._map, np.int64, rows * _WORDS).reshape(rows, _WORDS)

    def _entry(self, index: int) -> Entry | None:
        word = index * _WORDS
        body = self._bytes[(word + _HEAD_WORDS) * 8 : (word + _WORDS) * 8]
        if self._words[word + _CHECKSUM] != zlib.crc32(body):
            return None
        end_tokens, piece, pieces, hash_bytes, parent_bytes, block_hash, parent = _BODY.unpack(body)
        before = None if parent_bytes == NO_PARENT else parent[:parent_bytes]
        ready, rank = self._words[word], self._words[word + _RANK]
        return Entry(index, block_hash[:hash_bytes], ready, end_tokens, before, rank, piece, pieces)

    def _next_rank(self, count: int) -> int:
        """Ranks rise for ever, also from run to run: times in nanoseconds since the epoch, or a few more."""
        self._rank = max(self._rank + count, time.time_ns())
        return self._rank - count + 1


class Move(NamedTuple):
    """Bytes to be copied from one slot to another one that is free."""

    entry: Entry
    target: int


class Fit(NamedTuple):
    """What becomes of entries in a pool of another size."""

    kept: list[Entry]
    moves: list[Move]
    dropped: list[Entry]


def fit(entries: Iterable[Entry], slots: int) -> Fit:
    """The most valuable blocks that fit into slots 0 to `slots - 1`; those that lie behind move to free ones.

    Of a hash that is there twice the more valuable one stays; of a block with a missing piece, nothing.
    """
    blocks = _whole_blocks(entries)
    kept: list[Entry] = []
    dropped: list[Entry] = []
    seen: set[bytes] = set()
    for pieces in sorted(blocks.values(), key=lambda found: found[0].rank, reverse=True):
        first = pieces[0]
        fits = len(pieces) == first.pieces and len(kept) + len(pieces) <= slots and first.block_hash not in seen
        (kept if fits else dropped).extend(pieces)
        if fits:
            seen.add(first.block_hash)
    taken = {entry.slot for entry in kept}
    free = (index for index in range(slots) if index not in taken)
    moves = [Move(entry, next(free)) for entry in kept if entry.slot >= slots]
    return Fit([entry for entry in kept if entry.slot < slots], moves, dropped)


def _whole_blocks(entries: Iterable[Entry]) -> dict[tuple[bytes, int], list[Entry]]:
    """Entries by block. A block in one piece is told apart from another copy of it by its slot."""
    blocks: dict[tuple[bytes, int], list[Entry]] = {}
    for entry in entries:
        copy = entry.slot if entry.pieces == 1 else -1
        blocks.setdefault((entry.block_hash, copy), []).append(entry)
    return blocks
