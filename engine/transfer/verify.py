"""A copier that remembers a checksum of each piece it stores, and refuses a load that brings anything else.

For finding faults, not for every day: each byte is read twice more, and in the engine's own thread.
"""

from __future__ import annotations

import zlib

import numpy as np
from numpy.typing import NDArray
from vllm.logger import init_logger

from engine.transfer.base import Copier, CopyBatch, Finished, memory_at

log = init_logger("vllm.tierdeck.transfer")


class VerifyingCopier(Copier):
    """Around any other copier.

    With `device_readable` (the device's memory is the host's) checksums are taken of what is to be stored before
    anything else can touch it, and of what has arrived in the device's blocks. Else of the slots alone: when a store
    has ended, and before a load begins. Pieces that were stored by an earlier run have none and are not checked.
    """

    def __init__(self, copier: Copier, device_readable: bool) -> None:
        self._copier = copier
        self._device_readable = device_readable
        self._checksums: dict[tuple[int, int], int] = {}  # by host address and size
        self._stores: dict[int, CopyBatch] = {}
        self._loads: dict[int, CopyBatch] = {}
        self._bad: set[int] = set()

    def submit(self, job_id: int, batch: CopyBatch, to_host: bool) -> None:
        """Begin; returns at once, after reading what there is to read."""
        if to_host and self._device_readable:
            self._remember(batch, batch.device)
        elif to_host:
            self._stores[job_id] = batch
        else:
            self._loads[job_id] = batch
            if not self._device_readable and not self._agrees(batch, batch.host):
                self._bad.add(job_id)
        self._copier.submit(job_id, batch, to_host)

    def finished(self) -> list[Finished]:
        """Batches that ended; a load that brought something else has failed."""
        return [self._checked(finished) for finished in self._copier.finished()]

    def wait(self, job_ids: set[int]) -> None:
        """Return when none of these is under way."""
        self._copier.wait(job_ids)

    def close(self) -> None:
        """Close the other one."""
        self._copier.close()

    def _checked(self, finished: Finished) -> Finished:
        store = self._stores.pop(finished.job_id, None)
        if store is not None:
            self._remember(store, store.host)
        load = self._loads.pop(finished.job_id, None)
        if load is None or not finished.success:
            return finished
        if self._device_readable and not self._agrees(load, load.device):
            self._bad.add(finished.job_id)
        success = finished.job_id not in self._bad
        self._bad.discard(finished.job_id)
        if not success:
            log.error("Host tier: load job %d did not bring what had been stored; it is given up.", finished.job_id)
        return finished._replace(success=success)

    def _remember(self, batch: CopyBatch, addresses: NDArray[np.uint64]) -> None:
        for key, checksum in _checksums(batch, addresses):
            self._checksums[key] = checksum

    def _agrees(self, batch: CopyBatch, addresses: NDArray[np.uint64]) -> bool:
        return all(self._checksums.get(key, found) == found for key, found in _checksums(batch, addresses))


def _checksums(batch: CopyBatch, addresses: NDArray[np.uint64]) -> list[tuple[tuple[int, int], int]]:
    pieces = zip(batch.host.tolist(), addresses.tolist(), batch.sizes.tolist(), strict=True)
    return [((host, size), zlib.crc32(memory_at(address, size, 1, size))) for host, address, size in pieces]
