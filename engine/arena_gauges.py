"""What one arena looks like to the metrics, which know two kinds of slots."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, NamedTuple

from engine import metric_names as names
from engine.layout import PoolName
from engine.metrics import Recorder
from engine.one_arena import OneArena
from engine.visits import Visit

#: Counting what is pinned again waits this many times what the last count took.
PATIENCE: Final = 200.0


class _PoolUse(NamedTuple):
    """One kind of slot as the metrics have it."""

    pool: PoolName
    slots: int
    used: int
    pinned: int
    pages: int


class ArenaGauges:
    """Reads an arena. `page_bytes` are over all workers."""

    def __init__(self, arena: OneArena, page_bytes: int) -> None:
        self._arena = arena
        self._page_bytes = page_bytes
        self._counts = (0, 0)
        self._count_not_before = 0.0

    def record(self, recorder: Recorder, visits: Collection[Visit]) -> None:
        """All gauges, while these requests run."""
        for use in self._pools(visits):
            recorder.gauge(names.SLOTS, use.slots, use.pool, names.ALL_GROUPS)
            recorder.gauge(names.SLOTS_USED, use.used, use.pool, names.ALL_GROUPS)
            recorder.gauge(names.SLOTS_PINNED, use.pinned, use.pool, names.ALL_GROUPS)
            recorder.gauge(names.HOST_BYTES, use.pages * self._page_bytes, use.pool)
        recorder.gauge(names.RESTORABLE_SESSIONS, len(self._arena.leaves))

    def _pools(self, visits: Collection[Visit]) -> tuple[_PoolUse, _PoolUse]:
        """Both kinds of slot. There is no split: what states do not take counts as room for blocks, and of
        states there could be as many as there are and fit into what is free.
        """
        arena, plan = self._arena, self._arena.plan
        blocks = arena.stored_blocks if plan.token_pages else 0
        states = len(arena.states) if plan.state_pages else 0
        state_pages = states * plan.state_pages
        block_pages = plan.pages - state_pages
        pinned_blocks, pinned_states = self._pinned(visits)
        block_slots = block_pages // plan.token_pages if plan.token_pages else 0
        state_slots = states + arena.pages.free // plan.state_pages if plan.state_pages else 0
        return (
            _PoolUse("token", block_slots, blocks, pinned_blocks, block_pages if plan.token_pages else 0),
            _PoolUse("state", state_slots, states, pinned_states, state_pages if plan.token_pages else plan.pages),
        )

    def _pinned(self, visits: Collection[Visit]) -> tuple[int, int]:
        """Pinned blocks and states; counted again when something changed, and not too often."""
        if not visits:
            return 0, 0
        clock = self._arena.clock
        began = clock()
        if began >= self._count_not_before:
            self._counts = self._arena.pinned(visits)
            self._count_not_before = clock() + PATIENCE * (clock() - began)
        return self._counts
