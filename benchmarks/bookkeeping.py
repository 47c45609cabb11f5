"""What the scheduler pays for the host tier per request and per key, against vLLM's own CPU manager.

Both managers see the same requests in the same run: half of them new, half of them sessions that come
back. No engine, no bytes: only the bookkeeping, with every slot taken, so that each store evicts.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import json
import sys
import tempfile
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from vllm.v1.kv_offload.base import (
    LookupResult,
    OffloadingManager,
    OffloadKey,
    ReqContext,
    ScheduleEndContext,
    make_offload_key,
)
from vllm.v1.kv_offload.cpu.manager import CPUOffloadingManager

from benchmarks.replay import no_collections
from engine.config import SPLIT_POLICIES
from engine.layout import GroupLayout, HostLayout
from engine.manager import TierManager
from engine.page_arena import page_bytes, pages_of
from engine.residency import ResidentMemory, pool_shapes
from engine.residency_arena import ResidentArena
from engine.residency_place import MOUNT, PREFIX
from engine.residency_plan import Plan, WorkerNote, write_note
from engine.sizing import SlotPlan
from engine.value_manager import ValueManager

SIZES = (1_000, 10_000, 100_000, 1_000_000)
#: As the demo model: one group of attention layers, three of linear ones, blocks of 384 tokens.
TOKEN_GROUP, STATE_GROUPS = 3, (0, 1, 2)
BLOCK_TOKENS = 384
BLOCKS = 64
#: Blocks that one step of prefill completes.
STEP_BLOCKS = 8
ROUNDS = 15


@dataclass(frozen=True)
class Session:
    """A prompt of 64 whole blocks: its keys, each with the token position it ends at."""

    tokens: list[OffloadKey]
    states: list[OffloadKey]

    @property
    def keys(self) -> int:
        """How many keys a request of it touches."""
        return len(self.tokens) + len(self.states)

    def context(self, name: str) -> ReqContext:
        """A request, as vLLM's scheduler presents it."""
        context = ReqContext(name)
        for group in (*STATE_GROUPS, TOKEN_GROUP):
            for number, key in enumerate(self.tokens, 1):
                context.set_offload_key_position(make_offload_key(key[:-4], group), number * BLOCK_TOKENS)
        return context


def session(number: int) -> Session:
    """Sessions of different numbers share no block. The state is the one before the last block."""
    hashes = [hashlib.sha256(f"{number} {block}".encode()).digest() for block in range(BLOCKS)]
    tokens = [make_offload_key(block_hash, TOKEN_GROUP) for block_hash in hashes]
    return Session(tokens, [make_offload_key(hashes[-2], group) for group in STATE_GROUPS])


def ours(slots: int, policy: str, kept_in: Path | None = None) -> OffloadingManager:
    """Room for that many blocks and a state for each session; a state slot holds all three groups. With a directory
    the contents would outlive the engine.
    """
    groups = (
        GroupLayout(0, TOKEN_GROUP, "token", BLOCK_TOKENS, 64, 1, 0),
        *(GroupLayout(1 + n, group, "state", BLOCK_TOKENS, 48, 1 << n, 48 * n) for n, group in enumerate(STATE_GROUPS)),
    )
    states = max(slots // BLOCKS, 1)
    if policy in SPLIT_POLICIES:
        split = HostLayout(groups, 1, 64, 144, SlotPlan(slots, states))
        return TierManager(split, policy=policy, memory=ResidentMemory(_kept(kept_in, split)) if kept_in else None)
    page = page_bytes(64, 144)
    pages = slots * pages_of(64, page) + states * pages_of(144, page)
    arena = HostLayout(groups, 1, 64, 144, SlotPlan(0, 0), pages, page)
    return ValueManager(arena, policy, memory=ResidentArena(_kept(kept_in, arena)) if kept_in else None)


def _kept(directory: Path, layout: HostLayout) -> Plan:
    """With the notes of a worker whose files nobody writes to."""
    plan = Plan(directory / f"{PREFIX}bookkeeping" / uuid.uuid4().hex, "run", {}, pool_shapes(layout), 1)
    plan.make_directory()
    write_note(plan.worker_note(0), WorkerNote({}, "birth", plan.run, None))
    return plan


def upstream(slots: int) -> OffloadingManager:
    """One pool for the keys of all groups."""
    sessions = max(slots // BLOCKS, 1)
    return CPUOffloadingManager(slots + sessions * len(STATE_GROUPS), "lru")


def serve(manager: OffloadingManager, asked: Session, context: ReqContext) -> int:
    """One request from its arrival to its end; returns how many blocks were found."""
    manager.on_new_request(context)
    found = _lookup(manager, asked, context)
    if found:
        keys = [*asked.tokens[:found], *asked.states]
        manager.prepare_load(keys, context)
        manager.complete_load(set(keys), context)
    manager.on_schedule_end(ScheduleEndContext([context.req_id], ()))
    for first in range(found, BLOCKS, STEP_BLOCKS):
        _store(manager, asked.tokens[first : first + STEP_BLOCKS], context)
        manager.get_stats()
    if not found:
        for key in asked.states:
            _store(manager, [key], context)
    manager.on_request_finished(context)
    manager.get_stats()
    return found


def _lookup(manager: OffloadingManager, asked: Session, context: ReqContext) -> int:
    found = 0
    for key in asked.tokens[:-1]:  # the last token is always computed
        if manager.lookup(key, context) is not LookupResult.HIT:
            break
        found += 1
    there = all(manager.lookup(key, context) is LookupResult.HIT for key in asked.states)
    return found if there and found == BLOCKS - 1 else 0


def _store(manager: OffloadingManager, keys: Sequence[OffloadKey], context: ReqContext) -> None:
    output = manager.prepare_store(keys, context)
    if output is not None and output.keys_to_store:
        manager.complete_store(set(output.keys_to_store), context)


class Run:
    """A manager with all slots taken, and what its requests took."""

    def __init__(self, manager: OffloadingManager, slots: int) -> None:
        self.manager = manager
        self.new: list[float] = []
        self.back: list[float] = []
        self.next = max(slots // BLOCKS, 1)
        for number in range(self.next):
            self._serve(number)

    def round(self, requests: int) -> None:
        """As many new sessions, each of which pushes one out, and as many that come back."""
        numbers = range(self.next, self.next + requests)
        self.next += requests
        self.new.append(sum(self._serve(number)[1] for number in numbers) / requests)
        found, seconds = zip(*(self._serve(number) for number in numbers), strict=True)
        if min(found) != BLOCKS - 1:
            raise RuntimeError("a session that was just stored was not found")
        self.back.append(sum(seconds) / requests)

    def _serve(self, number: int) -> tuple[int, float]:
        asked = session(number)
        context = asked.context(f"r{number}")
        began = time.perf_counter()
        found = serve(self.manager, asked, context)
        return found, time.perf_counter() - began


def measure(slots: int, policy: str, kept_in: Path | None = None) -> dict[str, Any]:
    """One row: microseconds of both managers and their ratio. Rounds alternate between the two."""
    both = {"ours": Run(ours(slots, policy, kept_in), slots), "upstream": Run(upstream(slots), slots)}
    requests = min(max(slots // BLOCKS // 2, 1), 20)
    gc.collect()
    with no_collections():
        for _ in range(ROUNDS):
            for run in both.values():
                run.round(requests)
    keys = session(0).keys
    row: dict[str, Any] = {"slots": slots, "policy": policy}
    for name, run in both.items():
        new, back = median(run.new), median(run.back)
        row[f"{name}_new_request_us"], row[f"{name}_back_request_us"] = new * 1e6, back * 1e6
        row[f"{name}_key_us"] = (new + back) / (2 * keys) * 1e6
    row["ratio"] = row["ours_key_us"] / row["upstream_key_us"]
    return row


def table(rows: list[dict[str, Any]]) -> str:
    """For people."""
    head = "policy     slots   us/key     vLLM  ratio     new us     vLLM    back us     vLLM"
    lines = [
        f"{row['policy']:<6} {row['slots']:>9} {row['ours_key_us']:>8.2f} {row['upstream_key_us']:>8.2f} "
        f"{row['ratio']:>6.2f}   "
        f"{row['ours_new_request_us']:>8.0f} {row['upstream_new_request_us']:>8.0f}   "
        f"{row['ours_back_request_us']:>8.0f} {row['upstream_back_request_us']:>8.0f}"
        for row in rows
    ]
    return "\n".join([head, *lines, f"(a request has {session(0).keys} keys)"])


def main() -> int:
    """Command line entry."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bookkeeping", description=__doc__)
    parser.add_argument("--slots", type=int, nargs="+", default=list(SIZES))
    parser.add_argument("--policies", nargs="+", default=["lru", "value"], choices=["lru", "value", "hyper"])
    parser.add_argument("--kept", action="store_true", help="contents outlive the engine: every slot has its row")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=MOUNT) as directory:
        kept_in = Path(directory) if arguments.kept else None
        rows = [measure(slots, policy, kept_in) for policy in arguments.policies for slots in arguments.slots]
    print(json.dumps(rows) if arguments.json else table(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
