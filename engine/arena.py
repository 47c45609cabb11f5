"""The host memory of one worker: anonymous, so it is gone with the process however that ends, or in files that
outlive it.
"""

from __future__ import annotations

import contextlib
import mmap
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from engine.config import ConfigError
from engine.layout import HostLayout, PoolName
from engine.residency_plan import ARENA
from engine.residency_region import WorkerShare

MEMINFO = Path("/proc/meminfo")
CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")

#: Slots begin here within the arena's pools: no two pools share a page.
PAGE_BYTES = mmap.PAGESIZE
_POOLS: tuple[PoolName, ...] = ("token", "state")


@dataclass(frozen=True)
class Region:
    """Where the slots of one pool lie."""

    address: int
    slot_bytes: int
    slots: int


class Arena:
    """The slots of both pools: one private mapping, or the files of a share. Memory is taken when a slot is
    first written.
    """

    def __init__(self, layout: HostLayout, share: WorkerShare | None = None) -> None:
        self._layout = layout
        self._share = share
        self._private: mmap.mmap | None = None
        if share is None:
            self._memory = self._anonymous(_sizes(layout))
        else:
            self._memory = share.memory

    @property
    def spans(self) -> list[NDArray[np.uint8]]:
        """All the memory, one array per pool that has slots."""
        return [memory for memory in self._memory.values() if len(memory)]

    def region(self, pool: PoolName) -> Region:
        """The slots of `pool`."""
        memory = self._memory.get(pool)
        address = 0 if memory is None else int(memory.ctypes.data)
        return Region(address, self._layout.slot_bytes(pool), self._layout.slots(pool))

    @property
    def address(self) -> int:
        """Where one arena for both pools begins."""
        return int(self._memory[ARENA].ctypes.data)

    def begin_writing(self) -> None:
        """Must be called before a slot is written."""
        if self._share is not None:
            self._share.begin_writing()

    def close(self) -> None:
        """Let go of the memory; what is not shared is gone. Nothing may point into it any more."""
        self._memory = {}
        if self._share is not None:
            self._share.close()
        if self._private is not None:
            self._private.close()

    def _anonymous(self, sizes: dict[str, int]) -> dict[str, NDArray[np.uint8]]:
        total = max(sum(sizes.values()), PAGE_BYTES)
        self._private = mmap.mmap(-1, total, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._private.madvise(mmap.MADV_DONTFORK)  # a forked child neither needs nor may keep it
        if hasattr(mmap, "MADV_HUGEPAGE"):
            _advise_huge_pages(self._private)
        memory, offset = {}, 0
        for name, size in sizes.items():
            memory[name] = np.frombuffer(self._private, dtype=np.uint8, count=size, offset=offset)
            offset += size
        return memory


def _advise_huge_pages(mapping: mmap.mmap) -> None:
    try:
        mapping.madvise(mmap.MADV_HUGEPAGE)
    except OSError:  # a kernel without them: the same memory in small pages
        return


def check_memory(worker_bytes: int, meminfo: Path = MEMINFO, limit: Path = CGROUP_LIMIT) -> None:
    """Refuse a share that this machine does not have: the system would end the engine hours later."""
    available = _available_bytes(meminfo, limit)
    if available is not None and worker_bytes > available:
        key = "cpu_bytes_to_use"
        raise ConfigError(
            f"kv_connector_extra_config: {key} gives this worker {worker_bytes} bytes, but only {available} "
            "are available: write a smaller size.",
            key,
        )


def _available_bytes(meminfo: Path, limit: Path) -> int | None:
    """What could be taken now, and no more than this container may have at all; None if unknown."""
    found = []
    with contextlib.suppress(OSError):
        found += [int(kib) * 1024 for kib in re.findall(r"MemAvailable:\s+(\d+) kB", meminfo.read_text())]
    with contextlib.suppress(OSError):
        found += [int(text) for text in re.findall(r"^\d+$", limit.read_text().strip())]
    return min(found, default=None)


def _sizes(layout: HostLayout) -> dict[str, int]:
    """Bytes of each pool in whole pages, or of the one arena."""
    if layout.pages:
        return {ARENA: layout.worker_bytes}
    return {name: -(-layout.slots(name) * layout.slot_bytes(name) // PAGE_BYTES) * PAGE_BYTES for name in _POOLS}
