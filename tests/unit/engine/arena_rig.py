"""An engine with one arena whose contents outlive it: workers with real files, scheduler, no vLLM."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from vllm.v1.kv_offload.base import OffloadKey, get_offload_group_idx

from engine.arena import Arena
from engine.layout import GroupLayout, HostLayout
from engine.page_arena import Run
from engine.residency_arena import ResidentArena
from engine.residency_region import WorkerShare
from engine.sizing import SlotPlan
from engine.value_manager import PagesSpec, ValueManager
from tests.unit.engine.chains import CHUNK, Clock, Request
from tests.unit.engine.residency_rig import pattern, plan_of, restorable

PAGE, TOKEN_PAGES, STATE_PAGES = 64, 2, 3
HALF_STATE = STATE_PAGES * PAGE // 2


def arena_layout(pages: int, states: bool = True) -> HostLayout:
    """A block takes two pages, a state of two groups three; or attention alone."""
    groups = (
        GroupLayout(0, 0, "token", CHUNK, TOKEN_PAGES * PAGE, 1, 0),
        GroupLayout(1, 1, "state", CHUNK, HALF_STATE, 1, 0),
        GroupLayout(2, 2, "state", CHUNK, HALF_STATE, 2, HALF_STATE),
    )
    state_bytes = 2 * HALF_STATE if states else 0
    return HostLayout(groups if states else groups[:1], 1, TOKEN_PAGES * PAGE, state_bytes, SlotPlan(0, 0), pages, PAGE)


class ArenaEngine:
    """One start. `kill` leaves everything as a SIGKILL of all its processes would."""

    def __init__(
        self,
        mount: Path,
        run: str,
        layout: HostLayout,
        workers: int = 1,
        policy: str = "value",
        clock: Clock | None = None,
    ) -> None:
        plan = plan_of(mount, run, layout, workers)
        self.layout = layout
        self.arenas = [Arena(layout, WorkerShare(plan, rank, 0.0)) for rank in range(workers)]
        self.memory = ResidentArena(plan, 0.0)
        self.manager = ValueManager(layout, policy, workers, events=True, clock=clock or Clock(), memory=self.memory)

    def kill(self) -> None:
        self.memory.close()
        for arena in self.arenas:
            arena.close()

    def write(self, keys: Sequence[OffloadKey], slots: Sequence[tuple[Run, ...]], whole: bool = True) -> None:
        """What the copy threads do; half of it if they are killed on the way."""
        for rank, arena in enumerate(self.arenas):
            arena.begin_writing()
            for key, pages in zip(keys, slots, strict=True):
                group = self.layout.groups[get_offload_group_idx(key)]
                at = places(pages, self.layout.page_bytes)[
                    group.offset_bytes : group.offset_bytes + group.bytes_per_block
                ]
                wanted = pattern(key, rank, len(at))
                count = len(at) if whole else len(at) // 2
                arena.spans[0][at[:count]] = wanted[:count]

    def check_bytes(self, keys: Sequence[OffloadKey], slots: Sequence[tuple[Run, ...]]) -> None:
        """What is there is what was stored under these keys."""
        for rank, arena in enumerate(self.arenas):
            for key, pages in zip(keys, slots, strict=True):
                group = self.layout.groups[get_offload_group_idx(key)]
                at = places(pages, self.layout.page_bytes)[
                    group.offset_bytes : group.offset_bytes + group.bytes_per_block
                ]
                assert np.array_equal(arena.spans[0][at], pattern(key, rank, len(at))), (key, pages, rank)

    def _places(self, key: OffloadKey, pages: tuple[Run, ...]) -> NDArray[np.int64]:
        group = self.layout.groups[get_offload_group_idx(key)]
        return places(pages, self.layout.page_bytes)[group.offset_bytes : group.offset_bytes + group.bytes_per_block]

    def request(self, name: str, blocks: str) -> Request:
        return Request(self.manager, f"{name} {blocks} {time.monotonic_ns()}", blocks)

    def store(self, request: Request, keys: Sequence[OffloadKey]) -> list[OffloadKey]:
        """Copied and acknowledged; returns what had not been there."""
        output = self.manager.prepare_store(keys, request.context)
        assert output is not None
        assert isinstance(output.store_spec, PagesSpec)
        self.write(output.keys_to_store, output.store_spec.slots)
        self.manager.complete_store(set(output.keys_to_store), request.context)
        return output.keys_to_store

    def session(self, blocks: str) -> None:
        """A whole request that keeps the state before its last block."""
        request = self.request("store", blocks)
        self.found(blocks, request)
        request.begin()
        if self.layout.state_slot_bytes:
            for key in request.states(len(blocks) - 1):
                self.store(request, [key])
        self.store(request, request.tokens())
        request.finish()

    def found(self, blocks: str, request: Request | None = None) -> int:
        """Blocks that come back, with the bytes that were stored."""
        asking = request or self.request("again", blocks)
        count = restorable(asking, self.layout)
        if count:
            keys = [*asking.tokens(0, count), *(asking.states(count) if self.layout.state_slot_bytes else [])]
            spec = self.manager.prepare_load(keys, asking.context)
            assert isinstance(spec, PagesSpec)
            self.check_bytes(keys, spec.slots)
            self.manager.complete_load(set(keys), asking.context)
        if request is None:
            asking.begin()
            asking.finish()
        return count


def places(pages: tuple[Run, ...], page_bytes: int = PAGE) -> NDArray[np.int64]:
    """Where the bytes of a slot lie in a worker's arena."""
    return np.concatenate(
        [np.arange(run.first * page_bytes, (run.first + run.pages) * page_bytes, dtype=np.int64) for run in pages]
    )
