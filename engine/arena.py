"""The host memory of one worker: anonymous, so it is gone with the process however that ends."""

from __future__ import annotations

import mmap
from dataclasses import dataclass

import numpy as np

from engine.layout import HostLayout, PoolName

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
        del self.bytes
        self._map.close()

    def _advise_huge_pages(self) -> None:
        try:
            self._map.madvise(mmap.MADV_HUGEPAGE)
        except OSError:  # a kernel without them: the same memory in small pages
            return


def _whole_pages(size: int) -> int:
    return -(-size // PAGE_BYTES) * PAGE_BYTES
