"""Replay a trace through the connector's real manager, beside a model of the device's cache.

`python -m benchmarks.replay TRACE --layout LAYOUT.json --host-bytes N --policy lru|arc|value|hyper` prints how
much of the input came from VRAM, from the host and was computed, and what the bookkeeping took.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from benchmarks.trace import Trace, read_trace
from benchmarks.vram_model import Layout, Prompt, prompts, saved_seconds
from engine.config import ARENA_POLICIES, EVICTION_POLICIES
from engine.page_arena import page_bytes
from engine.sizing import DEFAULT_REFERENCE_TOKENS, SlotPlan, plan_slots

TOKEN_GROUP: Final = 0


@dataclass(frozen=True)
class Setup:
    """What the operator would write."""

    policy: str
    host_bytes: int
    reference_tokens: int | None = None
    demote: bool = True


@dataclass(frozen=True)
class Result:
    """What came of it. Shares are of all input tokens."""

    vram_share: float
    host_share: float
    recomputed_share: float
    avoidable_recompute_share: float
    seconds_saved: float
    idle_sessions: int
    idle_sessions_restored_share: float | None
    evictions: dict[str, int]
    us_per_request_mean: float
    us_per_request_p99: float


@dataclass
class Tally:
    """Sums over requests."""

    block_tokens: int
    input_tokens: int = 0
    vram_tokens: int = 0
    host_tokens: int = 0
    avoidable_tokens: int = 0
    seconds_saved: float = 0.0
    idle: int = 0
    restored: int = 0
    microseconds: list[float] = field(default_factory=list)

    def add(self, prompt: Prompt, found: int, seconds: float) -> None:
        """One request, of which the host had the blocks from the device's own until `found`."""
        block = self.block_tokens
        until = max(found, prompt.device)
        self.input_tokens += prompt.ask.prompt_tokens
        self.vram_tokens += prompt.device * block
        self.host_tokens += (until - prompt.device) * block
        self.avoidable_tokens += max(0, prompt.restorable - until) * block
        self.seconds_saved += saved_seconds(until * block, prompt.device * block)
        if prompt.idle_until:
            self.idle += 1
            self.restored += found >= 0.9 * prompt.idle_until
        self.microseconds.append(seconds * 1e6)

    def result(self, evictions: dict[str, int]) -> Result:
        """As it is printed."""
        whole = max(self.input_tokens, 1)
        times = sorted(self.microseconds) or [0.0]
        return Result(
            vram_share=self.vram_tokens / whole,
            host_share=self.host_tokens / whole,
            recomputed_share=(whole - self.vram_tokens - self.host_tokens) / whole,
            avoidable_recompute_share=self.avoidable_tokens / whole,
            seconds_saved=self.seconds_saved,
            idle_sessions=self.idle,
            idle_sessions_restored_share=self.restored / self.idle if self.idle else None,
            evictions=evictions,
            us_per_request_mean=sum(times) / len(times),
            us_per_request_p99=times[min(len(times) - 1, int(0.99 * len(times)))],
        )


class Clock:
    """The trace's time."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        """Now."""
        return self.now


def host_layout(layout: Layout, setup: Setup) -> Any:
    """The connector's own layout for these sizes: one attention group, the others linear."""
    from engine.layout import GroupLayout, HostLayout

    state_group_bytes = layout.state_bytes // max(layout.state_groups, 1)
    groups = [GroupLayout(0, TOKEN_GROUP, "token", layout.block_tokens, layout.token_block_bytes, 1, 0)]
    groups += [
        GroupLayout(
            number,
            number,
            "state",
            layout.block_tokens,
            state_group_bytes,
            1 << (number - 1),
            (number - 1) * state_group_bytes,
        )
        for number in range(1, layout.state_groups + 1)
    ]
    state_bytes = layout.state_bytes if layout.state_groups else 0
    if setup.policy in ARENA_POLICIES:
        page = page_bytes(layout.token_block_bytes, state_bytes)
        pages = setup.host_bytes // layout.world_size // page
        return HostLayout(tuple(groups), 1, layout.token_block_bytes, state_bytes, SlotPlan(0, 0), pages, page)
    plan = plan_slots(
        setup.host_bytes,
        layout.world_size,
        layout.token_block_bytes,
        state_bytes,
        layout.block_tokens,
        setup.reference_tokens or DEFAULT_REFERENCE_TOKENS,
        0,
    )
    return HostLayout(tuple(groups), 1, layout.token_block_bytes, state_bytes, plan)


def build_manager(layout: Layout, setup: Setup, clock: Callable[[], float]) -> Any:
    """The manager that the spec would make."""
    from engine.manager import TierManager
    from engine.value_manager import ValueManager

    found = host_layout(layout, setup)
    if setup.policy not in ARENA_POLICIES:
        return TierManager(found, layout.world_size, setup.demote, clock=clock, policy=setup.policy)
    return ValueManager(found, setup.policy, layout.world_size, setup.demote, clock=clock)


class Scheduler:
    """Calls a manager as vLLM's scheduler does, with transfers that end at once."""

    def __init__(self, manager: Any, layout: Layout, clock: Clock) -> None:
        from vllm.v1.kv_offload.base import LookupResult, ReqContext, ScheduleEndContext, make_offload_key

        self._manager = manager
        self._clock = clock
        self._hit = LookupResult.HIT
        self._context, self._schedule_end = ReqContext, ScheduleEndContext
        self._suffixes = [make_offload_key(b"", number) for number in range(layout.state_groups + 1)]
        self._block_tokens = layout.block_tokens
        self._number = 0
        self.evictions: Counter[str] = Counter()

    def run(self, prompt: Prompt) -> tuple[int, float]:
        """One request from beginning to end; how deep the host got it, and the CPU seconds the manager took."""
        self._clock.now = prompt.ask.at
        context, keys = self._new_context(prompt.chain)
        began = time.thread_time()  # not the wall clock, which also counts whoever else the machine works for
        found = self._drive(prompt, context, keys)
        stats = self._manager.get_stats()
        seconds = time.thread_time() - began
        self._count(stats)
        return found, seconds

    def _new_context(self, chain: list[bytes]) -> tuple[Any, list[list[Any]]]:
        """Positions of all keys, one layer group after the other, as vLLM gives them."""
        self._number += 1
        context = self._context(f"r{self._number}")
        ends = [(number + 1) * self._block_tokens for number in range(len(chain))]
        keys = [[block_hash + suffix for block_hash in chain] for suffix in self._suffixes]
        for group in keys:
            context._offload_key_positions.update(zip(group, ends, strict=True))
        return context, keys

    def _drive(self, prompt: Prompt, context: Any, keys: list[list[Any]]) -> int:
        manager = self._manager
        manager.on_new_request(context)
        found = self._lookup(prompt, context, keys)
        if found:
            load = [*keys[TOKEN_GROUP][prompt.device : found], *(group[found - 1] for group in keys[1:])]
            manager.prepare_load(load, context)
            manager.complete_load(set(load), context)
        manager.on_schedule_end(self._schedule_end([context.req_id], ()))
        for depth in self._boundaries(prompt, found):
            for group in keys[1:]:
                self._store([group[depth - 1]], context)
        if prompt.chain[found:]:
            self._store(keys[TOKEN_GROUP][found:], context)
        manager.on_request_finished(context)
        return found

    def _lookup(self, prompt: Prompt, context: Any, keys: list[list[Any]]) -> int:
        """Blocks until one is missing, then the deepest state among them for each group in turn."""
        until = self._run_of_hits(keys[TOKEN_GROUP], prompt.device, prompt.usable, context)
        longest = until
        for group in keys[1:]:
            while until > prompt.device and self._manager.lookup(group[until - 1], context) is not self._hit:
                until -= 1
        if prompt.device < until < longest:  # vLLM asks for the blocks again when a state was further up
            self._run_of_hits(keys[TOKEN_GROUP], prompt.device, until, context)
        return until if until > prompt.device else 0

    def _run_of_hits(self, keys: Sequence[Any], first: int, last: int, context: Any) -> int:
        depth, lookup, hit = first, self._manager.lookup, self._hit
        while depth < last and lookup(keys[depth], context) is hit:
            depth += 1
        return depth

    def _boundaries(self, prompt: Prompt, found: int) -> list[int]:
        """Where it began, where what was seen before ends, and its last whole block."""
        began = max(found, prompt.device)
        junction = prompt.known if prompt.known > began else 0
        return sorted({began, junction, len(prompt.chain)} - {0})

    def _store(self, keys: list[Any], context: Any) -> None:
        output = self._manager.prepare_store(keys, context)
        if output is not None and output.keys_to_store:
            self._manager.complete_store(set(output.keys_to_store), context)

    def _count(self, stats: Any) -> None:
        from engine import metric_names as names

        by_labels = stats.data["data"].get(names.EVICTIONS, {}) if stats is not None else {}
        for labels, count in by_labels.items():
            if count:
                self.evictions["/".join(labels)] += int(count)


def replay(requests: Sequence[Prompt], layout: Layout, setup: Setup) -> Result:
    """Run them all."""
    clock = Clock()
    scheduler = Scheduler(build_manager(layout, setup, clock), layout, clock)
    tally = Tally(layout.block_tokens)
    with no_collections():
        for prompt in requests:
            found, seconds = scheduler.run(prompt)
            tally.add(prompt, found, seconds)
    return tally.result(dict(scheduler.evictions))


@contextmanager
def no_collections() -> Iterator[None]:
    """A collection looks at all that is there, and would be charged to whoever is running."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def read_layout(path: Path, trace: Trace) -> Layout:
    """Sizes from a file; the block must be the trace's."""
    layout = Layout(**json.loads(path.read_text()))
    if layout.block_tokens != trace.block_tokens:
        raise ValueError(f"{path} has blocks of {layout.block_tokens} tokens, the trace {trace.block_tokens}")
    return layout


def main() -> int:
    """Command line entry."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.replay", description=__doc__)
    parser.add_argument("trace", type=Path)
    parser.add_argument("--layout", type=Path, required=True)
    parser.add_argument("--host-bytes", type=int, required=True, help="over all workers")
    parser.add_argument("--policy", choices=EVICTION_POLICIES, required=True)
    parser.add_argument("--reference-tokens", type=int)
    parser.add_argument("--no-demote", action="store_true")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    trace = read_trace(arguments.trace)
    layout = read_layout(arguments.layout, trace)
    setup = Setup(arguments.policy, arguments.host_bytes, arguments.reference_tokens, not arguments.no_demote)
    result = asdict(replay(prompts(trace, layout), layout, setup))
    print(json.dumps(result) if arguments.json else "\n".join(f"{key:32} {value}" for key, value in result.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
