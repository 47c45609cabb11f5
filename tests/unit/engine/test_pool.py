"""Slots against a simple model of them: a list in order of use."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from engine.policies import ArcPolicy, EvictionPolicy, LruPolicy
from engine.pool import SlotPool

CAPACITY = 4
HASHES = st.sampled_from([bytes([number]) for number in range(9)])
PARTS = st.sampled_from([1, 2])


class PoolMachine(RuleBasedStateMachine):
    """The model: hashes in order of use, and for each which parts are ready, being written, in use."""

    def policy(self) -> EvictionPolicy:
        return LruPolicy()

    def may_go(self, victims: list[bytes]) -> list[bytes]:
        """Which of those that are not in use, the first victim first, may be the next one."""
        return victims[:1]

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.pool = SlotPool(CAPACITY, 3, self.policy(), lambda: self.now)
        self.order: list[bytes] = []  # oldest first
        self.ready: dict[bytes, int] = {}
        self.writing: dict[bytes, int] = {}
        self.uses: dict[bytes, int] = {}
        self.superseded: set[bytes] = set()

    def _use(self, block_hash: bytes) -> None:
        self.now += 1
        self.order.remove(block_hash)
        self.order.append(block_hash)

    def _settle(self, block_hash: bytes) -> None:
        if self.ready[block_hash] or self.writing[block_hash] or self.uses[block_hash]:
            self._use(block_hash)
        else:
            self._forget(block_hash)

    def _free_to_go(self) -> list[bytes]:
        idle = [h for h in self.order if not self.writing[h] and not self.uses[h]]
        return [h for h in idle if h in self.superseded] + [h for h in idle if h not in self.superseded]

    def _forget(self, block_hash: bytes) -> None:
        self.order.remove(block_hash)
        for table in (self.ready, self.writing, self.uses):
            del table[block_hash]
        self.superseded.discard(block_hash)

    @rule(block_hash=HASHES, part=PARTS)
    def begin_write(self, block_hash: bytes, part: int) -> None:
        if (self.ready.get(block_hash, 0) | self.writing.get(block_hash, 0)) & part:
            return
        full = block_hash not in self.order and len(self.order) == CAPACITY
        victims = self._free_to_go()
        may_go = self.may_go(victims) if victims else []
        slot = self.pool.get(block_hash) or self.pool.place(block_hash, 10, None)
        if full and not victims:
            assert slot is None and not self.pool.evicted
            return
        assert slot is not None
        assert len(self.pool.evicted) == full
        if full:
            evicted = self.pool.evicted.pop()
            assert evicted.block_hash in may_go, "superseded ones go first, the oldest of them first"
            assert evicted.superseded == (evicted.block_hash in self.superseded)
            assert evicted.index == slot.index
            self._forget(evicted.block_hash)
        self.pool.begin_write(slot, part)
        if block_hash not in self.order:
            self.order.append(block_hash)
            self.ready[block_hash] = self.writing[block_hash] = self.uses[block_hash] = 0
        self.writing[block_hash] |= part

    @rule(block_hash=HASHES, part=PARTS, success=st.booleans())
    def end_write(self, block_hash: bytes, part: int, success: bool) -> None:
        slot = self.pool.get(block_hash)
        if slot is None or not self.writing[block_hash] & part:
            assert slot is None or not self.pool.end_write(slot, part, success)
            return
        assert self.pool.end_write(slot, part, success) == success
        self.writing[block_hash] &= ~part
        if success:
            self.ready[block_hash] |= part
        if not self.writing[block_hash] and not self.uses[block_hash]:
            self._settle(block_hash)

    @precondition(lambda self: self.order)
    @rule(data=st.data())
    def use(self, data: st.DataObject) -> None:
        block_hash = data.draw(st.sampled_from(self.order))
        self.pool.use(self.pool.slots[block_hash])
        self.uses[block_hash] += 1

    @precondition(lambda self: any(self.uses.values()))
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        block_hash = data.draw(st.sampled_from([h for h in self.order if self.uses[h]]))
        self.pool.release(self.pool.slots[block_hash])
        self.uses[block_hash] -= 1
        if not self.writing[block_hash] and not self.uses[block_hash]:
            self._settle(block_hash)

    @rule(block_hashes=st.lists(HASHES, unique=True), data=st.data())
    def touch(self, block_hashes: list[bytes], data: st.DataObject) -> None:
        used = {h for h in block_hashes if self.uses.get(h) and data.draw(st.booleans())}
        touched = self.pool.touch_all(block_hashes, used)
        assert [slot.block_hash for slot in touched] == [h for h in block_hashes if h in self.order]
        for block_hash in block_hashes:
            if block_hash in self.order:
                self.uses[block_hash] -= block_hash in used
                self._settle(block_hash)

    @rule(block_hash=HASHES, superseded=st.booleans())
    def mark(self, block_hash: bytes, superseded: bool) -> None:
        slot = self.pool.get(block_hash)
        if slot is not None and superseded != (block_hash in self.superseded):
            self.pool.mark(slot, superseded)
            self.superseded.symmetric_difference_update({block_hash})
            self._use(block_hash)

    @rule(block_hash=HASHES)
    def come_back(self, block_hash: bytes) -> None:
        slot = self.pool.get(block_hash)
        if slot is not None:
            if not slot.again or block_hash in self.superseded:
                self._use(block_hash)
            self.pool.come_back(slot)
            self.superseded.discard(block_hash)

    @rule(block_hash=HASHES)
    def spoil(self, block_hash: bytes) -> None:
        slot = self.pool.get(block_hash)
        if slot is not None:
            self.pool.spoil(slot)
            self.ready[block_hash] = 0
            if not self.writing[block_hash] and not self.uses[block_hash]:
                self._settle(block_hash)

    @rule()
    def clear(self) -> None:
        self.pool.clear()
        for block_hash in list(self.order):
            self._forget(block_hash)

    @invariant()
    def agrees(self) -> None:
        assert {slot.block_hash for slot in self.pool} == set(self.order)
        indices = [slot.index for slot in self.pool]
        assert len(indices) == len(set(indices)), "no two hashes share a slot"
        assert all(0 <= index < CAPACITY for index in indices)
        assert self.pool.in_use == sum(bool(self.writing[h] or self.uses[h]) for h in self.order)
        for block_hash in self.order:
            slot = self.pool.get(block_hash)
            assert slot is not None
            assert (slot.ready, slot.writing) == (self.ready[block_hash], self.writing[block_hash])


class ArcPoolMachine(PoolMachine):
    """With adaptive replacement: the oldest of what was used once, or the oldest of what was used again."""

    def policy(self) -> EvictionPolicy:
        return ArcPolicy(CAPACITY)

    def may_go(self, victims: list[bytes]) -> list[bytes]:
        if victims[0] in self.superseded:
            return victims[:1]
        firsts = {self.again(block_hash): block_hash for block_hash in reversed(victims)}
        return list(firsts.values())

    def again(self, block_hash: bytes) -> bool:
        return self.pool.slots[block_hash].again


TestPool = PoolMachine.TestCase
TestArcPool = ArcPoolMachine.TestCase
TestArcPool.settings = settings(max_examples=100, stateful_step_count=40)
TestPool.settings = settings(max_examples=150, stateful_step_count=40)
