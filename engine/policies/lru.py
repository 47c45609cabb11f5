"""Least recently used goes first, superseded states before everything else."""

from __future__ import annotations

from collections import OrderedDict

from engine.policies.base import EvictionPolicy, Victim


class LruPolicy(EvictionPolicy):
    """Two queues; every operation is O(1)."""

    def __init__(self) -> None:
        self._superseded: OrderedDict[bytes, None] = OrderedDict()
        self._regular: OrderedDict[bytes, None] = OrderedDict()

    def add(self, block_hash: bytes, superseded: bool) -> None:
        """To the young end of its queue."""
        queue, other = (self._superseded, self._regular) if superseded else (self._regular, self._superseded)
        if block_hash in queue:
            queue.move_to_end(block_hash)
        else:
            other.pop(block_hash, None)
            queue[block_hash] = None

    def remove(self, block_hash: bytes) -> None:
        """Out of whichever queue has it."""
        if self._regular.pop(block_hash, self) is self:
            self._superseded.pop(block_hash, None)

    def victim(self) -> Victim | None:
        """The oldest superseded one, else the oldest."""
        if self._superseded:
            return Victim(self._superseded.popitem(last=False)[0], "superseded")
        if self._regular:
            return Victim(self._regular.popitem(last=False)[0], "lru")
        return None

    def clear(self) -> None:
        """Empty both queues."""
        self._superseded.clear()
        self._regular.clear()

    def __len__(self) -> int:
        return len(self._superseded) + len(self._regular)
