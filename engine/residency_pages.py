"""What lies in which pages of one arena, in a file that outlives the scheduler's process.

One row per page, used by the slot that begins there. As in `residency_index`, a row counts only while its first
word is not 0: that word is set last, and cleared before the pages are given to anything else. A slot's pages need
not be neighbours: a word in the row of each run's first page has the run's length and where the next one begins.
"""

from __future__ import annotations

import struct
import time
from collections import Counter
from pathlib import Path
from typing import Final
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from engine.arena_ledger import ArenaRow
from engine.page_arena import Run
from engine.prefix_tree import Block, State
from engine.residency_rows import MOST_HASH_BYTES, NO_PARENT, RowFile

# Behind four words, all under the checksum: the first run, end tokens, is it a state, lengths of hash and parent,
# hash, parent.
_BODY: Final = struct.Struct("<qI?BBx32s32s")
# The word that vouches for the row, when it was used (nanoseconds since the epoch) and how (of states and marks),
# and the checksum.
_READY, _USED, _USE, _CHECKSUM, _RUN = 0, 1, 2, 3, 4
_HEAD_BYTES: Final = 8 * _RUN
_BODY_BYTES: Final = _BODY.size
_UNUSED: Final = bytes(8 * (_CHECKSUM - _USED))
ROW_BYTES: Final = _HEAD_BYTES + _BODY_BYTES
_WORDS: Final = ROW_BYTES // 8

# A run's word: pages, and the page behind which the next one begins; 0 if it is the last.
_NEXT_BITS: Final = 32
_NEXT_MASK: Final = (1 << _NEXT_BITS) - 1

# The word of use.
_JUNCTION, _SUPERSEDED = 1, 2
_GAPS_SHIFT, _TURNS_SHIFT, _COUNT_MASK = 2, 22, (1 << 20) - 1


class PageIndex(RowFile):
    """The rows of one arena."""

    def __init__(self, path: Path, pages: int, is_copy: bool = False) -> None:
        super().__init__(path, pages, ROW_BYTES, is_copy)

    # --- what the arena tells ---

    def readable(self, slot: Block | State) -> None:
        """The word that vouches is the word of the parts that are whole; with the first of them the row is made."""
        word, ready = slot.pages[0][0] * _WORDS, slot.ready
        if not ready or self._words[word]:
            self._words[word] = ready
        elif isinstance(slot, Block):
            at = word * 8
            self._bytes[at + 8 * _USED : at + 8 * _CHECKSUM] = _UNUSED
            self._put(slot, False, slot.pages, word, ready)
        else:
            self._words[word + _USED], self._words[word + _USE] = time.time_ns(), _use_word(slot)
            self._put(slot.block, True, slot.pages, word, ready)

    def place(self, row: ArenaRow) -> None:
        """Put down a row as it is."""
        above = Block(row.parent, None, 0) if row.parent is not None else None
        word = row.pages[0].first * _WORDS
        self._words[word + _USED], self._words[word + _USE] = round(row.used_at * 1e9), _use_word(row)
        self._put(Block(row.block_hash, above, row.end), row.is_state, row.pages, word, row.ready)

    def _put(self, block: Block, is_state: bool, pages: tuple[Run, ...], word: int, ready: int) -> None:
        """Put the row down, and vouch for it last."""
        block_hash, above = block.block_hash, block.parent
        parent, parent_bytes = (above.block_hash, len(above.block_hash)) if above is not None else (b"", NO_PARENT)
        if len(block_hash) > MOST_HASH_BYTES or MOST_HASH_BYTES < parent_bytes != NO_PARENT:
            return  # not a hash of vLLM's: it is served, but not kept
        run = pages[0][1] << _NEXT_BITS
        if len(pages) > 1:
            run |= pages[1].first + 1
        body = _BODY.pack(run, block.end, is_state, len(block_hash), parent_bytes, block_hash, parent)
        words, begin = self._words, word * 8 + _HEAD_BYTES
        self._bytes[begin : begin + _BODY_BYTES] = body
        words[word + _CHECKSUM] = crc32(body) if len(pages) == 1 else self._put_runs(pages, crc32(body))
        words[word] = ready

    def _put_runs(self, pages: tuple[Run, ...], checksum: int) -> int:
        """The words of all runs but the first one, and the checksum with them."""
        later = [
            (run.pages << _NEXT_BITS) | (follower.first + 1 if follower is not None else 0)
            for run, follower in zip(pages[1:], (*pages[2:], None), strict=True)
        ]
        for run, word in zip(pages[1:], later, strict=True):
            self._words[run.first * _WORDS + _RUN] = word
        return crc32(struct.pack(f"<{len(later)}q", *later), checksum)

    def drop(self, pages: tuple[Run, ...]) -> None:
        """The pages are about to be given to something else."""
        self._words[pages[0][0] * _WORDS] = 0

    def used(self, state: State, idle_seconds: float) -> None:
        """A mark has no pages, and is kept with its block."""
        pages = state.pages or state.block.pages
        if pages:
            word = pages[0].first * _WORDS
            self._words[word + _USED] = time.time_ns() - int(idle_seconds * 1e9)
            self._words[word + _USE] = _use_word(state)

    def clear(self) -> None:
        """No row counts any more."""
        self._ready_words()[:] = 0

    # --- what a new run reads ---

    def rows(self) -> list[ArenaRow]:
        """The rows that count. One that does not hold what it says is dropped, and so are all that share a page."""
        found: dict[int, ArenaRow] = {}
        for first in np.flatnonzero(self._ready_words()).tolist():
            row = self._row(first)
            if row is None:
                self._words[first * _WORDS] = 0
            else:
                found[first] = row
        owners = Counter(
            page for row in found.values() for run in row.pages for page in range(run.first, run.first + run.pages)
        )
        shared = {page for page, count in owners.items() if count > 1}
        for first, row in list(found.items()) if shared else ():
            if any(page in shared for run in row.pages for page in range(run.first, run.first + run.pages)):
                self._words[first * _WORDS] = 0
                del found[first]
        return list(found.values())

    def _row(self, first: int) -> ArenaRow | None:
        word = first * _WORDS
        body = self._bytes[word * 8 + _HEAD_BYTES : (word + _WORDS) * 8]
        run, end, is_state, hash_bytes, parent_bytes, block_hash, parent = _BODY.unpack(body)
        pages = self._runs(first, run, crc32(body), self._words[word + _CHECKSUM])
        if pages is None:
            return None
        use = self._words[word + _USE]
        return ArenaRow(
            is_state=is_state,
            block_hash=block_hash[:hash_bytes],
            parent=None if parent_bytes == NO_PARENT else parent[:parent_bytes],
            end=end,
            ready=self._words[word],
            pages=pages,
            used_at=self._words[word + _USED] / 1e9,
            turns=use >> _TURNS_SHIFT & _COUNT_MASK,
            long_gaps=use >> _GAPS_SHIFT & _COUNT_MASK,
            junction=bool(use & _JUNCTION),
            superseded=bool(use & _SUPERSEDED),
        )

    def _runs(self, first: int, word: int, checksum: int, wanted: int) -> tuple[Run, ...] | None:
        """Follow the words from run to run; None if they are not those that the row was written with."""
        runs: list[Run] = []
        later: list[int] = []
        while 0 < word >> _NEXT_BITS <= self._count - first and len(runs) < self._count:
            runs.append(Run(first, word >> _NEXT_BITS))
            following = word & _NEXT_MASK
            if not following:
                found = crc32(struct.pack(f"<{len(later)}q", *later), checksum)
                return tuple(runs) if found == wanted else None
            first = following - 1
            if first >= self._count:
                return None
            word = self._words[first * _WORDS + _RUN]
            later.append(word)
        return None

    def _ready_words(self) -> NDArray[np.int64]:
        """A view that must not be kept: the file could not be closed."""
        words: NDArray[np.int64] = np.frombuffer(self._words, np.int64, self._count * _WORDS)
        return words[::_WORDS]


def _use_word(state: State | ArenaRow) -> int:
    flags = state.junction * _JUNCTION | state.superseded * _SUPERSEDED
    gaps, turns = min(state.long_gaps, _COUNT_MASK), min(state.turns, _COUNT_MASK)
    return flags | gaps << _GAPS_SHIFT | turns << _TURNS_SHIFT
