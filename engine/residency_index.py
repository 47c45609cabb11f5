"""What lies in which slot, in a file that outlives the scheduler's process.

One row per slot. A row counts only while its first word is not 0. Before a slot is given to anything else the
word is set to 0, and only when every worker has copied the last byte is it set to the parts that are whole. So
whenever a process is killed, a slot that was being overwritten has no row: it is dropped, never served.
The word is one aligned store; what it vouches for was written before it, and carries a checksum.
"""

from __future__ import annotations

import mmap
import os
import struct
import time
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from engine.residency_place import open_private

#: Longest block hash that fits a row. vLLM's are 16 or 32 bytes long.
MOST_HASH_BYTES: Final = 32
_NO_PARENT: Final = 255

# The body of a row: checksum, end tokens, piece, pieces, lengths of hash and parent, hash, parent.
_BODY: Final = struct.Struct("<IIHHBB2x32s32s")
_CHECKED: Final = struct.Struct("<IHHBB2x32s32s")
#: ready word, rank word, body.
ROW_BYTES: Final = 16 + _BODY.size
_WORDS: Final = ROW_BYTES // 8
_READY: Final = 0
_RANK: Final = 1


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

    def commit(self, entry: Entry) -> None:
        """Every worker has copied the last byte of these parts."""

    def used(self, indices: Sequence[int], superseded: bool = False) -> None:
        """These were used now, the last one last. A hint: nothing but the order of value depends on it."""

    def clear(self) -> None:
        """Nothing is there any more."""


class NoLedger:
    """For memory that goes with the engine."""

    def drop(self, index: int) -> None:
        """Nothing to forget."""

    def commit(self, entry: Entry) -> None:
        """Nothing to remember."""

    def used(self, indices: Sequence[int], superseded: bool = False) -> None:
        """Nothing to order."""

    def clear(self) -> None:
        """Nothing to forget."""


class IndexFile:
    """The rows of one pool. Memory is taken where rows are written."""

    _table: NDArray[np.int64]

    def __init__(self, path: Path, slots: int) -> None:
        self._path = path
        self._rank = time.time_ns()
        self._open(max(slots, _rows_of(path)))

    @property
    def slots(self) -> int:
        """How many rows there are; at least as many as were asked for."""
        return self._slots

    def drop(self, index: int) -> None:
        """The slot is about to be overwritten."""
        self._words[index * _WORDS] = 0

    def commit(self, entry: Entry) -> None:
        """Put the row down, and vouch for it last. The rank is now, unless the entry has one."""
        if len(entry.block_hash) > MOST_HASH_BYTES or len(entry.parent or b"") > MOST_HASH_BYTES:
            return  # not a hash of vLLM's: it is served, but not kept
        word = entry.slot * _WORDS
        self._words[word] = 0
        self._words[word + _RANK] = entry.rank or self._next_rank()
        _BODY.pack_into(self._bytes, word * 8 + 16, *_body(entry))
        self._words[word] = entry.ready

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

    def shrink(self, slots: int) -> None:
        """Cut the file; the rows behind are gone."""
        self.close()
        os.truncate(self._path, slots * ROW_BYTES)
        self._open(slots)

    def close(self) -> None:
        """Let go of the file."""
        if not self._map.closed:
            self._table = self._table[:0].copy()
            self._words.release()
            self._bytes.release()
            self._map.close()

    def _open(self, slots: int) -> None:
        size = max(slots * ROW_BYTES, mmap.PAGESIZE)
        descriptor = open_private(self._path, size)
        try:
            self._map = mmap.mmap(descriptor, size)
        finally:
            os.close(descriptor)
        self._slots = slots
        self._bytes = memoryview(self._map)
        self._words = self._bytes[: size // 8 * 8].cast("q")
        self._table = np.frombuffer(self._map, np.int64, slots * _WORDS).reshape(slots, _WORDS)

    def _entry(self, index: int) -> Entry | None:
        word = index * _WORDS
        checksum, *body = _BODY.unpack_from(self._bytes, word * 8 + 16)
        end_tokens, piece, pieces, hash_bytes, parent_bytes, block_hash, parent = body
        if checksum != zlib.crc32(_CHECKED.pack(*body)) or hash_bytes > MOST_HASH_BYTES:
            return None
        before = None if parent_bytes == _NO_PARENT else parent[:parent_bytes]
        ready, rank = self._words[word], self._words[word + _RANK]
        return Entry(index, block_hash[:hash_bytes], ready, end_tokens, before, rank, piece, pieces)

    def _next_rank(self, count: int = 1) -> int:
        """Ranks rise for ever, also from run to run."""
        first = max(self._rank + 1, time.time_ns())
        self._rank = first + count - 1
        return first


def _body(entry: Entry) -> tuple[int, int, int, int, int, int, bytes, bytes]:
    parent = entry.parent
    values = (
        entry.end_tokens,
        entry.piece,
        entry.pieces,
        len(entry.block_hash),
        _NO_PARENT if parent is None else len(parent),
        entry.block_hash,
        parent or b"",
    )
    return zlib.crc32(_CHECKED.pack(*values)), *values


def _rows_of(path: Path) -> int:
    return path.stat().st_size // ROW_BYTES if path.exists() else 0


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
