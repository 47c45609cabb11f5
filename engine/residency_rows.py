"""Rows of one size in a file that outlives the scheduler's process: what both kinds of index are made of.

A row counts only while its first word is not 0. What that word vouches for is written before it.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from typing import Final

from engine.residency_place import map_private

#: Longest block hash that fits a row. vLLM's are 16 or 32 bytes long.
MOST_HASH_BYTES: Final = 32
#: In the place of a parent's length.
NO_PARENT: Final = 255


class RowFile:
    """Memory is taken where rows are written. A copy has the rows that are there now, and leaves the file alone."""

    def __init__(self, path: Path, rows: int, row_bytes: int, is_copy: bool = False) -> None:
        self._path = path
        self._row_bytes = row_bytes
        self._is_copy = is_copy
        self._open(max(rows, path.stat().st_size // row_bytes if path.exists() else 0))

    @property
    def count(self) -> int:
        """How many rows there are; at least as many as were asked for."""
        return self._count

    def shrink(self, rows: int) -> None:
        """Cut the file; the rows behind are gone."""
        self.close()
        os.truncate(self._path, rows * self._row_bytes)
        self._open(rows)

    def close(self) -> None:
        """Let go of the file. Nothing else may point into it any more."""
        if not self._map.closed:
            self._words.release()
            self._bytes.release()
            self._map.close()

    def _open(self, rows: int) -> None:
        size = max(rows * self._row_bytes, mmap.PAGESIZE)
        self._map = _copied(self._path, size) if self._is_copy else map_private(self._path, size)
        self._count = rows
        self._bytes = memoryview(self._map)
        self._words = self._bytes[: size // 8 * 8].cast("q")


def _copied(path: Path, size: int) -> mmap.mmap:
    mapping = mmap.mmap(-1, size)
    if path.exists():
        mapping.write(path.read_bytes()[:size])
    return mapping
