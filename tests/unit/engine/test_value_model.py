"""The manager of one arena against a simple model: a set of keys that were stored and not reported as gone."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule
from vllm.v1.kv_offload.base import LookupResult, OffloadKey, get_offload_block_hash, get_offload_group_idx

from engine.layout import GroupLayout, HostLayout
from engine.one_arena import OneArena
from engine.page_arena import Run
from engine.sizing import SlotPlan
from engine.value_manager import PagesSpec, ValueManager
from tests.unit.engine.chains import CHUNK, Clock, Request, run

PROMPTS = st.text(alphabet="abc", min_size=2, max_size=6)
PAGE, TOKEN_PAGES, STATE_PAGES = 131_072, 2, 3
HALF_STATE = STATE_PAGES * PAGE // 2


def layout(pages: int) -> HostLayout:
    """A block takes two pages, a state three."""
    groups = (
        GroupLayout(0, 0, "token", CHUNK, TOKEN_PAGES * PAGE, 1, 0),
        GroupLayout(1, 1, "state", CHUNK, HALF_STATE, 1, 0),
        GroupLayout(2, 2, "state", CHUNK, HALF_STATE, 2, HALF_STATE),
    )
    return HostLayout(groups, 1, TOKEN_PAGES * PAGE, 2 * HALF_STATE, SlotPlan(0, 0), pages, PAGE)


def pages_in(slots: tuple[Run, ...]) -> set[int]:
    return {page for run_ in slots for page in range(run_.first, run_.first + run_.pages)}


@dataclass
class Transfer:
    """A store or load that the workers have not reported yet."""

    request: Request
    keys: list[OffloadKey]
    is_store: bool
    slots: dict[OffloadKey, tuple[Run, ...]] = field(default_factory=dict)


class ArenaMachine(RuleBasedStateMachine):
    """Several requests at once, transfers in flight in any order, an arena far too small."""

    requests = Bundle("requests")
    transfers = Bundle("transfers")

    @initialize(pages=st.integers(5, 40), policy=st.sampled_from(["value", "hyper"]), demote=st.booleans())
    def start(self, pages: int, policy: str, demote: bool) -> None:
        self.clock = Clock()
        self.manager = ValueManager(layout(pages), policy, 1, demote, events=True, clock=self.clock)
        self.arena: OneArena = self.manager._arena
        self.pages = pages
        self.readable: dict[OffloadKey, tuple[Run, ...]] = {}
        self.flying: list[Transfer] = []
        self.running: set[str] = set()
        self.names = 0
        self._watch_victims()

    def _watch_victims(self) -> None:
        """Whoever asks the policy for a victim has no superseded state left that could go."""
        ask = self.arena.policy.victim

        def victim(now: float):
            assert all(state.pinned for state in self.arena.superseded), "superseded ones go first"
            found = ask(now)
            assert found is None or not found.pinned
            return found

        self.arena.policy.victim = victim

    @rule(target=requests, prompt=PROMPTS, seconds=st.sampled_from([0.0, 5.0, 400.0, 9_000.0]))
    def arrive(self, prompt: str, seconds: float) -> Request:
        self.clock.now += seconds
        self.names += 1
        request = Request(self.manager, f"r{self.names}", prompt)
        self.running.add(request.context.req_id)
        return request

    @rule(target=transfers, request=requests, data=st.data())
    def store(self, request: Request, data: st.DataObject) -> Transfer:
        if self._loading(request) or request.context.req_id not in self.running:
            return Transfer(request, [], True)
        keys: list[OffloadKey] = []
        if data.draw(st.booleans()):
            keys += request.states(data.draw(st.integers(1, len(request.hashes))))
        if data.draw(st.booleans()):
            keys += request.tokens(0, data.draw(st.integers(1, len(request.hashes))))
        if not keys:
            return Transfer(request, [], True)
        output = self.manager.prepare_store(keys, request.context)
        assert output is not None
        assert isinstance(output.store_spec, PagesSpec)
        assert [key for key in keys if key in set(output.keys_to_store)] == output.keys_to_store, "in order"
        slots = dict(zip(output.keys_to_store, output.store_spec.slots, strict=True))
        self._follow_events()
        return self._fly(Transfer(request, output.keys_to_store, True, slots))

    @rule(target=transfers, request=requests)
    def load(self, request: Request) -> Transfer:
        if request.context.req_id not in self.running or any(t.request is request for t in self.flying):
            return Transfer(request, [], False)
        found = request.lookup_blocks()
        if not found:
            return Transfer(request, [], False)
        keys = [*request.tokens(0, found), *request.states(found)]
        spec = self.manager.prepare_load(keys, request.context)
        assert isinstance(spec, PagesSpec)
        assert list(spec.slots) == [self.readable[key] for key in keys], "read from where it was written"
        return self._fly(Transfer(request, keys, False))

    @rule(transfer=consumes(transfers), success=st.sampled_from([True, True, True, False]))
    def complete(self, transfer: Transfer, success: bool) -> None:
        if transfer not in self.flying:
            return
        self.flying.remove(transfer)
        if transfer.is_store:
            if success:
                self.readable.update(transfer.slots)
            self.manager.complete_store(set(transfer.keys), transfer.request.context, success)
        else:
            self.manager.complete_load(set(transfer.keys), transfer.request.context)
        self._follow_events()

    @rule(request=consumes(requests))
    def finish(self, request: Request) -> None:
        if request.context.req_id in self.running and not self._loading(request):
            self.running.remove(request.context.req_id)
            request.finish()
            self._follow_events()

    @rule()
    def reset(self) -> None:
        self.manager.reset_cache()
        self.readable.clear()
        self.flying.clear()

    def _loading(self, request: Request) -> bool:
        return any(t.request is request and not t.is_store for t in self.flying)

    def _fly(self, transfer: Transfer) -> Transfer:
        if transfer.keys:
            self.flying.append(transfer)
        return transfer

    def _follow_events(self) -> None:
        flying = {key for transfer in self.flying for key in transfer.keys}
        for event in self.manager.take_events():
            for key in event.keys:
                if event.removed:
                    assert key not in flying, "nothing in a transfer goes"
                    del self.readable[key]

    @invariant()
    def agrees(self) -> None:
        flying = {key for t in self.flying if t.is_store for key in t.keys}
        for key in {*self.readable, *flying}:
            probe = Request(self.manager, "probe", "c")
            probe.context.set_offload_key_position(key, CHUNK)
            result = self.manager.lookup(key, probe.context)
            assert result is (LookupResult.HIT if key in self.readable else LookupResult.HIT_PENDING)
            probe.finish()  # it may have found a state, which stays while it runs

    @invariant()
    def no_page_twice_and_none_lost(self) -> None:
        slots: dict[tuple[bytes, bool], set[int]] = {}
        flying = {key: slot for t in self.flying for key, slot in t.slots.items()}
        for key, runs in {**flying, **self.readable}.items():
            slots[get_offload_block_hash(key), get_offload_group_idx(key) > 0] = pages_in(runs)
        used = [page for pages in slots.values() for page in pages]
        assert len(used) == len(set(used))
        assert all(0 <= page < self.pages for page in used)
        blocks, states = self.arena.tree.blocks.values(), self.arena.states
        held = [pages_in(block.pages) for block in blocks] + [pages_in(state.pages) for state in states]
        assert self.arena.pages.free + sum(map(len, held)) == self.pages

    @invariant()
    def live_counts_are_right(self) -> None:
        blocks = self.arena.tree.blocks
        reasons = dict.fromkeys(blocks.values(), 0)
        for block in blocks.values():
            if block.parent is not None:
                assert blocks[block.parent.block_hash] is block.parent, "no block without those before it"
                reasons[block.parent] += 1
            reasons[block] += block.state is not None
        for request in self.manager._requests.values():
            for block in (request.visit.tip, *request.visit.asides):
                if block is not None:
                    reasons[block] += 1
        assert all(block.live == count > 0 for block, count in reasons.items())
        assert self.arena.tree.unstored == sum(not block.stored for block in blocks.values())
        assert self.arena.leaves == {state for state in self.arena.states if state.block.live == 1}

    @invariant()
    def at_rest_everything_can_be_used(self) -> None:
        if self.running or self.flying or self.manager._requests or self.arena._failures:
            return
        for state in self.arena.states:
            at = state.block
            while at is not None:
                assert at.ready == 1, "a state's prefix is whole"
                at = at.parent

    def teardown(self) -> None:
        """Whatever happened before: with everything ended, a new session is stored and comes back."""
        if not hasattr(self, "manager"):
            return
        for transfer in self.flying:
            end = self.manager.complete_store if transfer.is_store else self.manager.complete_load
            end(set(transfer.keys), transfer.request.context)
        for request in list(self.manager._requests.values()):
            self.manager.on_request_finished(request.context)
        assert not self.manager._requests
        assert not any(state.pinned for state in self.arena.states)
        if self.pages >= STATE_PAGES + 2 * TOKEN_PAGES:
            run(self.manager, "last", "zz")
            assert run(self.manager, "last again", "zz") == 1


TestArena = ArenaMachine.TestCase
TestArena.settings = settings(max_examples=120, stateful_step_count=40)
