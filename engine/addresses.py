"""Where the bytes of a slot lie in a worker's memory: in one piece, or in pages that need not be neighbours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from engine.page_arena import Run
from engine.transfer import CopyBatch


class Places(Protocol):
    """The host's side of some blocks of one layer group."""

    def pieces(self, device: NDArray[np.int64], offset: int, size: int) -> list[CopyBatch]:
        """What to copy between these device addresses, one per block, and `size` bytes at `offset` in each block."""


class WholePlaces:
    """Each block in one piece."""

    def __init__(self, addresses: NDArray[np.int64]) -> None:
        self._addresses = addresses

    def pieces(self, device: NDArray[np.int64], offset: int, size: int) -> list[CopyBatch]:
        """One piece per block."""
        return [_batch(device, self._addresses + offset, size)]


class PagedPlaces:
    """Blocks in slots that are lists of pages. `table` has a row of page numbers for each block, `inside` says
    where in its slot the block begins.
    """

    def __init__(self, address: int, page_bytes: int, table: NDArray[np.int64], inside: NDArray[np.int64]) -> None:
        self._address = address
        self._page_bytes = page_bytes
        self._table = table
        self._inside = inside

    def pieces(self, device: NDArray[np.int64], offset: int, size: int) -> list[CopyBatch]:
        """One piece per block whose pages are neighbours there, else one per page."""
        found: list[CopyBatch] = []
        for inside in np.unique(self._inside):
            rows = np.flatnonzero(self._inside == inside)
            found += self._alike(device[rows], self._table[rows], int(inside) + offset, size)
        return found

    def _alike(self, device: NDArray[np.int64], table: NDArray[np.int64], start: int, size: int) -> list[CopyBatch]:
        """Blocks that begin at the same place in their slots."""
        first, last = start // self._page_bytes, (start + size - 1) // self._page_bytes
        pages = table[:, first : last + 1]
        whole = (np.diff(pages, axis=1) == 1).all(axis=1)
        begin = self._address + pages[:, 0] * self._page_bytes + start % self._page_bytes
        found = [_batch(device[whole], begin[whole], size)] if whole.any() else []
        cut, device = pages[~whole], device[~whole]
        done = 0
        while done < size and len(cut):
            page, within = divmod(start + done, self._page_bytes)
            length = min(size - done, self._page_bytes - within)
            host = self._address + cut[:, page - first] * self._page_bytes + within
            found.append(_batch(device + done, host, length))
            done += length
        return found


def page_table(slots: Sequence[tuple[Run, ...]], pages: int) -> NDArray[np.int64]:
    """A row of page numbers for each slot; ValueError for a slot of another size."""
    if any(sum(run.pages for run in slot) != pages for slot in slots):
        raise ValueError(f"slots of {pages} pages expected")
    runs: list[NDArray[np.int64]] = [
        np.arange(run.first, run.first + run.pages, dtype=np.int64) for slot in slots for run in slot
    ]
    return np.concatenate(runs).reshape(len(slots), pages) if runs else np.empty((0, pages), np.int64)


def _batch(device: NDArray[np.int64], host: NDArray[np.int64], size: int) -> CopyBatch:
    return CopyBatch(device.astype(np.uint64), host.astype(np.uint64), np.full(len(device), size, dtype=np.int64))
