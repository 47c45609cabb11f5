"""Engines whose contents outlive them: one with a static split (workers with real files, scheduler, no vLLM), and how
any of them is killed while it writes.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from vllm.v1.kv_offload.base import LookupResult, OffloadKey, get_offload_group_idx

from engine.arena import Arena
from engine.layout import HostLayout
from engine.manager import TierManager
from engine.residency import ResidentMemory, pool_shapes
from engine.residency_identity import ARENA_KEY
from engine.residency_plan import Plan
from engine.residency_region import WorkerShare
from tests.unit.engine.chains import Request, layout

WRITING: Final = "writing"


def plan_of(mount: Path, run_name: str, lay: HostLayout, workers: int = 1, **identity: Any) -> Plan:
    """As `residency_of` makes it."""
    found = {"format": 1, "layout": [lay.token_slot_bytes, lay.state_slot_bytes], **identity}
    if lay.pages:
        found[ARENA_KEY] = {"page_bytes": lay.page_bytes}
    return Plan(mount / "tierdeck-e" / "engine-0", run_name, found, pool_shapes(lay), workers, layout=lay)


class Engine:
    """Workers and scheduler of one start. `kill` leaves everything as a SIGKILL of all of them would."""

    def __init__(self, plan: Plan, lay: HostLayout, policy: str = "lru") -> None:
        self.plan, self.layout = plan, lay
        self.shares = [WorkerShare(plan, rank, 0.0) for rank in range(plan.world_size)]
        self.arenas = [Arena(lay, share) for share in self.shares]
        self.memory = ResidentMemory(plan, 0.0)
        self.manager = TierManager(lay, plan.world_size, memory=self.memory, policy=policy)

    def kill(self) -> None:
        self.memory.close()
        for arena in self.arenas:
            arena.close()

    def write(self, keys: list[OffloadKey], slots: list[int], whole: bool = True) -> None:
        """What the copy threads do; half of it if they are killed on the way."""
        for arena in self.arenas:
            arena.begin_writing()
        for key, slot in zip(keys, slots, strict=True):
            for rank, place in enumerate(self.places(key, slot)):
                wanted = pattern(key, rank, len(place))
                place[: len(place) if whole else len(place) // 2] = wanted[: None if whole else len(place) // 2]

    def places(self, key: OffloadKey, slot: int) -> list[NDArray[np.uint8]]:
        group = self.layout.groups[get_offload_group_idx(key)]
        begin = slot * self.layout.slot_bytes(group.pool) + group.offset_bytes
        spans = [arena._memory[group.pool] for arena in self.arenas]
        return [span[begin : begin + group.bytes_per_block] for span in spans]

    def store(self, request: Request, keys: list[OffloadKey]) -> None:
        output = self.manager.prepare_store(keys, request.context)
        assert output is not None
        self.write(output.keys_to_store, output.store_spec.slots.tolist())
        self.manager.complete_store(set(output.keys_to_store), request.context)

    def session(self, blocks: str) -> None:
        request = Request(self.manager, blocks, blocks)
        for key in request.states(len(blocks) - 1) if self.layout.state_slot_bytes else ():
            self.store(request, [key])
        self.store(request, request.tokens())
        request.finish()

    def check(self, sessions: Iterable[str]) -> None:
        """Whatever is a hit has the bytes that were stored."""
        for blocks in sessions:
            request = Request(self.manager, f"check {blocks}", blocks)
            keys = [*request.tokens(), *(key for number in range(len(blocks)) for key in request.states(number + 1))]
            hits = [key for key in keys if self.manager.lookup(key, request.context) is LookupResult.HIT]
            self.check_bytes(hits, self.manager.prepare_load(hits, request.context))
            self.manager.complete_load(hits, request.context)
            request.finish()

    def check_bytes(self, keys: list[OffloadKey], spec: Any) -> None:
        for key, slot in zip(keys, spec.slots.tolist(), strict=True):
            for rank, place in enumerate(self.places(key, slot)):
                assert np.array_equal(place, pattern(key, rank, len(place))), (key, slot, rank)

    def found(self, blocks: str) -> int:
        """Blocks that come back, with the bytes that were stored."""
        request = Request(self.manager, f"again {blocks} {time.monotonic_ns()}", blocks)
        count, has_states = restorable(request, self.layout), self.layout.state_slot_bytes
        keys = [*request.tokens(0, count), *(request.states(count) if has_states else [])] if count else []
        self.check_bytes(keys, self.manager.prepare_load(keys, request.context))
        self.manager.complete_load(keys, request.context)
        request.finish()
        return count


def restorable(request: Request, lay: HostLayout) -> int:
    """How many blocks a request would get back."""
    if lay.state_slot_bytes:
        return request.lookup_blocks()
    last = len(request.hashes) - 1
    return next((at for at in range(last) if not request.has(request.tokens(at, at + 1))), last)


def pattern(key: OffloadKey, rank: int, size: int) -> NDArray[np.uint8]:
    """The bytes that belong to a key on a worker."""
    return np.frombuffer((key + bytes([rank])) * (size // len(key) + 1), np.uint8)[:size]


def start(mount: Path, name: str, lay: HostLayout | None = None, workers: int = 1, **identity: Any) -> Engine:
    lay = lay or layout(40, 8)
    return Engine(plan_of(mount, name, lay, workers, **identity), lay)


def write_without_end(mount: Path, session: Callable[[str], None], shortest: int) -> None:
    """Fifty sessions again and again, of two blocks and `shortest` to six more; a few in, it is told in the mount."""
    for number in itertools.count():
        if number == 5:
            (mount / WRITING).touch()
        session(f"{number % 50:02}" + "abcdef"[: shortest + number % (7 - shortest)])


def kill_while_writing(mount: Path, process: BaseProcess, number: int) -> None:
    """SIGKILL once it has written a few sessions, a little later each time."""
    while not (mount / WRITING).exists():
        time.sleep(0.001)
    time.sleep(0.0037 * number)  # the moment is what is tried
    process.kill()
    process.join()
    (mount / WRITING).unlink()
