"""The manager against a simple model: a set of keys that were stored and not reported as evicted."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule
from vllm.v1.kv_offload.base import LookupResult, OffloadKey, get_offload_block_hash, get_offload_group_idx

from engine.manager import SlotsSpec, TierManager
from tests.unit.engine.chains import Clock, Request, layout, run

PROMPTS = st.text(alphabet="abc", min_size=2, max_size=6)


@dataclass
class Transfer:
    """A store or load that the workers have not reported yet."""

    request: Request
    keys: list[OffloadKey]
    is_store: bool
    slots: dict[OffloadKey, int] = field(default_factory=dict)


class ManagerMachine(RuleBasedStateMachine):
    """Several requests at once, transfers in flight in any order, pools far too small."""

    requests = Bundle("requests")
    transfers = Bundle("transfers")

    @initialize(token_slots=st.integers(1, 8), state_slots=st.integers(1, 4), demote=st.booleans())
    def start(self, token_slots: int, state_slots: int, demote: bool) -> None:
        self.capacity = {"token": token_slots, "state": state_slots}
        self.manager = TierManager(layout(token_slots, state_slots), 1, demote, clock=Clock())
        self.readable: dict[OffloadKey, int] = {}  # key -> slot
        self.flying: list[Transfer] = []
        self.held: dict[str, set[bytes]] = {}
        self.names = 0

    @rule(target=requests, prompt=PROMPTS)
    def arrive(self, prompt: str) -> Request:
        self.names += 1
        request = Request(self.manager, f"r{self.names}", prompt)
        self.held[request.context.req_id] = set()
        return request

    @rule(target=transfers, request=requests, data=st.data())
    def store(self, request: Request, data: st.DataObject) -> Transfer:
        if self._loading(request) or request.context.req_id not in self.held:
            return Transfer(request, [], True)
        first = data.draw(st.integers(0, len(request.hashes) - 1))
        keys = request.tokens(first)
        if data.draw(st.booleans()):
            keys = [*keys, *request.states(data.draw(st.integers(1, len(request.hashes))))]
        output = self.manager.prepare_store(keys, request.context)
        assert output is not None, "one full pool must not refuse the others"
        assert isinstance(output.store_spec, SlotsSpec)
        assert [key for key in keys if key in set(output.keys_to_store)] == output.keys_to_store, "in order"
        self._evict(output.evicted_keys)
        slots = dict(zip(output.keys_to_store, output.store_spec.slots.tolist(), strict=True))
        self._hold(request, [key for key in keys if key in slots or key in self.readable or self._is_flying(key)])
        return self._fly(Transfer(request, output.keys_to_store, True, slots))

    @rule(target=transfers, request=requests)
    def load(self, request: Request) -> Transfer:
        if request.context.req_id not in self.held or any(t.request is request for t in self.flying):
            return Transfer(request, [], False)
        found = request.lookup_blocks()
        if not found:
            return Transfer(request, [], False)
        keys = [*request.tokens(0, found), *request.states(found)]
        spec = self.manager.prepare_load(keys, request.context)
        assert isinstance(spec, SlotsSpec)
        assert spec.slots.tolist() == [self.readable[key] for key in keys], "read from where it was written"
        self._hold(request, keys)
        return self._fly(Transfer(request, keys, False))

    @rule(transfer=consumes(transfers), success=st.booleans())
    def complete(self, transfer: Transfer, success: bool) -> None:
        if transfer not in self.flying:
            return
        self.flying.remove(transfer)
        if not transfer.is_store:
            self.manager.complete_load(set(transfer.keys), transfer.request.context)
            return
        self.manager.complete_store(set(transfer.keys), transfer.request.context, success)
        if success:
            self.readable.update(transfer.slots)

    @rule(request=consumes(requests))
    def finish(self, request: Request) -> None:
        if request.context.req_id in self.held and not self._loading(request):
            request.finish()
            del self.held[request.context.req_id]

    @rule()
    def reset(self) -> None:
        self.manager.reset_cache()
        self.readable.clear()
        self.flying.clear()
        self.held = {name: set() for name in self.held}

    def _loading(self, request: Request) -> bool:
        return any(t.request is request and not t.is_store for t in self.flying)

    def _is_flying(self, key: OffloadKey) -> bool:
        return any(t.is_store and key in t.keys for t in self.flying)

    def _fly(self, transfer: Transfer) -> Transfer:
        if transfer.keys:
            self.flying.append(transfer)
        return transfer

    def _hold(self, request: Request, keys: list[OffloadKey]) -> None:
        tokens = {get_offload_block_hash(key) for key in keys if get_offload_group_idx(key) == 0}
        self.held[request.context.req_id] |= tokens

    def _evict(self, keys: list[OffloadKey]) -> None:
        pinned = {key for transfer in self.flying for key in transfer.keys}
        held = set().union(*self.held.values())
        for key in keys:
            assert key not in pinned, "nothing in a transfer is evicted"
            assert get_offload_group_idx(key) != 0 or get_offload_block_hash(key) not in held
            del self.readable[key]

    @invariant()
    def agrees(self) -> None:
        probe = Request(self.manager, "probe", "aaaaaa")
        flying = {key for t in self.flying if t.is_store for key in t.keys}
        for key in {*self.readable, *flying}:
            probe.context.set_offload_key_position(key, 100)
            result = self.manager.lookup(key, probe.context)
            assert result is (LookupResult.HIT if key in self.readable else LookupResult.HIT_PENDING)
        probe.finish()

    @invariant()
    def no_slot_twice(self) -> None:
        owners: dict[tuple[str, int], set[bytes]] = {}
        flying = {key: slot for t in self.flying for key, slot in t.slots.items()}
        for key, slot in {**self.readable, **flying}.items():
            pool = "token" if get_offload_group_idx(key) == 0 else "state"
            assert 0 <= slot < self.capacity[pool]
            owners.setdefault((pool, slot), set()).add(get_offload_block_hash(key))
        assert all(len(hashes) == 1 for hashes in owners.values())

    def teardown(self) -> None:
        """Whatever happened before: with everything ended, a new session is stored and comes back."""
        if not hasattr(self, "manager"):
            return
        for transfer in self.flying:
            end = self.manager.complete_store if transfer.is_store else self.manager.complete_load
            end(set(transfer.keys), transfer.request.context)
        for view in list(self.manager._views.values()):
            self.manager.on_request_finished(view.context)
        assert not self.manager._views
        run(self.manager, "last", "zz")
        assert run(self.manager, "last again", "zz") == 1


TestManager = ManagerMachine.TestCase
TestManager.settings = settings(max_examples=120, stateful_step_count=40)
