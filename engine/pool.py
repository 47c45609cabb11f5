"""A pool of equal slots: who sits where, who is in use, who went.

A slot holds one block hash for all the layer groups of the pool, a group being one part of it. The
pool knows no requests, no bytes and no vLLM.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from engine.policies import EvictionPolicy


@dataclass(slots=True)
class Slot:
    """What sits in one slot. Parts are bits: the n-th group of the pool is `1 << n`."""

    block_hash: bytes
    index: int
    end_tokens: int
    parent: bytes | None
    last_used: float
    ready: int = 0
    writing: int = 0
    loads: int = 0
    holds: int = 0
    superseded: bool = False

    @property
    def in_use(self) -> bool:
        """A transfer or a running request needs it: it must stay."""
        return bool(self.writing or self.loads or self.holds)


class Eviction(NamedTuple):
    """A slot that was given to something else."""

    slot: Slot
    reason: str
    idle_seconds: float


class SlotPool:
    """Slots by block hash. Every operation is O(1); nothing in use is ever evicted."""

    def __init__(self, capacity: int, parts: int, policy: EvictionPolicy, clock: Callable[[], float]) -> None:
        self.capacity = capacity
        self.all_parts = (1 << parts) - 1
        self._policy = policy
        self._clock = clock
        self._slots: dict[bytes, Slot] = {}
        self._free: list[int] = []
        self._fresh = 0  # indices from here on were never used: their memory is untouched

    def __len__(self) -> int:
        return len(self._slots)

    def __iter__(self) -> Iterator[Slot]:
        return iter(self._slots.values())

    @property
    def in_use(self) -> int:
        """Slots that cannot be evicted now."""
        return len(self._slots) - len(self._policy)

    def get(self, block_hash: bytes) -> Slot | None:
        """The slot of this hash, whatever state it is in."""
        return self._slots.get(block_hash)

    def whole(self, block_hash: bytes) -> bool:
        """All parts are there and readable."""
        slot = self._slots.get(block_hash)
        return slot is not None and slot.ready == self.all_parts

    def begin_write(
        self, block_hash: bytes, part: int, end_tokens: int, parent: bytes | None
    ) -> tuple[Slot | None, Eviction | None]:
        """A place for one part, evicting if need be; (None, None) if all slots are in use."""
        slot, eviction = self._slots.get(block_hash), None
        if slot is None:
            index, eviction = self._take()
            if index is None:
                return None, None
            slot = Slot(block_hash, index, end_tokens, parent, self._clock())
            self._slots[block_hash] = slot
        slot.writing |= part
        self._policy.remove(block_hash)
        return slot, eviction

    def end_write(self, block_hash: bytes, part: int, success: bool) -> bool:
        """The part is readable from now on, or gone; True if this made it readable."""
        slot = self._slots.get(block_hash)
        if slot is None or not slot.writing & part:
            return False
        slot.writing &= ~part
        if success:
            slot.ready |= part
        self._settle(slot)
        return success

    def begin_load(self, slot: Slot) -> None:
        """A transfer reads it."""
        slot.loads += 1
        self._policy.remove(slot.block_hash)

    def end_load(self, slot: Slot) -> None:
        """The transfer is done."""
        slot.loads -= 1
        self._settle(slot)

    def hold(self, slot: Slot) -> None:
        """A running request needs it to stay."""
        slot.holds += 1
        self._policy.remove(slot.block_hash)

    def release(self, slot: Slot) -> None:
        """That request has ended."""
        slot.holds -= 1
        self._settle(slot)

    def end_hold(self, slot: Slot) -> None:
        """As `release`, for one that is touched next: only then may it go."""
        slot.holds -= 1

    def touch(self, slot: Slot) -> None:
        """It was used now."""
        slot.superseded = False
        self._settle(slot)

    def supersede(self, slot: Slot) -> None:
        """Its session has newer ones: first victim unless it is used again."""
        if not slot.superseded:
            slot.superseded = True
            self._queue(slot)

    def adopt(self, slots: Iterable[Slot]) -> None:
        """Slots of an earlier run, least valuable first; into an empty pool."""
        for slot in slots:
            self._slots[slot.block_hash] = slot
            self._policy.add(slot.block_hash, slot.superseded)
        taken = {slot.index for slot in self._slots.values()}
        self._fresh = max(taken, default=-1) + 1
        self._free = [index for index in range(self._fresh) if index not in taken]

    def clear(self) -> None:
        """Forget everything, transfers in flight included."""
        self._slots.clear()
        self._policy.clear()
        self._free.clear()
        self._fresh = 0

    def _settle(self, slot: Slot) -> None:
        slot.last_used = self._clock()
        if slot.ready or slot.in_use:
            self._queue(slot)
        else:  # what was to be written here could not be
            self._drop(slot)

    def _queue(self, slot: Slot) -> None:
        if not slot.in_use:
            self._policy.add(slot.block_hash, slot.superseded)

    def _take(self) -> tuple[int | None, Eviction | None]:
        if self._free:
            return self._free.pop(), None
        if self._fresh < self.capacity:
            self._fresh += 1
            return self._fresh - 1, None
        victim = self._policy.victim()
        if victim is None:
            return None, None
        slot = self._slots.pop(victim.block_hash)
        return slot.index, Eviction(slot, victim.reason, self._clock() - slot.last_used)

    def _drop(self, slot: Slot) -> None:
        del self._slots[slot.block_hash]
        self._policy.remove(slot.block_hash)
        self._free.append(slot.index)
