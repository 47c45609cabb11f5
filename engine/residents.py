"""Which chains are whole: pure reading of the pools."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping

from engine.layout import HostLayout, PoolName
from engine.pool import SlotPool

#: Counting may take this share of the time that passes, and this many seconds at once.
SHARE = 0.005
MOST_SECONDS = 0.02
#: Below this it is not worth beginning.
LEAST_SECONDS = 0.0005
#: Blocks between two looks at the clock.
STRIDE = 200


def resident_tokens(chain: Mapping[int, bytes], blocks: SlotPool, start: int, chunk_tokens: int) -> int:
    """Up to which token all blocks behind `start` are readable."""
    end, slots, needed = start + chunk_tokens, blocks.slots, blocks.needed_parts
    while end in chain:
        slot = slots.get(chain[end])
        if slot is None or slot.ready & needed != needed:
            break
        end += chunk_tokens
    return end - chunk_tokens


class RestorableCount:
    """How many sessions could come back whole: counted again when something changed, a little at a time, so
    that no step of the engine waits for it however many slots there are.
    """

    def __init__(
        self,
        pools: Mapping[PoolName, SlotPool],
        layout: HostLayout,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._pools = pools
        self._layout = layout
        self._clock = clock
        self._value = 0
        self._outdated = False
        self._counting: Iterator[int | None] | None = None
        self._credit_since = clock() - MOST_SECONDS / SHARE

    def outdated(self) -> None:
        """Something came or went."""
        self._outdated = True

    def value(self) -> int:
        """The last whole count."""
        if self._outdated or self._counting is not None:
            began = self._clock()
            credit = min((began - self._credit_since) * SHARE, MOST_SECONDS)
            if credit >= LEAST_SECONDS:
                self._go_on(began + credit)
                spent = self._clock() - began
                self._credit_since = began - (credit - spent) / SHARE
        return self._value

    def _go_on(self, until: float) -> None:
        if self._counting is None:
            self._outdated = False
            self._counting = count_restorable(self._pools, self._layout)
        for count in self._counting:
            if count is not None:
                self._value, self._counting = count, None
                return
            if self._clock() >= until:
                return


def count_restorable(pools: Mapping[PoolName, SlotPool], layout: HostLayout) -> Iterator[int | None]:
    """Boundaries from which a session could go on, leaving out those on the way to a later one.

    Yields None now and then, and the count at the end.
    """
    blocks = pools["token"]
    ends = pools["state"] if layout.pool_groups("state") else blocks
    candidates = [slot.block_hash for slot in ends if slot.ready & ends.needed_parts == ends.needed_parts]
    if not layout.pool_groups("token"):
        yield len(candidates)
        return
    whole: dict[bytes, bool] = {}
    passed: set[bytes] = set()
    seen = 0
    for block_hash in candidates:
        _walk(block_hash, blocks, whole, passed)
        if len(whole) - seen >= STRIDE:
            seen = len(whole)
            yield None
    yield sum(whole[block_hash] and block_hash not in passed for block_hash in candidates)


def _walk(block_hash: bytes, blocks: SlotPool, whole: dict[bytes, bool], passed: set[bytes]) -> None:
    """Note for each block on the way to the first one whether all before it are there, and that it was passed."""
    way: list[bytes] = []
    at: bytes | None = block_hash
    complete, needed = True, blocks.needed_parts
    while at is not None:
        if at in whole:
            complete = whole[at]
            break
        slot = blocks.slots.get(at)
        if slot is None or slot.ready & needed != needed:
            complete = False
            break
        way.append(at)
        at = slot.parent
    whole[block_hash] = complete
    whole.update(dict.fromkeys(way, complete))
    if complete:
        passed.update(way[1:])
        if at is not None:
            passed.add(at)
