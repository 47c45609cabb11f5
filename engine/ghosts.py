"""What is remembered of blocks and states whether or not they are still there. Standard library only."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from engine.policies.reuse import BINS, EDGES
from engine.prefix_tree import Klass

MOST_BLOCKS: Final = 65_536
MOST_RECORDS: Final = 20_000
#: How far above the end of a known prefix a boundary is looked for at which it could go on.
SEARCH_BLOCKS: Final = 40
#: So many outdated entries are always let be.
STALE_ENTRIES: Final = 256

_SEVERAL: Final = b"several"


class SeenBlocks:
    """Which blocks were seen, and where prefixes really part: a second, different child of one block."""

    def __init__(self, most: int = MOST_BLOCKS) -> None:
        self._children: OrderedDict[bytes, bytes | None] = OrderedDict()
        self._most = most

    def see(self, chain: Sequence[bytes]) -> int:
        """Remember the chain; returns how many of its blocks were known before."""
        children = self._children
        known = len(chain)
        while known and chain[known - 1] not in children:
            known -= 1
        if known == len(chain):
            return known
        if known:
            self._add_child(chain[known - 1], chain[known])
        children.update(zip(chain[known:-1], chain[known + 1 :], strict=True))
        children[chain[-1]] = None
        while len(children) > self._most:
            children.popitem(last=False)
        return known

    def _add_child(self, parent: bytes, child: bytes) -> None:
        first = self._children[parent]
        self._children[parent] = child if first in (None, child) else _SEVERAL
        self._children.move_to_end(parent)

    def part(self, block_hash: bytes) -> None:
        """Prefixes are known to part behind this block."""
        self._children[block_hash] = _SEVERAL

    def parts_at(self, block_hash: bytes) -> bool:
        """Whether prefixes part behind this block."""
        return self._children.get(block_hash) == _SEVERAL

    def clear(self) -> None:
        """Forget everything."""
        self._children.clear()


@dataclass(slots=True, eq=False)
class Record:
    """A boundary at which a session could go on."""

    at: float
    klass: Klass
    turns: int
    long_gaps: int
    waits: bool = True  # unused, and not replaced or forgotten


class Boundaries:
    """The newest boundaries of sessions, evicted or not."""

    def __init__(self, aged: Callable[[Klass, int], None], most: int = MOST_RECORDS) -> None:
        self._records: OrderedDict[bytes, Record] = OrderedDict()
        self._most = most
        self._aged = aged  # is told which bin of age one has reached unused
        #: By bin of age, the oldest first. What was replaced or taken out stays until its turn comes.
        self._waiting: list[deque[Record]] = [deque() for _ in range(BINS - 1)]
        self._entries = 0

    def set(self, block_hash: bytes, record: Record, age_bin: int = 0) -> None:
        """The newest one. It may have got to its age elsewhere."""
        self.pop(block_hash)
        self._records[block_hash] = record
        if len(self._records) > self._most:
            self._records.popitem(last=False)[1].waits = False
        if age_bin < BINS - 1:
            self._waiting[age_bin].append(record)
            self._entries += 1

    def let_age(self, now: float) -> None:
        """Time has passed. Each one moves on from bin to bin, and into each only once."""
        for at, waiting in enumerate(self._waiting):
            if waiting and waiting[0].at + EDGES[at + 1] <= now:
                self._move_on(waiting, at, now)
        if self._entries > 2 * len(self._records) + STALE_ENTRIES:
            self._drop_stale()

    def _move_on(self, waiting: deque[Record], at: int, now: float) -> None:
        until, aged = now - EDGES[at + 1], self._aged
        older = self._waiting[at + 1] if at + 1 < len(self._waiting) else None
        while waiting and waiting[0].at <= until:
            record = waiting.popleft()
            if record.waits:
                aged(record.klass, at + 1)
            if record.waits and older is not None:
                older.append(record)
            else:
                self._entries -= 1

    def _drop_stale(self) -> None:
        self._waiting = [deque(record for record in waiting if record.waits) for waiting in self._waiting]
        self._entries = sum(map(len, self._waiting))

    def pop(self, block_hash: bytes) -> Record | None:
        """Take it out, if it is there."""
        record = self._records.pop(block_hash, None)
        if record is not None:
            record.waits = False
        return record

    def deepest(self, chain: Sequence[bytes], depth: int, above: int) -> int:
        """The depth of the deepest boundary in `chain[above:depth]`, not too far up; 0 for none."""
        records, least = self._records, max(above, depth - SEARCH_BLOCKS)
        while depth > least:
            if chain[depth - 1] in records:
                return depth
            depth -= 1
        return 0

    def clear(self) -> None:
        """Forget everything."""
        self._records.clear()
        for waiting in self._waiting:
            waiting.clear()
        self._entries = 0
