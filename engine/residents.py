"""Which chains are whole: pure reading of the pools."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from engine.layout import HostLayout, PoolName
from engine.pool import Slot, SlotPool

#: Counting again waits this many times what the last count took: at most half a per cent of a core.
PATIENCE = 200.0


def resident_tokens(chain: Mapping[int, bytes], blocks: SlotPool, start: int, chunk_tokens: int) -> int:
    """Up to which token all blocks behind `start` are readable."""
    end = start + chunk_tokens
    while end in chain and blocks.whole(chain[end]):
        end += chunk_tokens
    return end - chunk_tokens


class RestorableCount:
    """How many sessions could come back whole; counted again when something changed, and not too often."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._value = 0
        self._outdated = False
        self._not_before = 0.0

    def outdated(self) -> None:
        """Something came or went."""
        self._outdated = True

    def value(self, pools: Mapping[PoolName, SlotPool], layout: HostLayout, idle: bool) -> int:
        """The count; when `idle`, no later call may come, so it is brought up to date at once."""
        began = self._clock()
        if self._outdated and (idle or began >= self._not_before):
            self._value = restorable_sessions(pools, layout)
            self._outdated = False
            self._not_before = self._clock() + PATIENCE * (self._clock() - began)
        return self._value


def restorable_sessions(pools: Mapping[PoolName, SlotPool], layout: HostLayout) -> int:
    """Boundaries from which a session could go on, leaving out those on the way to a later one."""
    blocks, states = pools["token"], pools["state"]
    ends = states if layout.pool_groups("state") else blocks
    if not layout.pool_groups("token"):
        return sum(slot.ready == states.all_parts for slot in states)
    passed: dict[bytes, bool] = {}
    candidates = sorted((slot for slot in ends if slot.ready == ends.all_parts), key=_by_end, reverse=True)
    return sum(
        _leads_to_start(slot.block_hash, blocks, passed) for slot in candidates if not passed.get(slot.block_hash)
    )


def _by_end(slot: Slot) -> int:
    return slot.end_tokens


def _leads_to_start(block_hash: bytes, blocks: SlotPool, passed: dict[bytes, bool]) -> bool:
    """Whether every block back to the first one is there; noted for each block on the way."""
    way: list[bytes] = []
    at: bytes | None = block_hash
    whole = True
    while at is not None:
        if at in passed:
            whole = passed[at]
            break
        slot = blocks.get(at)
        if slot is None or slot.ready != blocks.all_parts:
            whole = False
            break
        way.append(at)
        at = slot.parent
    passed.update(dict.fromkeys(way, whole))
    return whole
