"""With `verify`, what a slot no longer holds as it was stored is never served."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import OffloadingConnectorMetadata, TransferJob
from vllm.v1.kv_offload.base import GPULoadStoreSpec
from vllm.v1.outputs import KVConnectorOutput

from engine import metric_names as names
from engine.connector import OffloadingConnector
from engine.manager import SlotsSpec, TierManager
from engine.transfer.cpu import CpuCopier
from engine.transfer.verify import VerifyingCopier
from engine.worker import TierWorker
from tests.unit.engine.chains import Clock, Request, counts, layout, run
from tests.unit.engine.test_transfer import Bench, bench
from tests.unit.engine.test_value import manager as arena_manager

BLOCKS = GPULoadStoreSpec([3, 7, 5], [2, 1, 0], [4, 5, 0])
SLOTS = [5, 2, 4]


@pytest.fixture(params=[True, False], ids=["device_readable", "host_only"])
def rig(request: pytest.FixtureRequest) -> Iterator[Bench]:
    plain = bench()
    worker = TierWorker(plain.layout, plain.arena, plain.caches, VerifyingCopier(CpuCopier(2), request.param))
    plain.worker._copier.close()
    plain.worker = worker
    plain.scramble(1)
    yield plain
    worker.shutdown()


def test_what_was_stored_is_what_is_loaded(rig: Bench) -> None:
    """Nothing is refused as long as the slots keep their bytes, also when they are stored again."""
    for seed in (1, 2):
        rig.scramble(seed)
        rig.do(10 * seed, True, BLOCKS, SLOTS)
        rig.do(10 * seed + 1, False, GPULoadStoreSpec([0, 1, 2], [2, 1, 0], [4, 5, 0]), SLOTS)
    assert rig.worker.take_failed_loads() == set()


def test_a_changed_byte_fails_the_load(rig: Bench) -> None:
    """One bit of one slot; other slots load as before."""
    rig.do(1, True, BLOCKS, SLOTS)
    token = rig.arena.region("token")
    rig.arena.spans[0][2 * token.slot_bytes + 17] ^= 1
    rig.do(2, False, BLOCKS, SLOTS)
    assert rig.worker.take_failed_loads() == {2}
    assert rig.worker.take_failed_loads() == set(), "told once"
    rig.do(3, False, GPULoadStoreSpec([3], [1, 0, 0], [4, 0, 0]), SLOTS[:1])
    assert rig.worker.take_failed_loads() == set()


@pytest.mark.parametrize("policy", ["lru", "value"])
def test_a_failed_load_is_not_offered_again(policy: str) -> None:
    """Its blocks and states are gone at once, counted, and their places free."""
    tier = TierManager(layout(), clock=Clock()) if policy == "lru" else arena_manager(clock=Clock())
    run(tier, "cold", "abcd")
    reader = Request(tier, "reader", "abcd")
    keys = [*reader.tokens(0, reader.lookup_blocks()), *reader.states(3)]
    tier.prepare_load(keys, reader.context)
    tier.load_failed({"reader"})
    tier.complete_load(set(keys), reader.context)
    assert reader.lookup_blocks() == 0
    assert counts(tier)[names.VERIFY_FAILURES,] == 1
    reader.finish()
    assert run(tier, "cold again", "abcd") == 0
    assert run(tier, "back", "abcd") == 3
    assert (names.VERIFY_FAILURES,) not in counts(tier)


class Engine:
    """A connector without an engine: upstream's two halves are stood in for."""

    def __init__(self, upstream: Callable[[Any], None]) -> None:
        self.connector = OffloadingConnector.__new__(OffloadingConnector)
        self.connector._is_ours = True
        self.connector._loading = {}
        upstream(self.connector)


def test_vllm_is_told_which_request_to_compute_anew() -> None:
    """The worker knows jobs, the scheduler requests; a load that went well is not among them."""
    worker = SimpleNamespace(take_failed_loads=lambda: {7})
    half = SimpleNamespace(
        worker=worker, start_kv_transfers=lambda metadata: None, get_finished=lambda ids: (set(), {"bad", "good"})
    )

    def upstream(connector: Any) -> None:
        jobs = {
            7: TransferJob("bad", SlotsSpec([1]), GPULoadStoreSpec([1], [1], [0])),
            8: TransferJob("good", SlotsSpec([2]), GPULoadStoreSpec([2], [1], [0])),
        }
        connector._connector_metadata = OffloadingConnectorMetadata(jobs, {}, set())
        connector.connector_worker = half

    connector = Engine(upstream).connector
    connector.start_load_kv(None)
    results = connector.get_transfer_results(set())
    assert results.failed_recving == {"bad"}
    assert results.finished_recving == {"bad", "good"}
    assert not connector._loading


def test_the_manager_hears_of_it_before_the_load_ends_for_it() -> None:
    """Otherwise the slots would be offered once more. And what is computed anew is stored from its beginning."""
    order: list[str] = []
    group = SimpleNamespace(next_stored_chunk_idx=7)
    half = SimpleNamespace(
        _req_status={"bad": SimpleNamespace(group_states=(group,))},
        manager=SimpleNamespace(
            load_failed=lambda requests: order.append(f"failed {sorted(requests)}"),
            served=SimpleNamespace(lost=lambda requests: order.append(f"lost {sorted(requests)}")),
        ),
        update_connector_output=lambda output: order.append("ended"),
    )

    def upstream(connector: Any) -> None:
        connector.connector_scheduler = half

    Engine(upstream).connector.update_connector_output(KVConnectorOutput(failed_recving={"bad"}))
    assert order == ["failed ['bad']", "lost ['bad']", "ended"]
    assert group.next_stored_chunk_idx == 0


def test_transfers_under_way_end_before_new_ones_begin() -> None:
    """Also where vLLM flushes a new store at once: after a reset it may write where an old one still does."""
    told: list[tuple[list[int], set[int] | None]] = []
    half = SimpleNamespace(
        handle_preemptions=lambda metadata: told.append((sorted(metadata.store_jobs), metadata.jobs_to_flush))
    )

    def upstream(connector: Any) -> None:
        connector.connector_worker = half

    job = TransferJob("new", GPULoadStoreSpec([1], [1], [0]), SlotsSpec([1]))
    Engine(upstream).connector.handle_preemptions(OffloadingConnectorMetadata({}, {9: job}, {3, 9}))
    assert told == [([], {3, 9}), ([9], {3, 9})]
