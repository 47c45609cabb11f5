"""Copies on a GPU: one stream per direction, in order of submission, never a host sync in the step.

Written against torch and vLLM's batch copy; its stream order is what upstream's own worker does.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from vllm.logger import init_logger

from engine.transfer.base import Copier, CopyBatch, Finished

log = init_logger("vllm.tierdeck.transfer")

#: Drivers limit the size of one registration.
MOST_PINNED_BYTES = 64 << 30

BatchCopy = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, bool], None]


class _Flight(NamedTuple):
    job_id: int
    total_bytes: int
    began: Any
    ended: Any
    descriptors: tuple[torch.Tensor, ...]  # read by the driver until the copy has ended


class CudaCopier(Copier):
    """Two streams. `batch_copy` takes source and destination addresses, sizes and "sources at rest"."""

    def __init__(self, batch_copy: BatchCopy, release: Callable[[], None] = lambda: None) -> None:
        self._batch_copy = batch_copy
        self._release = release  # of the host memory, once no copy needs it
        self._streams = {to_host: torch.cuda.Stream() for to_host in (True, False)}
        self._flights: dict[bool, deque[_Flight]] = {True: deque(), False: deque()}

    def submit(self, job_id: int, batch: CopyBatch, to_host: bool) -> None:
        """Queue the copy behind the model's work so far and behind earlier copies of its direction."""
        device, host, sizes = (_pinned(values.astype(np.int64)) for values in (batch.device, batch.host, batch.sizes))
        source, target = (device, host) if to_host else (host, device)
        stream = self._streams[to_host]
        # A store must not read before the model has written. A load must not write before the model
        # has: clearing of its blocks may still be queued.
        stream.wait_stream(torch.cuda.current_stream())
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        with torch.cuda.stream(stream):
            began.record(stream)
            if len(sizes):
                # Slots are at rest while they are loaded; device blocks are not while they are stored.
                self._batch_copy(source, target, sizes, not to_host)
            ended.record(stream)
        self._flights[to_host].append(_Flight(job_id, batch.total_bytes, began, ended, (device, host, sizes)))

    def finished(self) -> list[Finished]:
        """Batches whose end event has passed."""
        done: list[Finished] = []
        for flights in self._flights.values():
            while flights and flights[0].ended.query():
                flight = flights.popleft()
                seconds = flight.began.elapsed_time(flight.ended) / 1000
                done.append(Finished(flight.job_id, True, flight.total_bytes, seconds))
        return done

    def wait(self, job_ids: set[int]) -> None:
        """Block the host until these have ended; only asked for before their blocks are reused."""
        for flights in self._flights.values():
            for flight in flights:
                if flight.job_id in job_ids:
                    flight.ended.synchronize()

    def close(self) -> None:
        """Wait for both streams."""
        for stream in self._streams.values():
            stream.synchronize()
        for flights in self._flights.values():
            flights.clear()
        self._batch_copy = _closed
        self._release()
        self._release = _nothing


def _closed(source: torch.Tensor, target: torch.Tensor, sizes: torch.Tensor, at_rest: bool) -> None:
    raise RuntimeError("the host tier is closed")


def _nothing() -> None:
    """What is left to release after the first time."""


def find_batch_copy(device_views: list[torch.Tensor], host_spans: list[torch.Tensor]) -> BatchCopy:
    """vLLM's batch copy where this build has it, else one torch copy per piece."""
    try:
        from vllm import _custom_ops

        native = _custom_ops.swap_blocks_batch
    except (ImportError, AttributeError):
        log.warning("Host tier: this build has no batch copy; copying piece by piece, which is slow.")
        return PieceCopy(device_views, host_spans)

    def batch_copy(source: torch.Tensor, target: torch.Tensor, sizes: torch.Tensor, at_rest: bool) -> None:
        native(source, target, sizes, is_src_access_order_any=at_rest)

    return batch_copy


class PieceCopy:
    """A batch copy out of plain torch copies: finds the tensors that hold the addresses."""

    def __init__(self, device_views: list[torch.Tensor], host_spans: list[torch.Tensor]) -> None:
        flat = [_flat(view) for view in device_views]
        self._places = [(tensor.data_ptr(), tensor.numel(), tensor) for tensor in (*flat, *host_spans)]

    def __call__(self, source: torch.Tensor, target: torch.Tensor, sizes: torch.Tensor, at_rest: bool) -> None:
        """Copy every piece on the current stream."""
        for begin, end, size in zip(source.tolist(), target.tolist(), sizes.tolist(), strict=True):
            self._piece(end, size).copy_(self._piece(begin, size), non_blocking=True)

    def _piece(self, address: int, size: int) -> torch.Tensor:
        for start, length, tensor in self._places:
            if start <= address and address + size <= start + length:
                return tensor[address - start : address - start + size]
        raise ValueError(f"no tensor holds {size} bytes at {address:#x}")


def pin(spans: Sequence[tuple[int, int]]) -> Callable[[], None]:
    """Register host memory (addresses and sizes) with the driver, so that copies run beside the host; returns
    how to undo it.
    """
    runtime = torch.cuda.cudart()
    pinned: list[int] = []

    def release() -> None:
        while pinned:
            runtime.cudaHostUnregister(pinned.pop())

    for start, size in _registrations(spans):
        error = runtime.cudaHostRegister(start, size, 0)
        if int(error) == 0:
            pinned.append(start)
        else:
            release()
            log.warning("Host tier: %d bytes could not be pinned (CUDA error %d); copies are slower.", size, int(error))
            break
    return release


def _registrations(spans: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    for address, size in spans:
        for start in range(address, address + size, MOST_PINNED_BYTES):
            yield start, min(MOST_PINNED_BYTES, address + size - start)


def _flat(view: torch.Tensor) -> torch.Tensor:
    """All bytes of the storage from the view's beginning on."""
    length = view.untyped_storage().nbytes() - view.storage_offset() * view.element_size()
    flat = torch.empty(0, dtype=torch.int8, device=view.device)
    return flat.set_(view.untyped_storage(), view.storage_offset() * view.element_size(), (length,), (1,))


def _pinned(values: np.ndarray[Any, Any]) -> torch.Tensor:
    tensor = torch.from_numpy(np.ascontiguousarray(values))
    return tensor.pin_memory() if torch.cuda.is_available() else tensor
