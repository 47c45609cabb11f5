"""A pool of equal slots: who sits where, who is in use, who went.

A slot holds one block hash for all the layer groups of the pool, a group being one part of it. The
pool knows no requests, no bytes and no vLLM.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass

from engine.policies import EvictionPolicy


@dataclass(slots=True, eq=False)
class Slot:
    """What sits in one slot. Parts are bits: the n-th group of the pool is `1 << n`.

    While something uses it, or nothing of it can be read, it is not in the policy's order.
    """

    block_hash: bytes
    index: int
    end_tokens: int
    parent: bytes | None
    last_used: float
    ready: int = 0
    writing: int = 0
    uses: int = 0  # parts being written, loads under way, running requests that need it to stay
    superseded: bool = False
    again: bool = False  # a request has come back to it


class SlotPool:
    """Slots by block hash. Every operation is O(1) per slot; nothing in use is ever evicted."""

    def __init__(self, capacity: int, needed_parts: int, policy: EvictionPolicy, clock: Callable[[], float]) -> None:
        self.capacity = capacity
        self.needed_parts = needed_parts
        #: By block hash, for readers.
        self.slots: dict[bytes, Slot] = {}
        #: Slots that were given to something else, for whoever counts them.
        self.evicted: list[Slot] = []
        self.policy = policy
        self._clock = clock
        self._free: list[int] = []
        self._fresh = 0  # indices from here on were never used: their memory is untouched

    def __len__(self) -> int:
        return len(self.slots)

    def __iter__(self) -> Iterator[Slot]:
        return iter(self.slots.values())

    @property
    def in_use(self) -> int:
        """Slots that cannot be evicted now."""
        return len(self.slots) - len(self.policy)

    def get(self, block_hash: bytes) -> Slot | None:
        """The slot of this hash, whatever state it is in."""
        return self.slots.get(block_hash)

    def whole(self, block_hash: bytes) -> bool:
        """All parts that are needed are there and readable."""
        slot = self.slots.get(block_hash)
        return slot is not None and slot.ready & self.needed_parts == self.needed_parts

    def place(self, block_hash: bytes, end_tokens: int, parent: bytes | None) -> Slot | None:
        """A slot for a hash that has none, evicting if need be; None if all are in use. Write to it next."""
        if self._free:
            index = self._free.pop()
        elif self._fresh < self.capacity:
            index = self._fresh
            self._fresh += 1
        else:
            victim = self.policy.victim()
            if victim is None:
                return None
            del self.slots[victim.block_hash]
            self.evicted.append(victim)
            index = victim.index
        slot = self.slots[block_hash] = Slot(block_hash, index, end_tokens, parent, self._clock())
        slot.again = self.policy.remembers(block_hash)
        return slot

    def begin_write(self, slot: Slot, part: int) -> None:
        """A transfer writes this part."""
        self.use(slot)
        slot.writing |= part

    def end_write(self, slot: Slot, part: int, success: bool) -> bool:
        """The part is readable from now on, or gone; True if this made it readable."""
        if not slot.writing & part:
            return False
        slot.writing &= ~part
        if success:
            slot.ready |= part
        self.release(slot)
        return success

    def use(self, slot: Slot) -> None:
        """A transfer or a running request needs it: it must stay."""
        if not slot.uses and slot.ready:
            self.policy.remove(slot)
        slot.uses += 1

    def release(self, slot: Slot) -> None:
        """One of them does not need it any more."""
        slot.uses -= 1
        if not slot.uses:
            self._settle(slot)

    def mark(self, slot: Slot, superseded: bool) -> None:
        """Its session has newer ones, so it is a first victim; or it is not one after all."""
        if slot.superseded != superseded:
            self._change(slot, superseded, slot.again)

    def come_back(self, slot: Slot) -> None:
        """A request has found it."""
        if slot.superseded or not slot.again:
            self._change(slot, False, True)

    def _change(self, slot: Slot, superseded: bool, again: bool) -> None:
        listed = slot.ready and not slot.uses
        if listed:
            self.policy.remove(slot)
        slot.superseded, slot.again = superseded, again
        if listed:
            self.policy.add(slot)

    def touch_all(self, block_hashes: Iterable[bytes], used: Collection[bytes] = ()) -> list[Slot]:
        """Those that are there were used now, the last one last; those in `used` once less from now on."""
        now, touched = self._clock(), []
        slots, add = self.slots, self.policy.add
        for block_hash in block_hashes:
            slot = slots.get(block_hash)
            if slot is None:
                continue
            if block_hash in used:
                slot.uses -= 1
            slot.last_used = now
            touched.append(slot)
            if slot.uses:
                continue
            if slot.ready:
                add(slot)
            else:
                self._drop(slot)
        return touched

    def spoil(self, slot: Slot) -> None:
        """What it holds must not be read again. It goes when nothing uses it any more."""
        self.use(slot)
        slot.ready = 0
        self.release(slot)

    def adopt(self, slots: Iterable[Slot]) -> None:
        """Slots of an earlier run, least valuable first; into an empty pool."""
        for slot in slots:
            self.slots[slot.block_hash] = slot
            self.policy.add(slot)
        taken = {slot.index for slot in self.slots.values()}
        self._fresh = max(taken, default=-1) + 1
        self._free = [index for index in range(self._fresh) if index not in taken]

    def clear(self) -> None:
        """Forget everything, transfers in flight included."""
        self.slots.clear()
        self.evicted.clear()
        self.policy.clear()
        self._free.clear()
        self._fresh = 0

    def _settle(self, slot: Slot) -> None:
        slot.last_used = self._clock()
        if slot.ready:
            self.policy.add(slot)
        else:  # what was to be written here could not be
            self._drop(slot)

    def _drop(self, slot: Slot) -> None:
        del self.slots[slot.block_hash]
        self._free.append(slot.index)
