"""One arena that outlives its engine against a simple model: killed at any moment and started again, it serves
nothing that was not stored whole, and finds everything that was and did not have to go.
"""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from vllm.v1.kv_offload.base import LookupResult, OffloadKey, get_offload_block_hash, make_offload_key

from engine.page_arena import Run
from engine.value_manager import PagesSpec
from tests.unit.engine.arena_rig import STATE_PAGES, TOKEN_PAGES, ArenaEngine, arena_layout, places
from tests.unit.engine.chains import CHUNK, STATE_GROUPS, TOKEN_GROUP, Clock, Request

SESSIONS = ("abcd", "abxy", "abcdefg", "kl", "klmnop", "qr", "rstuvw", "abcdxx")
NUMBERS = st.integers(0, len(SESSIONS) - 1)


@dataclass
class Flight:
    """A store that the workers have not reported yet."""

    request: Request
    keys: list[OffloadKey]
    slots: list[tuple[Run, ...]] = field(default_factory=list)


class KilledAndStarted(RuleBasedStateMachine):
    """Requests at once, stores in flight in any order, an arena far too small, and kills."""

    @initialize(
        pages=st.integers(8, 60),
        policy=st.sampled_from(["value", "hyper"]),
        states=st.sampled_from([True, True, False]),
        workers=st.integers(1, 2),
    )
    def begin(self, pages: int, policy: str, states: bool, workers: int) -> None:
        self.mount = Path(tempfile.mkdtemp(prefix="arena-"))
        self.policy, self.states, self.workers = policy, states, workers
        self.runs = 0
        #: What was stored whole and not reported as gone.
        self.readable: set[OffloadKey] = set()
        self.clock = Clock()
        self._start(pages)

    def _start(self, pages: int) -> None:
        self.pages = pages
        self.runs += 1
        layout = arena_layout(pages, self.states)
        self.engine = ArenaEngine(self.mount, f"run {self.runs}", layout, self.workers, self.policy, self.clock)
        self.requests: dict[int, Request] = {}
        self.flights: list[Flight] = []

    @rule(number=NUMBERS, seconds=st.sampled_from([0.0, 3.0, 700.0]))
    def whole_session(self, number: int, seconds: float) -> None:
        self.clock.now += seconds
        request = self.engine.request("whole", SESSIONS[number])
        self.engine.found(SESSIONS[number], request)
        request.begin()
        for key in request.states(len(request.hashes) - 1) if self.states else ():
            self._whole(request, [key])
        self._whole(request, request.tokens())
        request.finish()
        self._follow()

    def _whole(self, request: Request, keys: list[OffloadKey]) -> None:
        stored = self.engine.store(request, keys)
        self._follow()
        self.readable.update(stored)

    @rule(number=NUMBERS, blocks=st.integers(1, 7), state=st.booleans())
    def begin_store(self, number: int, blocks: int, state: bool) -> None:
        request = self.requests.get(number) or self.engine.request("part", SESSIONS[number])
        self.requests[number] = request
        end = min(blocks, len(request.hashes))
        keys = [*(request.states(end) if state and self.states else ()), *request.tokens(0, end)]
        output = self.engine.manager.prepare_store(keys, request.context)
        assert output is not None
        assert isinstance(output.store_spec, PagesSpec)
        self._follow()
        if output.keys_to_store:
            self.flights.append(Flight(request, output.keys_to_store, list(output.store_spec.slots)))

    @precondition(lambda self: self.flights)
    @rule(data=st.data(), whole=st.booleans())
    def copy(self, data: st.DataObject, whole: bool) -> None:
        flight = data.draw(st.sampled_from(self.flights))
        self.engine.write(flight.keys, flight.slots, whole)

    @precondition(lambda self: self.flights)
    @rule(data=st.data(), success=st.sampled_from([True, True, True, False]))
    def end_store(self, data: st.DataObject, success: bool) -> None:
        flight = data.draw(st.sampled_from(self.flights))
        self.flights.remove(flight)
        self.engine.write(flight.keys, flight.slots, whole=success)
        if success:
            self.readable.update(flight.keys)
        self.engine.manager.complete_store(set(flight.keys), flight.request.context, success)
        self._follow()

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        self.requests.pop(data.draw(st.sampled_from(sorted(self.requests)))).finish()
        self._follow()

    @rule()
    def reset(self) -> None:
        for flight in self.flights:  # vLLM flushes them, and never acknowledges them
            self.engine.write(flight.keys, flight.slots)
        self.engine.manager.reset_cache()
        self.readable.clear()
        self.flights.clear()

    @rule(other_pages=st.one_of(st.none(), st.integers(5, 80)))
    def kill_and_start(self, other_pages: int | None) -> None:
        """With the same memory everything usable is there; with less of it, as much as fits."""
        usable = self._usable()
        self.engine.kill()
        self._start(other_pages or self.pages)
        found = self._found()
        assert found <= usable, "what was not stored whole is not served"
        if self.pages >= self._pages_of(usable):
            assert found == usable, "what was stored whole and did not have to go is found"
        else:
            assert self._pages_of(found) + STATE_PAGES + 7 * TOKEN_PAGES > self.pages or not self.states
        self.readable = found
        self._check_bytes()

    def _usable(self) -> set[OffloadKey]:
        """Readable, with all blocks before it, and on the way to a whole state (or to any block without states)."""
        kept: set[OffloadKey] = set()
        for session in SESSIONS:
            hashes = [session[:end].encode() for end in range(1, len(session) + 1)]
            whole = 0
            for block_hash in hashes:
                if make_offload_key(block_hash, TOKEN_GROUP) not in self.readable:
                    break
                whole += 1
            ends = [end for end in range(1, whole + 1) if self._has_state(hashes[end - 1])]
            kept.update(make_offload_key(block_hash, TOKEN_GROUP) for block_hash in hashes[: max(ends, default=0)])
            if self.states:
                kept.update(make_offload_key(hashes[end - 1], group) for end in ends for group in STATE_GROUPS)
        return kept

    def _has_state(self, block_hash: bytes) -> bool:
        return not self.states or all(make_offload_key(block_hash, group) in self.readable for group in STATE_GROUPS)

    def _pages_of(self, keys: set[OffloadKey]) -> int:
        blocks = sum(key[-1] == TOKEN_GROUP for key in keys)
        return blocks * TOKEN_PAGES + (len(keys) - blocks) // len(STATE_GROUPS) * STATE_PAGES

    def _all_keys(self) -> set[OffloadKey]:
        groups = (TOKEN_GROUP, *STATE_GROUPS) if self.states else (TOKEN_GROUP,)
        hashes = {session[:end].encode() for session in SESSIONS for end in range(1, len(session) + 1)}
        return {make_offload_key(block_hash, group) for block_hash in hashes for group in groups}

    def _found(self) -> set[OffloadKey]:
        probe = Request(self.engine.manager, "probe", "")
        for key in self._all_keys():
            probe.context.set_offload_key_position(key, len(get_offload_block_hash(key)) * CHUNK)
        self.engine.manager._requests.pop("probe")  # it asks without being a request that is learned from
        lookup = self.engine.manager.lookup
        return {key for key in self._all_keys() if lookup(key, probe.context) is LookupResult.HIT}

    def _check_bytes(self) -> None:
        blocks = self.engine.manager._arena.tree.blocks
        for key in self.readable:
            block = blocks[get_offload_block_hash(key)]
            slot = block if key[-1] == TOKEN_GROUP else block.state
            assert slot is not None
            assert places(slot.pages).max() < len(self.engine.arenas[0].spans[0])
            self.engine.check_bytes([key], [slot.pages])

    def _follow(self) -> None:
        for event in self.engine.manager.take_events():
            if event.removed:
                self.readable.difference_update(event.keys)

    @invariant()
    def no_page_is_lost(self) -> None:
        arena = self.engine.manager._arena
        slots = [*arena.tree.blocks.values(), *arena.states]
        assert arena.pages.free + sum(run.pages for slot in slots for run in slot.pages) == self.pages

    def teardown(self) -> None:
        """After whatever happened: a new session is stored and outlives one more kill."""
        if not hasattr(self, "engine"):
            return
        self.engine.kill()
        self._start(60)
        self.engine.session("zz")
        self.engine.kill()
        self._start(60)
        assert self.engine.found("zz") == 1
        self.engine.kill()
        shutil.rmtree(self.mount)


TestKilledAndStarted = KilledAndStarted.TestCase
TestKilledAndStarted.settings = settings(max_examples=80, stateful_step_count=30)
