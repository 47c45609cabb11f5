"""What is remembered of blocks and states whether or not they are still there. Standard library only."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final, NamedTuple

from engine.prefix_tree import Klass

MOST_BLOCKS: Final = 65_536
MOST_RECORDS: Final = 20_000
#: How far above the end of a known prefix a boundary is looked for at which it could go on.
SEARCH_BLOCKS: Final = 40

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
        for at in range(known, len(chain) - 1):
            children[chain[at]] = chain[at + 1]
        children[chain[-1]] = None
        while len(children) > self._most:
            children.popitem(last=False)
        return known

    def _add_child(self, parent: bytes, child: bytes) -> None:
        first = self._children[parent]
        self._children[parent] = child if first in (None, child) else _SEVERAL
        self._children.move_to_end(parent)

    def parts_at(self, block_hash: bytes) -> bool:
        """Whether prefixes part behind this block."""
        return self._children.get(block_hash) == _SEVERAL

    def clear(self) -> None:
        """Forget everything."""
        self._children.clear()


class Record(NamedTuple):
    """A boundary at which a session could go on."""

    at: float
    klass: Klass
    turns: int
    long_gaps: int


class Boundaries:
    """The newest boundaries of sessions, evicted or not."""

    def __init__(self, most: int = MOST_RECORDS) -> None:
        self._records: OrderedDict[bytes, Record] = OrderedDict()
        self._most = most

    def set(self, block_hash: bytes, record: Record) -> None:
        """The newest one."""
        self._records[block_hash] = record
        self._records.move_to_end(block_hash)
        if len(self._records) > self._most:
            self._records.popitem(last=False)

    def pop(self, block_hash: bytes) -> Record | None:
        """Take it out, if it is there."""
        return self._records.pop(block_hash, None)

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
