"""The scheduler's side of the host tier: which keys are there, which go, what is pinned meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable

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
)
from vllm.v1.metrics.cache_hit_source import CacheHitSource

from engine import metric_names as names
from engine.layout import HostLayout, PoolName
from engine.lookups import lookup_outcomes
from engine.metrics import Recorder
from engine.places import GroupPlace, group_places
from engine.policies import ArcPolicy, EvictionPolicy, LruPolicy
from engine.pool import Slot, SlotPool
from engine.pool_sessions import pool_sessions
from engine.requests import HASH, RequestView
from engine.residency import Memory, PassingMemory
from engine.residency_index import Entry
from engine.residents import RestorableCount, resident_tokens
from engine.served import ServedBook
from engine.snapshot import ResidentSession
from engine.threshold import Admission, admission

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
        policy: str = "lru",
        store_threshold: int = 1,
        memory: Memory | None = None,
    ) -> None:
        self._layout = layout
        self._world_size = world_size
        self._demote = demote_superseded_states
        self._clock = clock
        self._tokens, self._states = (self._pool(name, policy) for name in ("token", "state"))
        self._pools: dict[PoolName, SlotPool] = {"token": self._tokens, "state": self._states}
        self._memory = memory or PassingMemory()
        self._ledgers = {name: self._memory.ledger(name) for name in self._pools}
        self._places = group_places(layout, self._pools, self._ledgers)
        self._views: dict[str, RequestView] = {}
        self._admission: Admission = admission(store_threshold, self._tokens.capacity + self._states.capacity)
        self._failed_loads: set[str] = set()
        self._events: list[OffloadingEvent] | None = [] if events else None
        self._recorder = Recorder()
        self._record_sizes()
        self._restorable = RestorableCount(self._pools, layout)
        self.changed = True
        self.served = ServedBook()
        self._adopt()

    def _pool(self, name: PoolName, policy: str) -> SlotPool:
        needed = self._layout.needed_parts(name)
        capacity = self._layout.slots(name) if needed else 0
        order: EvictionPolicy = ArcPolicy(capacity) if policy == "arc" else LruPolicy()
        return SlotPool(capacity, needed, order, self._clock)

    def _adopt(self) -> None:
        """Take up what an earlier run left in the slots."""
        for name, pool in self._pools.items():
            pool.adopt(_slot_of(entry, self._clock()) for entry in self._memory.entries(name))
        self._restorable.outdated()

    # --- lookup ---

    def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        """HIT if the key can be read, HIT_PENDING while it is being written, else MISS."""
        place = self._places[key[-1]]
        if place.from_the_start:
            self._note_lookup(key, req_context)
        slot = place.slots.get(key[HASH])
        if slot is None:
            return LookupResult.MISS
        if slot.ready & place.part:
            return LookupResult.HIT
        return LookupResult.HIT_PENDING if slot.writing & place.part else LookupResult.MISS

    def _note_lookup(self, key: OffloadKey, req_context: ReqContext) -> None:
        """Lookups begin right behind what the device has, and go up from there."""
        view = self._views.get(req_context.req_id)
        if view is None:
            return
        if view.first_looked_up is None:
            view.first_looked_up = key
        view.last_looked_up = key

    def get_load_source(self, key: OffloadKey, req_context: ReqContext) -> CacheHitSource:
        """Everything this tier has is in host memory."""
        return CacheHitSource.HOST

    # --- load ---

    def prepare_load(self, keys: Collection[OffloadKey], req_context: ReqContext) -> LoadStoreSpec:
        """Pin the keys and say where they are."""
        view = self._view(req_context)
        view.update_chain()
        found = [(self._places[key[-1]], self._readable(key)) for key in keys]
        self._count_lookup(view, max((view.end_of(key) for key in keys), default=0))
        for place, slot in found:
            place.pool.use(slot)
            place.pool.come_back(slot)
            if place.is_token:
                self._hold(view, slot)
        return SlotsSpec([slot.index for _, slot in found])

    def complete_load(self, keys: Collection[OffloadKey], req_context: ReqContext) -> None:
        """Unpin them. What could not be loaded as it was stored is not offered again."""
        failed = req_context.req_id in self._failed_loads
        self._failed_loads.discard(req_context.req_id)
        for key in keys:
            place = self._places[key[-1]]
            slot = place.slots[key[HASH]]
            if failed:
                place.ledger.drop(slot.index)
                place.pool.spoil(slot)
            place.pool.release(slot)
        if failed:
            self._recorder.count(names.VERIFY_FAILURES)
            self._restorable.outdated()

    def load_failed(self, req_ids: Iterable[str]) -> None:
        """Loads of these requests, of which `complete_load` is called next, did not bring what was stored."""
        self._failed_loads.update(req_ids)

    def _readable(self, key: OffloadKey) -> Slot:
        place = self._places[key[-1]]
        slot = place.slots.get(key[HASH])
        if slot is None or not slot.ready & place.part:
            raise RuntimeError(f"key {key.hex()} of the {place.pool_name} pool was promised and is not there")
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
        for key in keys:
            index = self._place(key, view)
            if index is not None:
                stored.append(key)
                slots.append(index)
        view.stores_in_flight += len(stored)
        return PrepareStoreOutput(stored, SlotsSpec(slots), self._evicted_keys())

    def _place(self, key: OffloadKey, view: RequestView) -> int | None:
        place = self._places[key[-1]]
        pool, part, block_hash = place.pool, place.part, key[HASH]
        if view.windows_stale and place.is_token and not place.from_the_start:
            return None
        slot = place.slots.get(block_hash)
        if slot is None:
            slot = self._new_slot(key, place, view)
            if slot is None:
                return None
        elif (slot.ready | slot.writing) & part:
            pool.come_back(slot)
            if place.is_token:
                self._hold(view, slot)
            return None
        if place.kept and not slot.ready:  # its bytes are about to change, and may be another block's still
            place.ledger.drop(slot.index)
        pool.begin_write(slot, part)
        if place.is_token:
            self._hold(view, slot)
        return slot.index

    def _new_slot(self, key: OffloadKey, place: GroupPlace, view: RequestView) -> Slot | None:
        if not self._admission.admits(key):
            return None
        end_tokens = view.end_of(key)
        slot = place.pool.place(key[HASH], end_tokens, view.parent_of(end_tokens, self._layout.chunk_tokens))
        if slot is None:
            self._recorder.count(names.REFUSED_STORES, place.pool_name)
        return slot

    def _hold(self, view: RequestView, slot: Slot) -> None:
        """A running request's blocks stay: a chain that loses its beginning while its end is stored
        is of no use. States are not held, or one long request could fill their pool with old ones.
        """
        if slot.block_hash not in view.held and not view.finished:
            view.held[slot.block_hash] = slot
            self._tokens.use(slot)

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
        place = self._places[key[-1]]
        slot = place.slots.get(key[HASH])
        if slot is None or not place.pool.end_write(slot, place.part, success):
            return False
        if place.kept:
            place.ledger.commit(slot.index, slot.block_hash, slot.ready, slot.end_tokens, slot.parent)
        return True

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
                self._count_lookup(view, 0)

    def _view(self, req_context: ReqContext) -> RequestView:
        view = self._views.get(req_context.req_id)
        if view is None:
            view = self._views[req_context.req_id] = RequestView(req_context)
        return view

    def _close_if_done(self, view: RequestView) -> None:
        if not view.finished or view.stores_in_flight > 0:
            return
        view.update_chain()
        ends = sorted(view.chain)
        # The last block becomes the oldest: a chain is eaten from its end, and its beginning serves on.
        touched = self._tokens.touch_all([view.chain[end] for end in reversed(ends)], used=view.held)
        self._ledgers["token"].used([slot.index for slot in touched])
        self._rank_states([view.chain[end] for end in ends])
        self._restorable.outdated()
        del self._views[view.context.req_id]

    def _release(self, view: RequestView) -> None:
        for slot in view.held.values():
            self._tokens.release(slot)
        view.held.clear()

    def _rank_states(self, chain: list[bytes]) -> None:
        slots = self._states.slots
        states = [slots[block_hash] for block_hash in chain if block_hash in slots]
        older, newest = states[:-KEPT_BOUNDARIES], states[-KEPT_BOUNDARIES:]
        if self._demote:
            for slot in older:
                self._states.mark(slot, superseded=True)
            self._ledgers["state"].used([slot.index for slot in older], superseded=True)
        for slot in newest:
            self._states.mark(slot, superseded=False)
        self._states.touch_all([slot.block_hash for slot in newest])
        self._ledgers["state"].used([slot.index for slot in newest])

    # --- what the metrics say ---

    def _count_lookup(self, view: RequestView, hit_until: int) -> None:
        """Once per request, in whole blocks beyond what the device has."""
        if view.counted:
            return
        view.counted = True
        if view.first_looked_up is None or view.last_looked_up is None:
            return
        chunk, chain = self._layout.chunk_tokens, view.chain
        start = (view.end_of(view.first_looked_up) - 1) // chunk * chunk
        looked_until = view.end_of(view.last_looked_up)
        hit_until = hit_until or start
        ends = [end for end in chain if end % chunk == 0]
        blocks_until = resident_tokens(chain, self._tokens, start, chunk)
        # Where nothing was missing, the last block was left out because its last token is always computed.
        until = looked_until if blocks_until >= looked_until else max(ends, default=0)
        if not self._states.capacity:
            blocks_until = hit_until
        states = self._states.slots
        state_until = max((end for end in ends if chain[end] in states and self._states.whole(chain[end])), default=0)
        for outcome, tokens in lookup_outcomes(start, hit_until, blocks_until, state_until, until):
            self._recorder.count(names.LOOKUP_TOKENS, outcome, by=tokens)

    def _record_sizes(self) -> None:
        for name, pool in self._pools.items():
            self._recorder.gauge(names.SLOTS, pool.capacity, name, names.ALL_GROUPS)
            host_bytes = pool.capacity * self._layout.slot_bytes(name) * self._world_size
            self._recorder.gauge(names.HOST_BYTES, host_bytes, name)

    def get_stats(self) -> OffloadingConnectorStats | None:
        """What changed since the last call."""
        recorder, self.changed = self._recorder, True
        for name, pool in self._pools.items():
            recorder.gauge(names.SLOTS_USED, len(pool), name, names.ALL_GROUPS)
            recorder.gauge(names.SLOTS_PINNED, pool.in_use, name, names.ALL_GROUPS)
        recorder.gauge(names.RESTORABLE_SESSIONS, self._restorable.value())
        return recorder.collect()

    def sessions(self) -> list[ResidentSession]:
        """Which chains are there. Called from another thread than everything else."""
        return pool_sessions(self._pools, self._layout, self._world_size, self._clock)

    def _evicted_keys(self) -> list[OffloadKey]:
        """Of what was given up since the last call, the keys that could be read."""
        keys: list[OffloadKey] = []
        for name, pool in self._pools.items():
            if pool.evicted:
                self._record_evictions(name, pool)
                parts = [place for place in self._places.values() if place.pool is pool]
                keys += [place.key(slot) for slot in pool.evicted for place in parts if slot.ready & place.part]
                pool.evicted.clear()
        if keys:
            self._restorable.outdated()
            self._announce(keys, removed=True)
        return keys

    def _record_evictions(self, name: PoolName, pool: SlotPool) -> None:
        now, superseded = self._clock(), sum(slot.superseded for slot in pool.evicted)
        self._recorder.observe_all(names.IDLE_SECONDS, [now - slot.last_used for slot in pool.evicted], name)
        for reason, count in (("superseded", superseded), (pool.policy.name, len(pool.evicted) - superseded)):
            if count:
                self._recorder.count(names.EVICTIONS, name, reason, by=count)

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
            view.stores_in_flight, view.windows_stale = 0, True
            if view.finished:
                del self._views[view.context.req_id]
        self._failed_loads.clear()
        self._restorable.outdated()

    def shutdown(self) -> None:
        """Let go of the memory; what outlives the engine stays."""
        self._memory.close()


def _slot_of(entry: Entry, now: float) -> Slot:
    superseded = entry.rank < 0
    return Slot(entry.block_hash, entry.slot, entry.end_tokens, entry.parent, now, entry.ready, superseded=superseded)
