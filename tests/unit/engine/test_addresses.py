"""Slots that are lists of pages: every byte where it belongs, whatever the pages are."""

from __future__ import annotations

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

from engine.addresses import PagedPlaces, page_table
from engine.arena import Arena
from engine.layout import GroupLayout, HostLayout
from engine.page_arena import PageArena, Run, pages_of
from engine.sizing import SlotPlan
from engine.transfer.cpu import CpuCopier
from engine.value_manager import PagesSpec
from engine.worker import TierWorker

BLOCKS, PADDED = 12, 5_000
TOKEN_BYTES, STATE_BYTES = 4_800, 4_500  # neither is a whole number of pages
PAGE = 4_096


class Bench:
    """Two tensors shared by a token group and two state groups, and a worker with an arena of pages."""

    def __init__(self, pages: int, blocks_per_chunk: int) -> None:
        self.tensors = [torch.zeros((BLOCKS, PADDED), dtype=torch.int8) for _ in range(2)]
        caches = CanonicalKVCaches(
            [CanonicalKVCacheTensor(tensor, PADDED) for tensor in self.tensors],
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
        self.layout = HostLayout(groups, blocks_per_chunk, token_bytes, 4 * STATE_BYTES, SlotPlan(0, 0), pages, PAGE)
        self.arena = Arena(self.layout)
        self.worker = TierWorker(self.layout, self.arena, caches, CpuCopier(2))
        self.pages = {pool: pages_of(self.layout.slot_bytes(pool), PAGE) for pool in ("token", "state")}

    def scramble(self, seed: int) -> list[np.ndarray]:
        rng = np.random.default_rng(seed)
        for tensor in self.tensors:
            tensor.numpy()[:] = rng.integers(-128, 128, tensor.shape, dtype=np.int8)
        return self.device()

    def device(self) -> list[np.ndarray]:
        return [tensor.numpy().copy() for tensor in self.tensors]

    def do(self, job: int, store: bool, device: GPULoadStoreSpec, slots: list[tuple[Run, ...]]) -> None:
        spec = PagesSpec(slots)
        if store:
            self.worker.submit_store(job, device, spec)
        else:
            self.worker.submit_load(job, spec, device)
        self.worker.wait({job})
        assert [(result.job_id, result.success) for result in self.worker.get_finished()] == [(job, True)]


def slots_in(order: list[int], pages: dict[str, int]) -> tuple[list[tuple[Run, ...]], tuple[Run, ...]]:
    """Two token slots and a state slot from pages in this order, with neighbours joined as the arena does."""
    slots = []
    for size in (pages["token"], pages["token"], pages["state"]):
        chosen, order = order[:size], order[size:]
        runs: list[Run] = []
        for page in chosen:
            if runs and runs[-1].first + runs[-1].pages == page:
                runs[-1] = Run(runs[-1].first, runs[-1].pages + 1)
            else:
                runs.append(Run(page, 1))
        slots.append(tuple(runs))
    return slots[:2], slots[2]


@settings(max_examples=40)
@given(order=st.permutations(range(24)), blocks_per_chunk=st.sampled_from([1, 2]), rising=st.booleans())
def test_blocks_and_states_come_back_exactly_from_any_pages(
    order: list[int], blocks_per_chunk: int, rising: bool
) -> None:
    """Stored from some blocks, loaded into others: the same bytes; every other byte of the device, and every
    page of the host that belongs to no slot in use, as before.
    """
    rig = Bench(24, blocks_per_chunk)
    try:
        tokens, state = slots_in(sorted(order) if rising else list(order), rig.pages)
        before = rig.scramble(1)
        sources = [3, 7, 2, 6][: 2 * blocks_per_chunk]
        targets = [9, 10, 0, 11][: 2 * blocks_per_chunk]
        count = len(sources)
        rig.do(1, True, GPULoadStoreSpec([*sources, 5, 1], [count, 1, 1], [0, 3, 3]), [*tokens, state, state])
        host = rig.arena.spans[0].copy()
        used = {page for slot in (*tokens, state) for run in slot for page in range(run.first, run.first + run.pages)}
        for page in set(range(24)) - used:
            assert not host[page * PAGE : (page + 1) * PAGE].any()
        was = rig.scramble(2)
        rig.do(2, False, GPULoadStoreSpec([*targets, 4, 8], [count, 1, 1], [0, 3, 3]), [*tokens, state, state])
        moves = [(a, b, TOKEN_BYTES) for a, b in zip(sources, targets, strict=True)]
        moves += [(5, 4, STATE_BYTES), (1, 8, STATE_BYTES)]
        for now, then, scrambled in zip(rig.device(), before, was, strict=True):
            for source, target, size in moves:
                assert np.array_equal(now[target, :size], then[source, :size])
                assert np.array_equal(now[target, size:], scrambled[target, size:]), "padding stays untouched"
            untouched = [block for block in range(BLOCKS) if block not in {target for _, target, _ in moves}]
            assert np.array_equal(now[untouched], scrambled[untouched])
        assert np.array_equal(rig.arena.spans[0], host), "loading changes nothing on the host"
    finally:
        rig.worker.shutdown()


def test_neighbouring_pages_are_one_copy() -> None:
    """The usual case: a block whose pages lie side by side goes in one piece, the others page by page."""
    table = page_table([(Run(4, 3),), (Run(9, 1), Run(2, 2))], 3)
    places = PagedPlaces(1 << 20, PAGE, table, np.zeros(2, np.int64))
    pieces = places.pieces(np.array([0, 100_000]), 100, 2 * PAGE)
    copied = [(int(a), int(b), int(s)) for p in pieces for a, b, s in zip(p.device, p.host, p.sizes, strict=True)]
    base = 1 << 20
    assert copied == [
        (0, base + 4 * PAGE + 100, 2 * PAGE),
        (100_000, base + 9 * PAGE + 100, PAGE - 100),
        (100_000 + PAGE - 100, base + 2 * PAGE, PAGE),
        (100_000 + 2 * PAGE - 100, base + 3 * PAGE, 100),
    ]


@pytest.mark.parametrize("slots", [[(Run(0, 3),)], [(Run(22, 5),)], [(Run(-1, 5),)]])
def test_pages_that_are_none_of_the_arenas_are_refused(slots: list[tuple[Run, ...]]) -> None:
    """Too few, or beyond its ends: never an address outside."""
    rig = Bench(24, 1)
    try:
        with pytest.raises(ValueError, match="pages"):
            rig.worker.submit_store(1, GPULoadStoreSpec([5], [0, 1, 0], [0, 3, 0]), PagesSpec(slots))
    finally:
        rig.worker.shutdown()


def test_an_arena_has_the_memory_it_was_given() -> None:
    """All pages of the layout, in one span."""
    rig = Bench(24, 1)
    try:
        assert [len(span) for span in rig.arena.spans] == [24 * PAGE]
        assert PageArena(24).take(24) == (Run(0, 24),)
    finally:
        rig.worker.shutdown()
