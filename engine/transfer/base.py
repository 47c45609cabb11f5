"""What a worker asks of whatever does the copying."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class CopyBatch:
    """Pieces of memory to copy: addresses on both sides, and sizes, one entry per piece."""

    device: NDArray[np.uint64]
    host: NDArray[np.uint64]
    sizes: NDArray[np.int64]

    @property
    def total_bytes(self) -> int:
        """Bytes of all pieces."""
        return int(self.sizes.sum())

    @staticmethod
    def joined(batches: Sequence[CopyBatch]) -> CopyBatch:
        """All pieces of `batches`, in order."""
        return CopyBatch(
            np.concatenate([batch.device for batch in batches] or [np.empty(0, np.uint64)]),
            np.concatenate([batch.host for batch in batches] or [np.empty(0, np.uint64)]),
            np.concatenate([batch.sizes for batch in batches] or [np.empty(0, np.int64)]),
        )


class _Memory:
    """Raw memory as numpy sees it."""

    def __init__(self, address: int, step: int, count: int, size: int) -> None:
        self.__array_interface__ = {
            "version": 3,
            "typestr": "|u1",
            "shape": (count, size),
            "strides": (step, 1),
            "data": (address, False),
        }


def memory_at(address: int, step: int, count: int, size: int) -> NDArray[np.uint8]:
    """`count` pieces of `size` bytes, `step` bytes from one to the next; nothing is copied."""
    return np.asarray(_Memory(address, step, count, size))


class Finished(NamedTuple):
    """A batch that was copied, or could not be."""

    job_id: int
    success: bool
    total_bytes: int
    seconds: float


class Copier(ABC):
    """Copies batches in the background. Each batch is reported once, after its last byte."""

    @abstractmethod
    def submit(self, job_id: int, batch: CopyBatch, to_host: bool) -> None:
        """Begin; returns at once."""

    @abstractmethod
    def finished(self) -> list[Finished]:
        """Batches that ended since the last call."""

    @abstractmethod
    def wait(self, job_ids: set[int]) -> None:
        """Return when none of these is under way. Unknown ones are not."""

    @abstractmethod
    def close(self) -> None:
        """Wait for everything under way and free what copying needs."""
