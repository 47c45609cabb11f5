"""Bytes per second between device blocks and host slots, against a plain memcpy of as many bytes.

On a CPU the "device" is main memory too. With a GPU, against one pinned copy of as many bytes.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

import numpy as np
import torch
from vllm.v1.kv_offload.base import (
    CanonicalKVCacheRef,
    CanonicalKVCaches,
    CanonicalKVCacheTensor,
    GPULoadStoreSpec,
)

from engine.arena import Arena
from engine.layout import GroupLayout, HostLayout
from engine.manager import SlotsSpec
from engine.sizing import SlotPlan
from engine.transfer import Copier
from engine.transfer.cpu import CpuCopier
from engine.worker import TierWorker

#: As the demo model: two attention layers, 384 tokens of 512 bytes each. Larger than the caches.
LAYERS, PAGE_BYTES, BLOCKS = 2, 196_608, 1_000


@dataclass(frozen=True)
class Rig:
    """A worker over a cache of one attention group."""

    worker: TierWorker
    tensors: list[torch.Tensor]
    device: str

    @property
    def total_bytes(self) -> int:
        """Bytes of one full transfer."""
        return LAYERS * PAGE_BYTES * BLOCKS


def make_rig(threads: int) -> Rig:
    """On the GPU if there is one."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    tensors = [torch.zeros((BLOCKS, PAGE_BYTES), dtype=torch.int8, device=device) for _ in range(LAYERS)]
    caches = CanonicalKVCaches(
        [CanonicalKVCacheTensor(tensor, PAGE_BYTES) for tensor in tensors],
        [[CanonicalKVCacheRef(number, PAGE_BYTES) for number in range(LAYERS)]],
    )
    groups = (GroupLayout(0, 0, "token", 384, LAYERS * PAGE_BYTES, 1, 0),)
    layout = HostLayout(groups, 1, LAYERS * PAGE_BYTES, 0, SlotPlan(BLOCKS, 0))
    arena = Arena(layout)
    for span in arena.spans:
        span[:] = 1  # taken from the system before anything is measured
    return Rig(TierWorker(layout, arena, caches, _copier(device, arena, tensors, threads)), tensors, device)


def _copier(device: str, arena: Arena, tensors: list[torch.Tensor], threads: int) -> Copier:
    if device == "cpu":
        return CpuCopier(threads)
    from engine.transfer.cuda import CudaCopier, find_batch_copy, pin

    spans = arena.spans
    release = pin([(int(span.ctypes.data), len(span)) for span in spans])
    return CudaCopier(find_batch_copy(tensors, [torch.from_numpy(span.view(np.int8)) for span in spans]), release)


def transfer(rig: Rig, store: bool, slots: list[int]) -> None:
    """All blocks, and wait."""
    blocks = GPULoadStoreSpec(list(range(BLOCKS)), [BLOCKS], [0])
    if store:
        rig.worker.submit_store(1, blocks, SlotsSpec(slots))
    else:
        rig.worker.submit_load(1, SlotsSpec(slots), blocks)
    rig.worker.wait({1})
    rig.worker.get_finished()


def baseline(rig: Rig) -> Callable[[], None]:
    """One large copy of as many bytes."""
    if rig.device == "cuda":
        host = torch.empty(rig.total_bytes, dtype=torch.int8, pin_memory=True)
        device = torch.empty(rig.total_bytes, dtype=torch.int8, device="cuda")

        def pinned() -> None:
            device.copy_(host, non_blocking=True)
            torch.cuda.synchronize()

        return pinned
    source, target = np.ones(rig.total_bytes, np.uint8), np.ones(rig.total_bytes, np.uint8)
    return lambda: np.copyto(target, source)


def measure(rounds: int, threads: int) -> list[dict[str, Any]]:
    """Rows: what, GB/s, share of the baseline. All are measured in each round, so that all meet the same machine."""
    rig = make_rig(threads)
    in_a_row = list(range(BLOCKS))
    scattered = random.Random(1).sample(in_a_row, BLOCKS)  # noqa: S311 - nothing secret
    acts: dict[str, Callable[[], None]] = {"one pinned copy" if rig.device == "cuda" else "memcpy": baseline(rig)}
    for kind, slots in (("slots in a row", in_a_row), ("scattered slots", scattered)):
        for name, store in (("store", True), ("load", False)):
            acts[f"{name}, {kind}"] = partial(transfer, rig, store, slots)
    seconds: dict[str, list[float]] = {what: [] for what in acts}
    for _ in range(rounds):
        for what, act in acts.items():
            began = time.perf_counter()
            act()
            seconds[what].append(time.perf_counter() - began)
    rig.worker.shutdown()
    speeds = {what: rig.total_bytes / median(found) / 1e9 for what, found in seconds.items()}
    reference = next(iter(speeds.values()))
    return [{"what": what, "gigabytes_per_second": speed, "share": speed / reference} for what, speed in speeds.items()]


def main() -> int:
    """Command line entry."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.transfer", description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=1, help="copy threads on a CPU")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    rows = measure(arguments.rounds, arguments.threads)
    if arguments.json:
        print(json.dumps(rows))
    else:
        for row in rows:
            print(f"{row['what']:<24} {row['gigabytes_per_second']:>8.2f} GB/s {row['share']:>7.0%}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
