"""The worker's side of the host tier: from keys and blocks to addresses, and off to the copier."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from vllm.v1.kv_offload.base import (
    CanonicalKVCaches,
    GPULoadStoreSpec,
    LoadStoreSpec,
    OffloadingWorker,
    TransferResult,
)

from engine.addresses import PagedPlaces, Places, WholePlaces, page_table
from engine.arena import Arena
from engine.config import ConfigError
from engine.layout import GroupLayout, HostLayout
from engine.manager import SlotsSpec
from engine.page_arena import Run, pages_of
from engine.transfer import Copier, CopyBatch
from engine.value_manager import PagesSpec


class TierWorker(OffloadingWorker):
    """Owns this worker's slots. vLLM calls it from one thread."""

    def __init__(self, layout: HostLayout, arena: Arena, caches: CanonicalKVCaches, copier: Copier) -> None:
        check_caches(layout, caches)
        self._layout = layout
        self._arena = arena
        self._caches = caches
        self._copier = copier
        self._loads: set[int] = set()
        self._failed_loads: set[int] = set()

    def submit_store(self, job_id: int, src_spec: GPULoadStoreSpec, dst_spec: LoadStoreSpec) -> bool:
        """Device to host."""
        self._arena.begin_writing()
        self._copier.submit(job_id, self._batch(src_spec, dst_spec), to_host=True)
        return True

    def submit_load(
        self, job_id: int, src_spec: LoadStoreSpec, dst_spec: GPULoadStoreSpec, expedited: bool = False
    ) -> bool:
        """Host to device. Loads always go first, so `expedited` changes nothing."""
        self._loads.add(job_id)
        self._copier.submit(job_id, self._batch(dst_spec, src_spec), to_host=False)
        return True

    def get_finished(self) -> list[TransferResult]:
        """Transfers that ended since the last call."""
        return [self._result(*finished) for finished in self._copier.finished()]

    def _result(self, job_id: int, success: bool, total_bytes: int, seconds: float) -> TransferResult:
        """vLLM's own code takes a failed transfer for a fault of the program. A load is told to it in another way."""
        if job_id in self._loads:
            self._loads.remove(job_id)
            if not success:
                self._failed_loads.add(job_id)
                success = True
        return TransferResult(job_id, success, transfer_size=total_bytes, transfer_time=seconds)

    def take_failed_loads(self) -> set[int]:
        """Loads that ended since the last call and did not bring what had been stored."""
        failed, self._failed_loads = self._failed_loads, set()
        return failed

    def wait(self, job_ids: set[int]) -> None:
        """Flush: the blocks of these jobs are about to be reused."""
        self._copier.wait(job_ids)

    def shutdown(self) -> None:
        """Let transfers end, then give the memory back."""
        self._copier.close()
        self._arena.close()

    def _batch(self, device: GPULoadStoreSpec, host: LoadStoreSpec) -> CopyBatch:
        if not isinstance(host, SlotsSpec | PagesSpec):
            raise TypeError(f"expected slots of the host tier, got {type(host).__name__}")
        pieces: list[CopyBatch] = []
        block_at = slot_at = 0
        for group, size, first in zip(self._layout.groups, device.group_sizes, device.block_indices, strict=True):
            if size == 0:
                continue
            blocks = device.block_ids[block_at : block_at + size].astype(np.int64)
            places, used = self._places(group, host, slot_at, size, first)
            pieces.extend(self._pieces(group, blocks, places))
            block_at, slot_at = block_at + size, slot_at + used
        if block_at != len(device.block_ids) or slot_at != len(host.slots):
            raise ValueError(f"{len(host.slots)} slots do not fit {device.group_sizes} blocks")
        return CopyBatch.joined(pieces)

    def _places(
        self, group: GroupLayout, host: SlotsSpec | PagesSpec, slot_at: int, size: int, first: int
    ) -> tuple[Places, int]:
        """Where each block of a group lies on the host, and how many slots they take.

        A token slot holds a chunk of several blocks, of which the first and the last may be used in
        part. A state slot holds one block.
        """
        per_slot = self._layout.blocks_per_chunk if group.pool == "token" else 1
        numbers: NDArray[np.int64] = np.arange(size) + first % per_slot
        used = int(numbers[-1]) // per_slot + 1
        inside: NDArray[np.int64] = numbers % per_slot * group.bytes_per_block + group.offset_bytes
        rows: NDArray[np.int64] = numbers // per_slot
        if isinstance(host, PagesSpec):
            return self._in_pages(group, host.slots[slot_at : slot_at + used], used, rows, inside), used
        region, chosen = self._arena.region(group.pool), host.slots[slot_at : slot_at + used]
        if len(chosen) < used or chosen.min() < 0 or chosen.max() >= region.slots:
            raise ValueError(f"group {group.group_id} needs {used} slots of {region.slots}, got {chosen.tolist()}")
        return WholePlaces(region.address + chosen[rows] * region.slot_bytes + inside), used

    def _in_pages(
        self,
        group: GroupLayout,
        chosen: Sequence[tuple[Run, ...]],
        used: int,
        rows: NDArray[np.int64],
        inside: NDArray[np.int64],
    ) -> Places:
        table = page_table(chosen, pages_of(self._layout.slot_bytes(group.pool), self._layout.page_bytes))
        if len(table) < used or table.min() < 0 or table.max() >= self._layout.pages:
            raise ValueError(f"group {group.group_id} needs {used} slots of {self._layout.pages} pages")
        return PagedPlaces(self._arena.address, self._layout.page_bytes, table[rows], inside)

    def _pieces(self, group: GroupLayout, blocks: NDArray[np.int64], places: Places) -> list[CopyBatch]:
        pieces = []
        offset = 0
        for ref in self._caches.group_data_refs[group.index]:
            tensor = self._caches.tensors[ref.tensor_idx].tensor
            if blocks.min() < 0 or blocks.max() >= tensor.shape[0]:
                raise ValueError(f"group {group.group_id} has {tensor.shape[0]} blocks, got {blocks.tolist()}")
            device = tensor.data_ptr() + blocks * (tensor.stride(0) * tensor.element_size())
            pieces.extend(places.pieces(device, offset, ref.page_size_bytes))
            offset += ref.page_size_bytes
        return pieces


def check_caches(layout: HostLayout, caches: CanonicalKVCaches) -> None:
    """Refuse to start if this worker's layers are not what the slots were sized for."""
    if len(caches.group_data_refs) != len(layout.groups):
        raise ConfigError(
            f"The host tier was laid out for {len(layout.groups)} layer groups, "
            f"this worker has {len(caches.group_data_refs)}."
        )
    for group, refs in zip(layout.groups, caches.group_data_refs, strict=True):
        found = sum(ref.page_size_bytes for ref in refs)
        if found != group.bytes_per_block:
            raise ConfigError(
                f"The host tier cannot serve this cache layout yet: a block of group {group.group_id} takes {found} "
                f"bytes where {group.bytes_per_block} were expected; start without --kv-transfer-config."
            )
