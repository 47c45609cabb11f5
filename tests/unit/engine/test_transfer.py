"""Bytes arrive where they belong and nowhere else."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from vllm.v1.kv_offload.base import (
    CanonicalKVCacheRef,
    CanonicalKVCaches,
    CanonicalKVCacheTensor,
    GPULoadStoreSpec,
)

from engine.arena import Arena
from engine.config import ConfigError
from engine.layout import GroupLayout, HostLayout
from engine.manager import SlotsSpec
from engine.sizing import SlotPlan
from engine.transfer import CopyBatch
from engine.transfer import cpu as cpu_copies
from engine.transfer import cuda as cuda_copies
from engine.transfer.cpu import CpuCopier, copy_run, runs
from engine.transfer.cuda import CudaCopier, PieceCopy
from engine.worker import TierWorker

BLOCKS, PAGE = 12, 256
TOKEN_BYTES, STATE_BYTES = 256, 176  # a state is shorter than its page: the rest is padding


@dataclass
class Bench:
    """A device in small: two tensors shared by a token group and two state groups, as vLLM lays them."""

    worker: TierWorker
    caches: CanonicalKVCaches
    layout: HostLayout
    arena: Arena

    def device(self) -> list[np.ndarray[Any, Any]]:
        return [cache.tensor.numpy().copy() for cache in self.caches.tensors]

    def host(self) -> np.ndarray[Any, Any]:
        return np.concatenate(self.arena.spans)

    def scramble(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        for cache in self.caches.tensors:
            cache.tensor.numpy()[:] = rng.integers(-128, 128, cache.tensor.shape, dtype=np.int8)

    def do(self, job: int, store: bool, device: GPULoadStoreSpec, slots: list[int]) -> None:
        if store:
            self.worker.submit_store(job, device, SlotsSpec(slots))
        else:
            self.worker.submit_load(job, SlotsSpec(slots), device, expedited=True)
        self.worker.wait({job})
        assert [(result.job_id, result.success) for result in self.worker.get_finished()] == [(job, True)]


def bench(blocks_per_chunk: int = 1, token_slots: int = 6, state_slots: int = 5) -> Bench:
    tensors = [torch.zeros((BLOCKS, PAGE), dtype=torch.int8) for _ in range(2)]
    caches = CanonicalKVCaches(
        [CanonicalKVCacheTensor(tensor, PAGE) for tensor in tensors],
        [
            [CanonicalKVCacheRef(0, TOKEN_BYTES), CanonicalKVCacheRef(1, TOKEN_BYTES)],
            [CanonicalKVCacheRef(0, STATE_BYTES), CanonicalKVCacheRef(1, STATE_BYTES)],
            [CanonicalKVCacheRef(0, STATE_BYTES), CanonicalKVCacheRef(1, STATE_BYTES)],
        ],
    )
    groups = (
        GroupLayout(0, 0, "token", 384, 2 * TOKEN_BYTES, 1, 0),
        GroupLayout(1, 1, "state", 384, 2 * STATE_BYTES, 1, 0),
        GroupLayout(2, 2, "state", 384, 2 * STATE_BYTES, 2, 2 * STATE_BYTES),
    )
    token_bytes = 2 * TOKEN_BYTES * blocks_per_chunk
    plan = SlotPlan(token_slots, state_slots)
    layout = HostLayout(groups, blocks_per_chunk, token_bytes, 4 * STATE_BYTES, plan)
    arena = Arena(layout)
    return Bench(TierWorker(layout, arena, caches, CpuCopier(2)), caches, layout, arena)


@pytest.fixture
def make_bench() -> Iterator[Callable[..., Bench]]:
    made: list[Bench] = []

    def make(**arguments: int) -> Bench:
        made.append(bench(**arguments))
        return made[-1]

    yield make
    for each in made:
        each.worker.shutdown()
        each.worker.shutdown()  # vLLM may ask twice


def test_blocks_and_states_come_back_exactly(make_bench: Callable[..., Bench]) -> None:
    """Stored from some blocks, loaded into others: the same bytes; every other byte as before."""
    rig = make_bench()
    rig.scramble(1)
    before = rig.device()
    rig.do(1, True, GPULoadStoreSpec([3, 7, 5, 1], [2, 1, 1], [4, 5, 5]), [5, 2, 4, 4])
    assert all(np.array_equal(now, then) for now, then in zip(rig.device(), before, strict=True))
    rig.scramble(2)
    scrambled = rig.device()
    rig.do(2, False, GPULoadStoreSpec([9, 10, 0, 11], [2, 1, 1], [4, 5, 5]), [5, 2, 4, 4])
    for now, then, was in zip(rig.device(), before, scrambled, strict=True):
        for source, target, size in ((3, 9, PAGE), (7, 10, PAGE), (5, 0, STATE_BYTES), (1, 11, STATE_BYTES)):
            assert np.array_equal(now[target, :size], then[source, :size])
            assert np.array_equal(now[target, size:], was[target, size:]), "padding stays untouched"
        untouched = [block for block in range(BLOCKS) if block not in (9, 10, 0, 11)]
        assert np.array_equal(now[untouched], was[untouched])


def test_a_store_touches_its_slots_alone(make_bench: Callable[..., Bench]) -> None:
    """Neighbouring slots, and the other groups' parts of the same slot, keep their bytes."""
    rig = make_bench()
    for span in rig.arena.spans:
        span[:] = 77
    rig.scramble(3)
    rig.do(1, True, GPULoadStoreSpec([2], [0, 1, 0], [0, 3, 0]), [1])
    region = rig.arena.region("state")
    start = len(rig.arena.spans[0]) + region.slot_bytes
    host = rig.host()
    assert not np.array_equal(host[start : start + 2 * STATE_BYTES], np.full(2 * STATE_BYTES, 77))
    host[start : start + 2 * STATE_BYTES] = 77
    assert np.all(host == 77)


@given(data=st.data(), blocks_per_chunk=st.integers(1, 3))
@settings(max_examples=60)
def test_chunks_of_several_blocks_fit_wherever_they_begin(data: st.DataObject, blocks_per_chunk: int) -> None:
    """Whole chunks are stored; a load may begin in the middle of the first and end within the last."""
    rig = bench(blocks_per_chunk)
    chunks = data.draw(st.integers(1, min(6, BLOCKS // blocks_per_chunk)))
    slots = data.draw(st.permutations(range(6)))[:chunks]
    sources = data.draw(st.permutations(range(BLOCKS)))[: chunks * blocks_per_chunk]
    rig.scramble(4)
    before = rig.device()
    rig.do(1, True, GPULoadStoreSpec(sources, [len(sources), 0, 0], [0, 0, 0]), list(slots))
    first = data.draw(st.integers(0, len(sources) - 1))
    last = data.draw(st.integers(first + 1, len(sources)))
    targets = data.draw(st.permutations(range(BLOCKS)))[: last - first]
    used = list(slots)[first // blocks_per_chunk : -(-last // blocks_per_chunk)]
    rig.scramble(5)
    rig.do(2, False, GPULoadStoreSpec(targets, [len(targets), 0, 0], [first, 0, 0]), used)
    for now, then in zip(rig.device(), before, strict=True):
        assert np.array_equal(now[list(targets)], then[sources[first:last]])
    rig.worker.shutdown()


@pytest.mark.parametrize(
    ("device", "slots"),
    [
        (GPULoadStoreSpec([1], [1, 0, 0], [0, 0, 0]), [6]),
        (GPULoadStoreSpec([1], [1, 0, 0], [0, 0, 0]), [-1]),
        (GPULoadStoreSpec([BLOCKS], [1, 0, 0], [0, 0, 0]), [0]),
        (GPULoadStoreSpec([1, 2], [2, 0, 0], [0, 0, 0]), [0]),
        (GPULoadStoreSpec([1], [1, 0, 0], [0, 0, 0]), [0, 1]),
    ],
)
def test_a_transfer_that_does_not_fit_is_refused(
    make_bench: Callable[..., Bench], device: GPULoadStoreSpec, slots: list[int]
) -> None:
    """Nothing is ever copied outside of the slots or the cache."""
    rig = make_bench()
    with pytest.raises(ValueError, match=r"slots|blocks"):
        rig.worker.submit_store(1, device, SlotsSpec(slots))


def test_a_worker_with_other_layers_refuses_to_start(make_bench: Callable[..., Bench]) -> None:
    """Slots of the wrong size would be served wrongly."""
    rig = make_bench()
    rig.caches.group_data_refs[1].pop()
    with pytest.raises(ConfigError, match="group 1 takes 176 bytes where 352 were expected"):
        TierWorker(rig.layout, rig.arena, rig.caches, CpuCopier(1))


def test_a_failed_copy_is_reported_as_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine must not take half a block for a whole one."""

    def broken(run: cpu_copies.Run, to_host: bool) -> None:
        raise OSError("gone")

    monkeypatch.setattr(cpu_copies, "copy_run", broken)
    copier = CpuCopier(1)
    array = np.zeros(8, np.uint8)
    address = np.array([array.ctypes.data], np.uint64)
    copier.submit(1, CopyBatch(address, address, np.array([8], np.int64)), to_host=True)
    copier.wait({1})
    assert [result.success for result in copier.finished()] == [False]
    copier.close()


def test_loads_overtake_stores(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request waits for a load; nobody waits for a store."""
    gate, order = threading.Event(), []

    def slow(run: cpu_copies.Run, to_host: bool) -> None:
        gate.wait(10)
        order.append("store" if to_host else "load")

    monkeypatch.setattr(cpu_copies, "copy_run", slow)
    copier = CpuCopier(1)
    array = np.zeros(8, np.uint8)
    address = np.array([array.ctypes.data], np.uint64)
    one = CopyBatch(address, address, np.array([8], np.int64))
    for job, to_host in ((1, True), (2, True), (3, True), (4, False)):
        copier.submit(job, one, to_host)
    gate.set()
    copier.wait({1, 2, 3, 4})
    copier.close()
    assert order.index("load") <= 1


def test_an_empty_transfer_ends_at_once() -> None:
    """vLLM waits for every job it numbered."""
    copier = CpuCopier(1)
    copier.submit(9, CopyBatch.joined([]), to_host=False)
    copier.wait({9})
    assert copier.finished()[0].job_id == 9
    copier.close()


@given(
    pieces=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), st.sampled_from([5, 9, 16])), max_size=30),
    most=st.integers(1, 60),
)
def test_runs_are_the_same_pieces(pieces: list[tuple[int, int, int]], most: int) -> None:
    """However they are put together, the same bytes go to the same places."""
    device = np.array([piece[0] * 16 for piece in pieces], np.uint64)
    host = np.array([piece[1] * 16 for piece in pieces], np.uint64)
    sizes = np.array([piece[2] for piece in pieces], np.int64)
    unfolded = []
    for run in runs(CopyBatch(device, host, sizes), most):
        assert run.pieces == 1 or run.pieces * run.size <= max(most, run.size)
        for number in range(run.pieces):
            unfolded.append((run.device + number * run.device_step, run.host + number * run.host_step, run.size))
    assert unfolded == [(a * 16, b * 16, size) for a, b, size in pieces]


def test_blocks_in_a_row_are_one_run() -> None:
    """That is what makes copies fast: one call for a whole prompt's blocks, falling or rising."""
    steps = np.arange(20, dtype=np.uint64)
    batch = CopyBatch(1000 + steps * 64, 9000 - steps * 128, np.full(20, 48, np.int64))
    assert [run.pieces for run in runs(batch)] == [20]


def test_a_falling_run_is_copied_right() -> None:
    """Slots are freed from a chain's end, so reused ones often fall while blocks rise."""
    source, target = np.arange(40, dtype=np.uint8), np.zeros(40, dtype=np.uint8)
    run = cpu_copies.Run(source.ctypes.data, target.ctypes.data + 30, 10, -10, 4, 10)
    copy_run(run, to_host=True)
    assert target.tolist() == [*range(30, 40), *range(20, 30), *range(10, 20), *range(10)]


class FakeCuda:
    """Records what is asked of streams and events, in order."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.done = False
        fake = self

        class Stream:
            def __init__(self) -> None:
                self.name = f"stream{sum(call.startswith('new') for call in fake.calls)}"
                fake.calls.append(f"new {self.name}")

            def wait_stream(self, other: str) -> None:
                fake.calls.append(f"{self.name} waits for {other}")

            def synchronize(self) -> None:
                fake.calls.append(f"host waits for {self.name}")

            def __enter__(self) -> None:
                fake.calls.append(f"on {self.name}")

            def __exit__(self, *_: object) -> None:
                fake.calls.append("off")

        class Event:
            def __init__(self, enable_timing: bool) -> None:
                assert enable_timing

            def record(self, stream: Stream) -> None:
                fake.calls.append("record")

            def query(self) -> bool:
                return fake.done

            def synchronize(self) -> None:
                fake.calls.append("host waits for event")

            def elapsed_time(self, other: object) -> float:
                return 5.0

        self.Stream, self.Event = Stream, Event

    def current_stream(self) -> str:
        return "model"

    def stream(self, stream: Any) -> Any:
        return stream

    def is_available(self) -> bool:
        return False


def test_a_gpu_copy_waits_for_the_model_and_never_blocks_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Order on a GPU, by structure: behind the model's work, between two events, no host wait."""
    fake = FakeCuda()
    monkeypatch.setattr(torch, "cuda", fake)
    copies: list[tuple[list[int], list[int], list[int], bool]] = []
    copier = CudaCopier(
        lambda source, target, sizes, at_rest: copies.append(
            (source.tolist(), target.tolist(), sizes.tolist(), at_rest)
        )
    )
    one = CopyBatch(np.array([10], np.uint64), np.array([20], np.uint64), np.array([4], np.int64))
    fake.calls.clear()
    copier.submit(1, one, to_host=True)
    copier.submit(2, one, to_host=False)
    waits = [call for call in fake.calls if "waits" in call]
    assert waits == ["stream0 waits for model", "stream1 waits for model"]
    assert copies == [([10], [20], [4], False), ([20], [10], [4], True)]
    assert copier.finished() == []
    copier.wait({2})
    assert fake.calls[-1] == "host waits for event"
    fake.done = True
    assert [(result.job_id, result.seconds) for result in copier.finished()] == [(1, 0.005), (2, 0.005)]


class FakeDriver:
    """Registers host memory until it has had enough."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.pinned: list[int] = []

    def cudaHostRegister(self, address: int, size: int, flags: int) -> int:
        if len(self.pinned) == self.most:
            return 2
        self.pinned.append(address)
        return 0

    def cudaHostUnregister(self, address: int) -> int:
        self.pinned.remove(address)
        return 0


@pytest.mark.parametrize(("most", "pinned"), [(9, 3), (2, 0)])
def test_memory_is_pinned_whole_or_not_at_all(monkeypatch: pytest.MonkeyPatch, most: int, pinned: int) -> None:
    """In pieces the driver takes; let go of before the memory is given back."""
    driver = FakeDriver(most)
    monkeypatch.setattr(torch.cuda, "cudart", lambda: driver)
    release = cuda_copies.pin([(1 << 40, cuda_copies.MOST_PINNED_BYTES * 2 + 5)])
    assert len(driver.pinned) == pinned
    release()
    assert driver.pinned == []


def test_the_fallback_without_a_batch_copy_copies_the_same_bytes() -> None:
    """One torch copy per piece."""
    device = torch.arange(64, dtype=torch.int8).view(4, 16)
    host = torch.zeros(64, dtype=torch.int8)
    copy = PieceCopy([device], [host])
    source = torch.tensor([device.data_ptr() + 16, device.data_ptr() + 48])
    target = torch.tensor([host.data_ptr() + 32, host.data_ptr()])
    copy(source, target, torch.tensor([16, 8]), False)
    assert torch.equal(host[32:48], device[1])
    assert torch.equal(host[:8], device[3, :8])
    assert int(host[8:32].sum()) == 0
    with pytest.raises(ValueError, match="no tensor holds"):
        copy(source, target + 1000, torch.tensor([16, 8]), False)
