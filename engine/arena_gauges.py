"""What one arena looks like to the metrics, which know two kinds of slots."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from engine import metric_names as names
from engine.metrics import Recorder
from engine.one_arena import OneArena
from engine.visits import Visit

#: Counting what is pinned again waits this many times what the last count took.
PATIENCE: Final = 200.0


_SLOT_GAUGES: Final = (names.SLOTS, names.SLOTS_USED, names.SLOTS_PINNED)
_SERIES: Final = (
    *((name, (pool, names.ALL_GROUPS)) for pool in names.POOLS for name in _SLOT_GAUGES),
    *((names.HOST_BYTES, (pool,)) for pool in names.POOLS),
    (names.RESTORABLE_SESSIONS, ()),
)


class ArenaGauges:
    """Reads an arena. `page_bytes` are over all workers."""

    def __init__(self, arena: OneArena, page_bytes: int) -> None:
        self._arena = arena
        self._page_bytes = page_bytes
        self._counts = (0, 0)
        self._count_not_before = 0.0

    def record(self, recorder: Recorder, visits: Collection[Visit]) -> None:
        """All gauges, while these requests run."""
        recorder.gauge_all(_SERIES, self._values(visits))

    def _values(self, visits: Collection[Visit]) -> tuple[int, ...]:
        """In the order of the series. There is no split: what states do not take counts as room for blocks, and of
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
            *(block_slots, blocks, pinned_blocks, state_slots, states, pinned_states),
            (block_pages if plan.token_pages else 0) * self._page_bytes,
            (state_pages if plan.token_pages else plan.pages) * self._page_bytes,
            len(arena.leaves),
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
