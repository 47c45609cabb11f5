"""Adaptive replacement: what was used once and what was used again each have a share, and what comes back
after it went decides how large. Superseded states go before everything else.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, ClassVar

from engine.policies.base import EvictionPolicy

if TYPE_CHECKING:
    from engine.pool import Slot


class ArcPolicy(EvictionPolicy):
    """Megiddo and Modha's algorithm over the slots that may go; every operation is O(1)."""

    name: ClassVar[str] = "arc"

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._superseded: OrderedDict[Slot, None] = OrderedDict()
        self._once: OrderedDict[Slot, None] = OrderedDict()
        self._again: OrderedDict[Slot, None] = OrderedDict()
        #: Hashes of what went from each of the two, the oldest first.
        self._gone_once: OrderedDict[bytes, None] = OrderedDict()
        self._gone_again: OrderedDict[bytes, None] = OrderedDict()
        self._share_of_once = 0.0  # in slots

    def add(self, slot: Slot) -> None:
        """To the young end of its queue."""
        queue = self._queue(slot)
        queue[slot] = None
        queue.move_to_end(slot)

    def remove(self, slot: Slot) -> None:
        """Out of its queue."""
        del self._queue(slot)[slot]

    def victim(self) -> Slot | None:
        """The oldest superseded one, else the oldest of whichever has more than its share."""
        if self._superseded:
            return self._superseded.popitem(last=False)[0]
        from_once = self._once and (len(self._once) > self._share_of_once or not self._again)
        queue, gone = (self._once, self._gone_once) if from_once else (self._again, self._gone_again)
        if not queue:
            return None
        slot, _ = queue.popitem(last=False)
        gone[slot.block_hash] = None
        if len(gone) > self._capacity:
            gone.popitem(last=False)
        return slot

    def order(self) -> list[Slot]:
        """Superseded ones, then those of whichever has more than its share until it has not."""
        once, again = list(self._once), list(self._again)
        over = max(len(once) - int(self._share_of_once), 0)
        return [*self._superseded, *once[:over], *again, *once[over:]]

    def remembers(self, block_hash: bytes) -> bool:
        """One that went too early: its kind gets a larger share."""
        once, again = len(self._gone_once), len(self._gone_again)
        if self._gone_once.pop(block_hash, self) is None:
            self._share_of_once = min(self._share_of_once + max(1.0, again / once), self._capacity)
            return True
        if self._gone_again.pop(block_hash, self) is None:
            self._share_of_once = max(self._share_of_once - max(1.0, once / again), 0.0)
            return True
        return False

    def clear(self) -> None:
        """Empty the queues; what was learned is of no use to an empty pool."""
        for queue in (self._superseded, self._once, self._again):
            queue.clear()
        self._gone_once.clear()
        self._gone_again.clear()
        self._share_of_once = 0.0

    def __len__(self) -> int:
        return len(self._superseded) + len(self._once) + len(self._again)

    def _queue(self, slot: Slot) -> OrderedDict[Slot, None]:
        if slot.superseded:
            return self._superseded
        return self._again if slot.again else self._once
