"""The host memory of one worker: anonymous, so it is gone with the process however that ends."""

from __future__ import annotations

import contextlib
import mmap
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from engine.config import ConfigError
from engine.layout import HostLayout, PoolName

MEMINFO = Path("/proc/meminfo")
CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")

#: Slots begin here within the arena's pools: no two pools share a page.
PAGE_BYTES = mmap.PAGESIZE


@dataclass(frozen=True)
class Region:
    """Where the slots of one pool lie."""

    address: int
    slot_bytes: int
    slots: int


class Arena:
    """One private mapping for both pools. Memory is taken when a slot is first written."""

    def __init__(self, layout: HostLayout) -> None:
        token_bytes = _whole_pages(layout.slots("token") * layout.slot_bytes("token"))
        state_bytes = _whole_pages(layout.slots("state") * layout.slot_bytes("state"))
        self.size = max(token_bytes + state_bytes, PAGE_BYTES)
        self._map = mmap.mmap(-1, self.size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._map.madvise(mmap.MADV_DONTFORK)  # a forked child neither needs nor may keep it
        if hasattr(mmap, "MADV_HUGEPAGE"):
            self._advise_huge_pages()
        self.bytes = np.frombuffer(self._map, dtype=np.uint8)
        self._offsets: dict[PoolName, int] = {"token": 0, "state": token_bytes}
        self._layout = layout

    @property
    def address(self) -> int:
        """Where the mapping begins."""
        return int(self.bytes.ctypes.data)

    def region(self, pool: PoolName) -> Region:
        """The slots of `pool`."""
        address = self.address + self._offsets[pool]
        return Region(address, self._layout.slot_bytes(pool), self._layout.slots(pool))

    def close(self) -> None:
        """Give the memory back. Nothing may point into it any more."""
        if not self._map.closed:
            self.bytes = np.empty(0, dtype=np.uint8)
            self._map.close()

    def _advise_huge_pages(self) -> None:
        try:
            self._map.madvise(mmap.MADV_HUGEPAGE)
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


def _whole_pages(size: int) -> int:
    return -(-size // PAGE_BYTES) * PAGE_BYTES
