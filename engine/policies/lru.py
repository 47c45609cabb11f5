"""Least recently used goes first, superseded states before everything else."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, ClassVar

from engine.policies.base import EvictionPolicy

if TYPE_CHECKING:
    from engine.pool import Slot


class LruPolicy(EvictionPolicy):
    """Two queues; every operation is O(1)."""

    name: ClassVar[str] = "lru"

    def __init__(self) -> None:
        self._superseded: OrderedDict[Slot, None] = OrderedDict()
        self._regular: OrderedDict[Slot, None] = OrderedDict()

    def add(self, slot: Slot) -> None:
        """To the young end of its queue."""
        queue = self._superseded if slot.superseded else self._regular
        queue[slot] = None
        queue.move_to_end(slot)

    def remove(self, slot: Slot) -> None:
        """Out of its queue."""
        del (self._superseded if slot.superseded else self._regular)[slot]

    def victim(self) -> Slot | None:
        """The oldest superseded one, else the oldest."""
        queue = self._superseded or self._regular
        return queue.popitem(last=False)[0] if queue else None

    def order(self) -> list[Slot]:
        """Superseded ones, then the oldest."""
        return [*self._superseded, *self._regular]

    def clear(self) -> None:
        """Empty both queues."""
        self._superseded.clear()
        self._regular.clear()

    def __len__(self) -> int:
        return len(self._superseded) + len(self._regular)
