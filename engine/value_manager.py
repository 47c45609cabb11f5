"""The scheduler's side of the host tier with one arena for blocks and states."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Sequence
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
from engine.arena_requests import ArenaRequest
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
from engine.requests import GROUP, HASH
from engine.served import ServedBook
from engine.snapshot import ResidentSession
from engine.visits import ArenaPlan

log = init_logger("vllm.tierdeck.value_manager")

POLICIES: Final[dict[str, type[StatePolicy]]] = {"value": ValuePolicy, "hyper": HyperPolicy}


class PagesSpec(LoadStoreSpec):
    """Places in the arena, one list of pages per key, in the order of the keys."""

    def __init__(self, slots: Sequence[tuple[Run, ...]]) -> None:
        self.slots = slots

    def __repr__(self) -> str:
        return f"PagesSpec({len(self.slots)} slots)"


_NOWHERE: Final = PagesSpec(())
_HIT, _MISS = LookupResult.HIT, LookupResult.MISS  # members of an enumeration are slow to look up


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
        #: Of each group which part of a slot is its own, and whether that is a state's slot.
        self._parts = {suffix: (group.part, group.pool == "state") for suffix, group in self._groups.items()}
        self._blocks = self._arena.tree.blocks
        self._chunk = layout.chunk_tokens
        self._requests: dict[str, ArenaRequest] = {}
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
        part, is_state = self._parts[key[GROUP]]
        if not is_state:
            request = self._requests.get(req_context.req_id)
            if request is not None and not request.counted:
                end = request.positions.get(key, 0)
                if end > request.looked_until:
                    self._note_lookup(request, end)
        block = self._blocks.get(key[HASH])
        slot = block.state if is_state and block is not None else block
        if slot is None:
            return _MISS
        if slot.ready & part:
            return _HIT
        return LookupResult.HIT_PENDING if slot.writing & part else _MISS

    def _note_lookup(self, request: ArenaRequest, end: int) -> None:
        """The first lookup is right behind what the device has; the others go up from there."""
        if not request.visit.arrived:
            self._arrive(request, (end - 1) // self._chunk)
        request.looked_until = end

    def _arrive(self, request: ArenaRequest, device_blocks: int | None) -> None:
        """`device_blocks` None: nothing was looked up, so the device has all of it."""
        request.update_chain(self._chunk)
        visit = request.visit
        self._arena.arrive(visit, len(visit.chain) if device_blocks is None else device_blocks)

    def get_load_source(self, key: OffloadKey, req_context: ReqContext) -> CacheHitSource:
        """Everything this tier has is in host memory."""
        return CacheHitSource.HOST

    # --- load ---

    def prepare_load(self, keys: Collection[OffloadKey], req_context: ReqContext) -> LoadStoreSpec:
        """Pin the keys and say where they are."""
        request = self._request(req_context)
        slots, find = [], self._find
        for key in keys:
            part, slot = find(key)
            if slot is None or not slot.ready & part:
                pool = self._groups[key[GROUP]].pool
                raise RuntimeError(f"key {key.hex()} of the {pool} pool was promised and is not there")
            slots.append(slot.pages)
        deepest = max(keys, key=request.positions.__getitem__)
        end, last = request.positions[deepest], deepest[HASH]
        self._count_lookup(request, end)
        self._arena.reach(request.visit, last, end)
        self._arena.hold_state(request.visit, last)
        request.transfers += len(slots)
        return PagesSpec(slots)

    def complete_load(self, keys: Collection[OffloadKey], req_context: ReqContext) -> None:
        """They may go again when the request has ended. What did not arrive as it was stored is not offered again."""
        if req_context.req_id in self._failed_loads:
            self._failed_loads.remove(req_context.req_id)
            self._recorder.count(names.VERIFY_FAILURES)
            for key in keys:
                part, slot = self._find(key)
                if slot is not None:
                    self._arena.spoil(slot, part)
        self._end_transfers(req_context, len(keys))

    def load_failed(self, req_ids: Iterable[str]) -> None:
        """Loads of these requests, of which `complete_load` is called next, did not bring what was stored."""
        self._failed_loads.update(req_ids)

    def _find(self, key: OffloadKey) -> tuple[int, Block | State | None]:
        """The part of a slot that the key stands for, and the slot."""
        part, is_state = self._parts[key[GROUP]]
        block = self._blocks.get(key[HASH])
        return part, block.state if is_state and block is not None else block

    # --- store ---

    def prepare_store(self, keys: Collection[OffloadKey], req_context: ReqContext) -> PrepareStoreOutput | None:
        """Places for the keys that are worth one and not there yet; the others are left out."""
        request = self._requests.get(req_context.req_id) or self._request(req_context)
        if not request.visit.arrived:
            self._arrive(request, None)
        elif len(request.positions) != request.seen:
            request.update_chain(self._chunk)
        placed: list[OffloadKey] = []
        slots: list[tuple[Run, ...]] = []
        for suffix, some in self._by_group(list(keys)):
            part, is_state = self._parts[suffix]
            if not is_state:
                self._place_blocks(request, self._groups[suffix], some, placed, slots)
                continue
            for key in some:
                pages = self._place_state(request, key, part)
                if pages is not None:
                    placed.append(key)
                    slots.append(pages)
        freed = self._take_freed() if self._arena.freed else []
        if not placed:
            return PrepareStoreOutput(placed, _NOWHERE, freed)
        request.transfers += len(placed)
        return PrepareStoreOutput(placed, PagesSpec(slots), freed)

    @staticmethod
    def _by_group(keys: list[OffloadKey]) -> list[tuple[bytes, list[OffloadKey]]]:
        """Neighbouring keys of one group together. States come alone, so that is quick."""
        if len(keys) == 1:
            return [(keys[0][GROUP], keys)]
        groups = []
        at = 0
        while at < len(keys):
            suffix, end = keys[at][GROUP], len(keys)
            if keys[-1][GROUP] != suffix:
                end = next(later for later in range(at + 1, len(keys)) if keys[later][GROUP] != suffix)
            groups.append((suffix, keys[at:end]))
            at = end
        return groups

    def _place_state(self, request: ArenaRequest, key: OffloadKey, part: int) -> tuple[Run, ...] | None:
        """Where this part of a state is to be written; None if it is there, not wanted, or has no room."""
        block_hash = key[HASH]
        block = self._blocks.get(block_hash)
        state = block.state if block is not None else None
        if state is not None:
            if (state.ready | state.writing) & part:
                return None
            state.writing |= part
            return state.pages
        end = request.end_of(key)
        if end == request.unwanted:
            return None
        if not self._arena.wants_state(request.visit, block_hash, end):
            request.unwanted = end
            return None
        state = self._arena.store_state(request.visit, block_hash, end, part)
        if state is None:
            self._recorder.count(names.REFUSED_STORES, "state")
            return None
        return state.pages

    def _place_blocks(
        self,
        request: ArenaRequest,
        group: GroupLayout,
        keys: list[OffloadKey],
        placed: list[OffloadKey],
        slots: list[tuple[Run, ...]],
    ) -> None:
        if request.windows_stale and not group.needed_everywhere:
            return
        end, visit, arena = request.end_of(keys[-1]), request.visit, self._arena
        last = end // self._chunk
        first = last - len(keys)
        hashes: Sequence[bytes] = visit.chain
        in_chain = not end % self._chunk and first >= 0 and last <= len(hashes)
        if not in_chain or hashes[first] != keys[0][HASH]:
            hashes, first, last = [key[HASH] for key in keys], 0, len(keys)
        missing = arena.missing_blocks(hashes, first, last, group.part, group.needed_everywhere)
        arena.reach(visit, keys[-1][HASH], end)
        blocks = [
            self._blocks.get(hashes[at]) or arena.reach(visit, hashes[at], request.end_of(keys[at - first]))
            for at in missing
        ]
        for at, pages in zip(missing, arena.store_blocks(blocks, group.part), strict=True):
            if pages is None:
                self._recorder.count(names.REFUSED_STORES, "token")
            else:
                placed.append(keys[at - first])
                slots.append(pages)

    def complete_store(self, keys: Collection[OffloadKey], req_context: ReqContext, success: bool = True) -> None:
        """All workers have copied (or failed to copy) the keys."""
        find, end_write = self._find, self._arena.end_write
        readable = []
        for key in keys:
            part, slot = find(key)
            if slot is not None and end_write(slot, part, success):
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
        self._requests[req_context.req_id] = ArenaRequest(req_context)
        return RequestOffloadingContext()

    def on_request_finished(self, req_context: ReqContext) -> None:
        """No more stores or loads will begin for it; some may still be in flight."""
        request = self._requests.get(req_context.req_id)
        if request is not None:
            request.finished = True
            if request.transfers <= 0:
                self._close(request)

    def on_schedule_end(self, context: ScheduleEndContext) -> None:
        """Requests that begin now without a load: learn from them, and count what their lookup came to."""
        for req_id in context.new_req_ids:
            request = self._requests.get(req_id)
            if request is not None and not request.counted:
                if not request.visit.arrived:
                    self._arrive(request, None)
                self._count_lookup(request, 0)

    def _request(self, req_context: ReqContext) -> ArenaRequest:
        request = self._requests.get(req_context.req_id)
        if request is None:
            request = self._requests[req_context.req_id] = ArenaRequest(req_context)
        return request

    def _end_transfers(self, req_context: ReqContext, count: int) -> None:
        request = self._requests.get(req_context.req_id)
        if request is not None:
            request.transfers -= count
            if request.finished and request.transfers <= 0:
                self._close(request)

    def _close(self, request: ArenaRequest) -> None:
        self._arena.leave(request.visit)
        self._take_freed()
        del self._requests[request.context.req_id]

    # --- what the metrics say ---

    def _count_lookup(self, request: ArenaRequest, hit_until: int) -> None:
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
        for pool, slots, reason, idle_seconds in freed:
            idle.setdefault((pool, reason), []).extend([idle_seconds] * len(slots))
            for suffix, part in self._suffixes[pool]:
                keys += [block_hash + suffix for block_hash, ready in slots if ready & part]
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
