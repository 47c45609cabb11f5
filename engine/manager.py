"""The scheduler's side of the host tier: which keys are there, which go, what is pinned meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable
from itertools import pairwise

import numpy as np
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import OffloadingConnectorStats
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
    get_offload_block_hash,
    get_offload_group_idx,
    make_offload_key,
)
from vllm.v1.metrics.cache_hit_source import CacheHitSource

from engine import metric_names as names
from engine.layout import GroupLayout, HostLayout, PoolName
from engine.metrics import Recorder
from engine.policies import LruPolicy
from engine.pool import Eviction, Slot, SlotPool
from engine.requests import RequestView
from engine.residency import Memory, PassingMemory
from engine.residency_index import Entry, PoolLedger
from engine.residents import RestorableCount, resident_tokens

#: The newest boundaries of a finished request that demotion leaves alone.
KEPT_BOUNDARIES = 3


class SlotsSpec(LoadStoreSpec):
    """Slots of the host tier, one per key, in the order of the keys. Which pool a slot is in follows
    from the key's group, which the worker knows from the device's side of the transfer.
    """

    def __init__(self, slots: Iterable[int]) -> None:
        self.slots = np.fromiter(slots, dtype=np.int64)

    def __repr__(self) -> str:
        return f"SlotsSpec({self.slots.tolist()})"


class TierManager(OffloadingManager):
    """Two pools, one for blocks of tokens and one for states, that never take from each other."""

    def __init__(
        self,
        layout: HostLayout,
        world_size: int = 1,
        demote_superseded_states: bool = True,
        events: bool = False,
        clock: Callable[[], float] = time.monotonic,
        memory: Memory | None = None,
    ) -> None:
        self._layout = layout
        self._world_size = world_size
        self._demote = demote_superseded_states
        self._groups: dict[int, GroupLayout] = {group.group_id: group for group in layout.groups}
        self._pools: dict[PoolName, SlotPool] = {name: self._pool(name, clock) for name in ("token", "state")}
        self._views: dict[str, RequestView] = {}
        self._events: list[OffloadingEvent] | None = [] if events else None
        self._recorder = Recorder()
        self._restorable = RestorableCount(clock)
        self._clock = clock
        self._memory = memory or PassingMemory()
        self._ledgers: dict[PoolName, PoolLedger] = {name: self._memory.ledger(name) for name in self._pools}
        self._adopt()

    def _adopt(self) -> None:
        """Take up what an earlier run left in the slots."""
        for name, pool in self._pools.items():
            pool.adopt(_slot_of(entry, self._clock()) for entry in self._memory.entries(name))
        self._restorable.outdated()

    def _pool(self, name: PoolName, clock: Callable[[], float]) -> SlotPool:
        parts = len(self._layout.pool_groups(name))
        return SlotPool(self._layout.slots(name) if parts else 0, parts, LruPolicy(), clock)

    # --- lookup ---

    def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        """HIT if the key can be read, HIT_PENDING while it is being written, else MISS."""
        group = self._groups[get_offload_group_idx(key)]
        if group.pool == "token":
            self._note_device_tokens(key, req_context)
        slot = self._pools[group.pool].get(get_offload_block_hash(key))
        if slot is None:
            return LookupResult.MISS
        if slot.ready & group.part:
            return LookupResult.HIT
        return LookupResult.HIT_PENDING if slot.writing & group.part else LookupResult.MISS

    def _note_device_tokens(self, key: OffloadKey, req_context: ReqContext) -> None:
        """Lookups begin right behind what the device has, and go up from there."""
        view = self._views.get(req_context.req_id)
        if view is None or view.counted:
            return
        end = view.end_of(key)
        start = (end - 1) // self._layout.chunk_tokens * self._layout.chunk_tokens
        if view.device_tokens is None or start < view.device_tokens:
            view.device_tokens = start
        view.looked_until = max(view.looked_until, end)

    def get_load_source(self, key: OffloadKey, req_context: ReqContext) -> CacheHitSource:
        """Everything this tier has is in host memory."""
        return CacheHitSource.HOST

    # --- load ---

    def prepare_load(self, keys: Collection[OffloadKey], req_context: ReqContext) -> LoadStoreSpec:
        """Pin the keys and say where they are."""
        view = self._view(req_context)
        view.update_chain()
        slots = [self._readable(key) for key in keys]
        self._count_lookup(view, max((view.end_of(key) for key in keys), default=0))
        for key, slot in zip(keys, slots, strict=True):
            self._pool_of(key).begin_load(slot)
            self._hold(view, key, slot)
        return SlotsSpec(slot.index for slot in slots)

    def complete_load(self, keys: Collection[OffloadKey], req_context: ReqContext) -> None:
        """Unpin them; they have just been used."""
        for key in keys:
            pool = self._pool_of(key)
            slot = self._readable(key)
            slot.superseded = False
            pool.end_load(slot)

    def _readable(self, key: OffloadKey) -> Slot:
        group = self._groups[get_offload_group_idx(key)]
        slot = self._pools[group.pool].get(get_offload_block_hash(key))
        if slot is None or not slot.ready & group.part:
            raise RuntimeError(f"key {key.hex()} of the {group.pool} pool was promised and is not there")
        return slot

    # --- store ---

    def prepare_store(self, keys: Collection[OffloadKey], req_context: ReqContext) -> PrepareStoreOutput | None:
        """Places for the keys that are not there yet.

        Keys for which their pool has no slot are left out, and the others stored: None would refuse
        all of them, and have them offered again at every step.
        """
        view = self._view(req_context)
        view.update_chain()
        stored: list[OffloadKey] = []
        slots: list[int] = []
        evictions: list[tuple[PoolName, Eviction]] = []
        for key in keys:
            index = self._place(key, view, evictions)
            if index is not None:
                stored.append(key)
                slots.append(index)
        view.stores_in_flight += len(stored)
        return PrepareStoreOutput(stored, SlotsSpec(slots), self._evicted_keys(evictions))

    def _place(self, key: OffloadKey, view: RequestView, evictions: list[tuple[PoolName, Eviction]]) -> int | None:
        group = self._groups[get_offload_group_idx(key)]
        pool, block_hash = self._pools[group.pool], get_offload_block_hash(key)
        present = pool.get(block_hash)
        if present is not None and (present.ready | present.writing) & group.part:
            self._hold(view, key, present)
            return None
        end_tokens = view.end_of(key)
        parent = view.parent_of(end_tokens, self._layout.chunk_tokens)
        slot, eviction = pool.begin_write(block_hash, group.part, end_tokens, parent)
        if eviction is not None:
            evictions.append((group.pool, eviction))
        if slot is None:
            self._recorder.count(names.REFUSED_STORES, group.pool)
            return None
        if not slot.ready:  # its bytes are about to change, and may be another block's still
            self._ledgers[group.pool].drop(slot.index)
        self._hold(view, key, slot)
        return slot.index

    def _hold(self, view: RequestView, key: OffloadKey, slot: Slot) -> None:
        """A running request's blocks stay: a chain that loses its beginning while its end is stored
        is of no use. States are not held, or one long request could fill their pool with old ones.
        """
        group = self._groups[get_offload_group_idx(key)]
        if group.pool == "token" and not view.finished and slot.block_hash not in view.held:
            view.held[slot.block_hash] = slot
            self._pools["token"].hold(slot)

    def complete_store(self, keys: Collection[OffloadKey], req_context: ReqContext, success: bool = True) -> None:
        """All workers have copied (or failed to copy) the keys."""
        stored = [key for key in keys if self._end_write(key, success)]
        self._announce(stored, removed=False)
        self._restorable.outdated()
        view = self._views.get(req_context.req_id)
        if view is not None:
            view.stores_in_flight -= len(keys)
            self._close_if_done(view)

    def _end_write(self, key: OffloadKey, success: bool) -> bool:
        group = self._groups[get_offload_group_idx(key)]
        pool, block_hash = self._pools[group.pool], get_offload_block_hash(key)
        stored = pool.end_write(block_hash, group.part, success)
        slot = pool.get(block_hash) if stored else None
        if slot is not None:
            self._ledgers[group.pool].commit(_entry_of(slot))
        return stored

    # --- requests ---

    def on_new_request(self, req_context: ReqContext) -> RequestOffloadingContext:
        """Remember the request until it has finished and its stores are done."""
        before = self._views.get(req_context.req_id)
        if before is not None:
            self._release(before)
        self._views[req_context.req_id] = RequestView(req_context)
        return RequestOffloadingContext()

    def on_request_finished(self, req_context: ReqContext) -> None:
        """No more stores or loads will begin for it; some may still be in flight."""
        view = self._views.get(req_context.req_id)
        if view is not None:
            view.finished = True
            self._close_if_done(view)

    def on_schedule_end(self, context: ScheduleEndContext) -> None:
        """Requests that begin now without a load: count what their lookup came to."""
        for req_id in context.new_req_ids:
            view = self._views.get(req_id)
            if view is not None and not view.counted:
                view.update_chain()
                self._count_lookup(view, view.device_tokens or 0)

    def _view(self, req_context: ReqContext) -> RequestView:
        view = self._views.get(req_context.req_id)
        if view is None:
            view = self._views[req_context.req_id] = RequestView(req_context)
        return view

    def _close_if_done(self, view: RequestView) -> None:
        if not view.finished or view.stores_in_flight > 0:
            return
        view.update_chain()
        for slot in view.held.values():
            self._pools["token"].end_hold(slot)  # every held block is in the chain, and touched there
        view.held.clear()
        self._touch_blocks(view)
        self._rank_states(view)
        self._restorable.outdated()
        del self._views[view.context.req_id]

    def _release(self, view: RequestView) -> None:
        for slot in view.held.values():
            self._pools["token"].release(slot)
        view.held.clear()

    def _touch_blocks(self, view: RequestView) -> None:
        """The last block becomes the oldest: a chain is eaten from its end, and its beginning serves on."""
        pool = self._pools["token"]
        touched: list[int] = []
        for _, block_hash in sorted(view.chain.items(), reverse=True):
            slot = pool.get(block_hash)
            if slot is not None:
                pool.touch(slot)
                touched.append(slot.index)
        self._ledgers["token"].used(touched)

    def _rank_states(self, view: RequestView) -> None:
        pool = self._pools["state"]
        present = [pool.get(block_hash) for _, block_hash in sorted(view.chain.items())]
        states = [slot for slot in present if slot is not None]
        older, newest = states[:-KEPT_BOUNDARIES], states[-KEPT_BOUNDARIES:]
        if self._demote:
            for slot in older:
                pool.supersede(slot)
            self._ledgers["state"].used([slot.index for slot in older], superseded=True)
        for slot in newest:
            pool.touch(slot)
        self._ledgers["state"].used([slot.index for slot in newest])

    # --- what the metrics say ---

    def _count_lookup(self, view: RequestView, hit_until: int) -> None:
        """Once per request, in whole blocks beyond what the device has."""
        if view.counted:
            return
        view.counted = True
        if view.device_tokens is None:
            return
        ends = sorted(end for end in view.chain if end % self._layout.chunk_tokens == 0)
        start = view.device_tokens
        blocks_until = resident_tokens(view.chain, self._pools["token"], start, self._layout.chunk_tokens)
        # Where nothing was missing, the last block was left out because its last token is always computed.
        all_there = blocks_until >= view.looked_until
        until = view.looked_until if all_there else max(ends, default=0)
        if not self._layout.pool_groups("state"):
            blocks_until = hit_until
        state_until = max((end for end in ends if self._has_state(view.chain[end])), default=0)
        bounds = [start, hit_until, blocks_until, state_until, until]
        for outcome, (low, high) in zip(names.OUTCOMES, pairwise(_rising(bounds)), strict=True):
            self._recorder.count(names.LOOKUP_TOKENS, outcome, by=high - low)

    def _has_state(self, block_hash: bytes) -> bool:
        return len(self._layout.pool_groups("state")) > 0 and self._pools["state"].whole(block_hash)

    def get_stats(self) -> OffloadingConnectorStats | None:
        """What changed since the last call."""
        recorder = self._recorder
        for name, pool in self._pools.items():
            recorder.gauge(names.SLOTS, pool.capacity, name, names.ALL_GROUPS)
            recorder.gauge(names.SLOTS_USED, len(pool), name, names.ALL_GROUPS)
            recorder.gauge(names.SLOTS_PINNED, pool.in_use, name, names.ALL_GROUPS)
            host_bytes = pool.capacity * self._layout.slot_bytes(name) * self._world_size
            recorder.gauge(names.HOST_BYTES, host_bytes, name)
        idle = not self._views
        recorder.gauge(names.RESTORABLE_SESSIONS, self._restorable.value(self._pools, self._layout, idle))
        return recorder.collect()

    def _evicted_keys(self, evictions: list[tuple[PoolName, Eviction]]) -> list[OffloadKey]:
        keys: list[OffloadKey] = []
        if evictions:
            self._restorable.outdated()
        for name, (slot, reason, idle_seconds) in evictions:
            self._recorder.count(names.EVICTIONS, name, reason)
            self._recorder.observe(names.IDLE_SECONDS, idle_seconds, name)
            keys.extend(
                make_offload_key(slot.block_hash, group.group_id)
                for group in self._layout.pool_groups(name)
                if slot.ready & group.part
            )
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
        for name, pool in self._pools.items():
            pool.clear()
            self._ledgers[name].clear()
        for view in list(self._views.values()):
            view.held.clear()
            view.stores_in_flight = 0
            if view.finished:
                del self._views[view.context.req_id]
        self._restorable.outdated()

    def shutdown(self) -> None:
        """Let go of the memory; what outlives the engine stays."""
        self._memory.close()

    def _pool_of(self, key: OffloadKey) -> SlotPool:
        return self._pools[self._groups[get_offload_group_idx(key)].pool]


def _entry_of(slot: Slot) -> Entry:
    return Entry(slot.index, slot.block_hash, slot.ready, slot.end_tokens, slot.parent, 0)


def _slot_of(entry: Entry, now: float) -> Slot:
    superseded = entry.rank < 0
    return Slot(entry.block_hash, entry.slot, entry.end_tokens, entry.parent, now, entry.ready, superseded=superseded)


def _rising(bounds: list[int]) -> list[int]:
    """Each bound at least the one before and at most the last."""
    level, result = bounds[0], []
    for bound in bounds:
        level = max(level, min(bound, bounds[-1]))
        result.append(level)
    return result
