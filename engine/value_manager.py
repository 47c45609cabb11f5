"""The scheduler's side of the host tier with one arena for blocks and states."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import OffloadingConnectorStats
from vllm.logger import init_logger
from vllm.v1.kv_offload.base import (
    LoadStoreSpec,
    LookupResult,
    Medium,
    OffloadingEvent,
    OffloadingManager,
    OffloadKey,
    PrepareStoreOutput,
    ReqContext,
    RequestOffloadingContext,
    ScheduleEndContext,
    make_offload_key,
)
from vllm.v1.metrics.cache_hit_source import CacheHitSource

from engine import metric_names as names
from engine.adoption import adopt
from engine.arena_gauges import ArenaGauges
from engine.arena_ledger import ArenaMemory
from engine.arena_sessions import arena_sessions
from engine.layout import GroupLayout, HostLayout, PoolName
from engine.lookups import lookup_outcomes
from engine.metrics import Recorder
from engine.one_arena import OneArena
from engine.page_arena import Run, pages_of
from engine.policies.hyper import HyperPolicy
from engine.policies.reuse import Learned
from engine.policies.states import StatePolicy
from engine.policies.value import ValuePolicy
from engine.prefix_tree import Block, State
from engine.requests import GROUP_BYTES
from engine.served import ServedBook
from engine.snapshot import ResidentSession
from engine.visits import ArenaPlan, Visit

log = init_logger("vllm.tierdeck.value_manager")

POLICIES: Final[dict[str, type[StatePolicy]]] = {"value": ValuePolicy, "hyper": HyperPolicy}


_NO_POSITIONS: Final[dict[OffloadKey, int]] = {}
#: What was given a place.
Placed = list[tuple[OffloadKey, Block | State]]


class PagesSpec(LoadStoreSpec):
    """Places in the arena, one list of pages per key, in the order of the keys."""

    def __init__(self, slots: Sequence[tuple[Run, ...]]) -> None:
        self.slots = slots

    def __repr__(self) -> str:
        return f"PagesSpec({len(self.slots)} slots)"


@dataclass(slots=True)
class _Request:
    """What is remembered of a running request."""

    context: ReqContext
    visit: Visit = field(default_factory=Visit)
    looked_until: int = 0
    counted: bool = False
    finished: bool = False
    transfers: int = 0
    seen: int = 0
    windows_stale: bool = False  # as in RequestView


def arena_plan(layout: HostLayout) -> ArenaPlan:
    """Sizes in pages, and how many layer groups share a slot."""
    return ArenaPlan(
        pages=layout.pages,
        token_pages=pages_of(layout.token_slot_bytes, layout.page_bytes),
        state_pages=pages_of(layout.state_slot_bytes, layout.page_bytes),
        token_parts=layout.needed_parts("token"),
        state_parts=layout.needed_parts("state"),
        chunk_tokens=layout.chunk_tokens,
    )


class ValueManager(OffloadingManager):
    """Speaks vLLM's protocol; what it decides is in the arena, its tree and its policy."""

    def __init__(
        self,
        layout: HostLayout,
        policy: str = "value",
        world_size: int = 1,
        demote_superseded_states: bool = True,
        events: bool = False,
        clock: Callable[[], float] = time.monotonic,
        memory: ArenaMemory | None = None,
    ) -> None:
        self.plan = arena_plan(layout)
        self._memory = memory  # None: it goes with the engine
        ledger = memory.ledger if memory is not None else None
        self._arena = OneArena(self.plan, POLICIES[policy], demote_superseded_states, clock, ledger)
        self._suffixes: dict[PoolName, list[tuple[bytes, int]]] = {
            pool: [(make_offload_key(b"", group.group_id), group.part) for group in layout.pool_groups(pool)]
            for pool in names.POOLS
        }
        self._page_bytes = layout.page_bytes * world_size
        self._gauges = ArenaGauges(self._arena, self._page_bytes)
        self._groups: dict[bytes, GroupLayout] = {
            make_offload_key(b"", group.group_id): group for group in layout.groups
        }
        self._chunk = layout.chunk_tokens
        self._has_blocks = bool(layout.pool_groups("token"))
        self._requests: dict[str, _Request] = {}
        self._failed_loads: set[str] = set()
        self._events: list[OffloadingEvent] | None = [] if events else None
        self._recorder = Recorder()
        self.changed = True
        self.served = ServedBook()
        if memory is not None:
            _adopt(self._arena, memory)

    # --- lookup ---

    def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        """HIT if the key can be read, HIT_PENDING while it is being written, else MISS."""
        group, slot = self._find(key)
        if group.pool == "token":
            request = self._requests.get(req_context.req_id)
            if request is not None and not request.counted:
                self._note_lookup(request, key)
        if slot is None:
            return LookupResult.MISS
        if slot.ready & group.part:
            return LookupResult.HIT
        return LookupResult.HIT_PENDING if slot.writing & group.part else LookupResult.MISS

    def _note_lookup(self, request: _Request, key: OffloadKey) -> None:
        """The first lookup is right behind what the device has; the others go up from there."""
        end = request.context.get_offload_key_position(key) or 0
        if not request.visit.arrived:
            self._arrive(request, (end - 1) // self._chunk)
        if end > request.looked_until:
            request.looked_until = end

    def _arrive(self, request: _Request, device_blocks: int | None) -> None:
        """`device_blocks` None: nothing was looked up, so the device has all of it."""
        self._update_chain(request)
        visit = request.visit
        self._arena.arrive(visit, len(visit.chain) if device_blocks is None else device_blocks)

    def _update_chain(self, request: _Request) -> None:
        """Take over the block hashes that vLLM has given positions since the last call.

        vLLM gives a position to every key of a request before it asks for any of them, one layer group
        after the other, but has no public way to list them.
        """
        positions = getattr(request.context, "_offload_key_positions", _NO_POSITIONS)
        if len(positions) == request.seen:
            return
        chain, chunk = request.visit.chain, self._chunk
        expected = (len(chain) + 1) * chunk
        more = next(reversed(positions.values())) // chunk - len(chain)
        ends = list(range(expected, expected + more * chunk, chunk))
        ahead = list(islice(positions.values(), request.seen, request.seen + len(ends) + 1))
        if ends and ahead in (ends, [*ends, expected]):  # as ever: these, then the next group begins where they did
            chain += [key[:-GROUP_BYTES] for key in islice(positions, request.seen, request.seen + more)]
            request.seen = len(positions)
            return
        for key, position in islice(positions.items(), request.seen, None):
            if position == expected:
                chain.append(key[:-GROUP_BYTES])
                expected += chunk
            elif position < expected and not position % chunk:
                break  # the next group: the same hashes again
        request.seen = len(positions)

    def get_load_source(self, key: OffloadKey, req_context: ReqContext) -> CacheHitSource:
        """Everything this tier has is in host memory."""
        return CacheHitSource.HOST

    # --- load ---

    def prepare_load(self, keys: Collection[OffloadKey], req_context: ReqContext) -> LoadStoreSpec:
        """Pin the keys and say where they are."""
        request = self._request(req_context)
        slots = [self._readable(key) for key in keys]
        ends = [req_context.get_offload_key_position(key) or 0 for key in keys]
        deepest = max(range(len(ends)), key=ends.__getitem__)
        self._count_lookup(request, ends[deepest])
        last = list(keys)[deepest][:-GROUP_BYTES]
        self._arena.reach(request.visit, last, ends[deepest])
        self._arena.hold_state(request.visit, last)
        request.transfers += len(slots)
        return PagesSpec([slot.pages for slot in slots])

    def complete_load(self, keys: Collection[OffloadKey], req_context: ReqContext) -> None:
        """They may go again when the request has ended. What did not arrive as it was stored is not offered again."""
        if req_context.req_id in self._failed_loads:
            self._failed_loads.remove(req_context.req_id)
            self._recorder.count(names.VERIFY_FAILURES)
            for key in keys:
                group, slot = self._find(key)
                if slot is not None:
                    self._arena.spoil(slot, group.part)
        self._end_transfers(req_context, len(keys))

    def load_failed(self, req_ids: Iterable[str]) -> None:
        """Loads of these requests, of which `complete_load` is called next, did not bring what was stored."""
        self._failed_loads.update(req_ids)

    def _readable(self, key: OffloadKey) -> Block | State:
        group, slot = self._find(key)
        if slot is None or not slot.ready & group.part:
            raise RuntimeError(f"key {key.hex()} of the {group.pool} pool was promised and is not there")
        return slot

    def _find(self, key: OffloadKey) -> tuple[GroupLayout, Block | State | None]:
        group = self._groups[key[-GROUP_BYTES:]]
        block = self._arena.tree.blocks.get(key[:-GROUP_BYTES])
        return group, block.state if block is not None and group.pool == "state" else block

    # --- store ---

    def prepare_store(self, keys: Collection[OffloadKey], req_context: ReqContext) -> PrepareStoreOutput | None:
        """Places for the keys that are worth one and not there yet; the others are left out."""
        request = self._request(req_context)
        self._update_chain(request)
        if not request.visit.arrived:
            self._arrive(request, None)
        placed: Placed = []
        for group, some in self._by_group(list(keys)):
            if group.pool == "state":
                for key in some:
                    self._place_state(request, group, key, placed)
            elif group.needed_everywhere or not request.windows_stale:
                self._place_blocks(request, group, some, placed)
        freed = self._take_freed() if self._arena.freed else []
        if not placed:
            return PrepareStoreOutput([], PagesSpec([]), freed)
        request.transfers += len(placed)
        spec = PagesSpec([slot.pages for _, slot in placed])
        return PrepareStoreOutput([key for key, _ in placed], spec, freed)

    def _by_group(self, keys: list[OffloadKey]) -> list[tuple[GroupLayout, list[OffloadKey]]]:
        """Neighbouring keys of one group together. States come alone, so that is quick."""
        if len(keys) == 1:
            return [(self._groups[keys[0][-GROUP_BYTES:]], keys)]
        groups = []
        at = 0
        while at < len(keys):
            suffix, end = keys[at][-GROUP_BYTES:], len(keys)
            if keys[-1][-GROUP_BYTES:] != suffix:
                end = next(later for later in range(at + 1, len(keys)) if keys[later][-GROUP_BYTES:] != suffix)
            groups.append((self._groups[suffix], keys[at:end]))
            at = end
        return groups

    def _place_state(self, request: _Request, group: GroupLayout, key: OffloadKey, placed: Placed) -> None:
        block_hash, part = key[:-GROUP_BYTES], group.part
        block = self._arena.tree.blocks.get(block_hash)
        state = block.state if block is not None else None
        if state is not None:
            if not (state.ready | state.writing) & part:
                state.writing |= part
                placed.append((key, state))
            return
        end = self._end_of(request, key)
        if not self._arena.wants_state(request.visit, block_hash, end):
            return
        state = self._arena.store_state(request.visit, block_hash, end, part)
        if state is None:
            self._recorder.count(names.REFUSED_STORES, "state")
        else:
            placed.append((key, state))

    def _place_blocks(self, request: _Request, group: GroupLayout, keys: list[OffloadKey], placed: Placed) -> None:
        end, visit, arena = self._end_of(request, keys[-1]), request.visit, self._arena
        last = end // self._chunk
        first = last - len(keys)
        hashes: Sequence[bytes] = visit.chain
        in_chain = not end % self._chunk and first >= 0 and last <= len(hashes)
        if not in_chain or hashes[first] != keys[0][:-GROUP_BYTES]:
            hashes, first, last = [key[:-GROUP_BYTES] for key in keys], 0, len(keys)
        missing = arena.missing_blocks(hashes, first, last, group.part, group.needed_everywhere)
        arena.reach(visit, keys[-1][:-GROUP_BYTES], end)
        for at in missing:
            key = keys[at - first]
            block = arena.tree.blocks.get(hashes[at]) or arena.reach(visit, hashes[at], self._end_of(request, key))
            if arena.store_block(block, group.part):
                placed.append((key, block))
            else:
                self._recorder.count(names.REFUSED_STORES, "token")

    def _end_of(self, request: _Request, key: OffloadKey) -> int:
        end = request.context.get_offload_key_position(key)
        if end is None:
            raise ValueError(f"request {request.context.req_id} does not know the position of key {key.hex()}")
        return int(end)

    def complete_store(self, keys: Collection[OffloadKey], req_context: ReqContext, success: bool = True) -> None:
        """All workers have copied (or failed to copy) the keys."""
        end_write = self._arena.end_write
        readable = []
        for key in keys:
            group, slot = self._find(key)
            if slot is not None and end_write(slot, group.part, success):
                readable.append(key)
        if self._events is not None:
            self._announce(readable, removed=False)
        self._end_transfers(req_context, len(keys))

    # --- requests ---

    def on_new_request(self, req_context: ReqContext) -> RequestOffloadingContext:
        """Remember the request until it has finished and its transfers are done."""
        before = self._requests.get(req_context.req_id)
        if before is not None:
            self._arena.leave(before.visit)
        self._requests[req_context.req_id] = _Request(req_context)
        return RequestOffloadingContext()

    def on_request_finished(self, req_context: ReqContext) -> None:
        """No more stores or loads will begin for it; some may still be in flight."""
        request = self._requests.get(req_context.req_id)
        if request is not None:
            request.finished = True
            self._close_if_done(request)

    def on_schedule_end(self, context: ScheduleEndContext) -> None:
        """Requests that begin now without a load: learn from them, and count what their lookup came to."""
        for req_id in context.new_req_ids:
            request = self._requests.get(req_id)
            if request is not None and not request.counted:
                if not request.visit.arrived:
                    self._arrive(request, None)
                self._count_lookup(request, 0)

    def _request(self, req_context: ReqContext) -> _Request:
        request = self._requests.get(req_context.req_id)
        if request is None:
            request = self._requests[req_context.req_id] = _Request(req_context)
        return request

    def _end_transfers(self, req_context: ReqContext, count: int) -> None:
        request = self._requests.get(req_context.req_id)
        if request is not None:
            request.transfers -= count
            self._close_if_done(request)

    def _close_if_done(self, request: _Request) -> None:
        if not request.finished or request.transfers > 0:
            return
        self._arena.leave(request.visit)
        self._take_freed()
        del self._requests[request.context.req_id]

    # --- what the metrics say ---

    def _count_lookup(self, request: _Request, hit_until: int) -> None:
        """Once per request, in whole blocks beyond what the device has."""
        if request.counted:
            return
        request.counted = True
        if not request.looked_until:
            return
        visit, chunk, arena = request.visit, self._chunk, self._arena
        start = visit.device * chunk
        depth = arena.tree.deepest(visit.chain, len(visit.chain))
        there, state_until = depth * chunk, arena.restorable(visit.chain, depth, visit.device) * chunk
        # Where nothing was missing, the last block was left out because its last token is always computed.
        until = request.looked_until if there >= request.looked_until else len(visit.chain) * chunk
        for outcome, tokens in lookup_outcomes(start, hit_until, there, state_until, until):
            self._recorder.count(names.LOOKUP_TOKENS, outcome, by=tokens)

    def get_stats(self) -> OffloadingConnectorStats | None:
        """What changed since the last call."""
        self.changed = True
        self._gauges.record(self._recorder, [request.visit for request in self._requests.values()])
        return self._recorder.collect()

    def sessions(self) -> list[ResidentSession]:
        """Which chains are there. Called from another thread than everything else."""
        tips = [request.visit.tip for request in list(self._requests.values())]
        return arena_sessions(self._arena, [tip for tip in tips if tip is not None], self._page_bytes)

    def learned(self) -> Learned | None:
        """What was learned of reuse. Called from another thread than everything else."""
        return self._arena.policy.learned()

    def _take_freed(self) -> list[OffloadKey]:
        """Report what was given up since the last call; the keys of it that could be read."""
        freed = self._arena.freed
        keys: list[OffloadKey] = []
        idle: dict[tuple[PoolName, str], list[float]] = {}
        for pool, block_hash, ready, reason, idle_seconds in freed:
            idle.setdefault((pool, reason), []).append(idle_seconds)
            for suffix, part in self._suffixes[pool]:
                if ready & part:
                    keys.append(OffloadKey(block_hash + suffix))
        freed.clear()
        for (pool, reason), seconds in idle.items():
            self._recorder.count(names.EVICTIONS, pool, reason, by=len(seconds))
            self._recorder.observe_all(names.IDLE_SECONDS, seconds, pool)
        self._announce(keys, removed=True)
        return keys

    def _announce(self, keys: list[OffloadKey], removed: bool) -> None:
        if keys and self._events is not None:
            self._events.append(OffloadingEvent(keys=keys, medium=Medium.CPU, removed=removed))

    def take_events(self) -> Iterable[OffloadingEvent]:
        """Events since the last call, if the engine publishes any."""
        if self._events:
            events, self._events = self._events, []
            yield from events

    def reset_cache(self) -> None:
        """Drop everything. vLLM flushes transfers in flight and never reports them here again."""
        self._arena.clear()
        self._failed_loads.clear()
        for request in list(self._requests.values()):
            request.visit.forget()
            request.transfers, request.windows_stale = 0, True
            if request.finished:
                del self._requests[request.context.req_id]

    def shutdown(self) -> None:
        """Let go of the memory; what outlives the engine stays."""
        if self._memory is not None:
            self._memory.close()


def _adopt(arena: OneArena, memory: ArenaMemory) -> None:
    """Take up what an earlier run left: what it had learned first, because that says what stays if not all fits."""
    learned = memory.learned()
    if learned is not None:
        arena.policy.resume(learned)
    adopted = adopt(arena, memory)
    log.info("Host tier: %d states of the last run are there again.", adopted.kept)
    if adopted.dropped:
        log.info("Host tier: %d states of the last run do not fit any more.", adopted.dropped)
