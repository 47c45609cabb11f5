"""The slots of one worker in files that outlive it."""

from __future__ import annotations

import mmap
import os
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from engine.residency_place import Lease, map_private
from engine.residency_plan import Plan, PoolShape, WorkerNote, read_note, refuse_or_say, write_note
from engine.residency_takeover import NotTakenOverError, take_over

#: How long a worker or scheduler waits for its predecessor to end.
PATIENCE_SECONDS: Final = 10.0


class WorkerShare:
    """The files of one worker, mapped. One process has them at a time."""

    def __init__(self, plan: Plan, rank: int, patience_seconds: float = PATIENCE_SECONDS) -> None:
        self._plan, self._rank = plan, rank
        plan.make_directory()
        self._lease = Lease(plan.directory / f"worker-{rank}.lock", patience_seconds)
        try:
            plan.check_space()  # what lies there counts: it makes room as it is moved or dropped
            self._note = self._take_over()
            self._maps = {pool: self._map(pool, shape) for pool, shape in plan.shapes.items() if shape.slots}
        except BaseException:
            self._lease.release()
            raise

    @property
    def memory(self) -> dict[str, NDArray[np.uint8]]:
        """The bytes of each pool that has slots."""
        return {pool: np.frombuffer(mapping, dtype=np.uint8) for pool, mapping in self._maps.items()}

    @property
    def used_bytes(self) -> int:
        """Memory that its files take already."""
        pools = [self._plan.pool_file(self._rank, pool) for pool in self._maps]
        return sum(path.stat().st_blocks * 512 for path in pools)

    def begin_writing(self) -> None:
        """Before the first slot is written: an index that does not know of this run is void from now on."""
        if self._note.writer != self._plan.run:
            self._note = replace(self._note, writer=self._plan.run)
            write_note(self._plan.worker_note(self._rank), self._note)

    def close(self) -> None:
        """Let go of the memory, which stays. Nothing may point into it any more."""
        for mapping in self._maps.values():
            if not mapping.closed:
                mapping.close()
        self._lease.release()

    def _take_over(self) -> WorkerNote:
        plan, path = self._plan, self._plan.worker_note(self._rank)
        found = read_note(path, WorkerNote)
        if found is not None and found.identity != plan.identity:
            found = self._taken_over(found)
        if found is None or not self._has_files():
            self._remove_files()
            found = WorkerNote(dict(plan.identity), uuid.uuid4().hex, plan.run, None)
        note = replace(found, holder=plan.run)
        write_note(path, note)
        return note

    def _taken_over(self, found: WorkerNote) -> WorkerNote | None:
        """What the new files hold of it; None, and said, if that is nothing."""
        try:
            return take_over(self._plan, self._rank, found)
        except NotTakenOverError as reason:
            refuse_or_say(self._plan, found.identity, f"the memory of worker {self._rank}", str(reason))
            return None

    def _has_files(self) -> bool:
        pools = [pool for pool, shape in self._plan.shapes.items() if shape.slots]
        return all(self._plan.pool_file(self._rank, pool).is_file() for pool in pools)

    def _remove_files(self) -> None:
        for path in self._plan.directory.glob(f"worker-{self._rank}.*"):
            if path.suffix != ".lock":
                path.unlink()

    def _map(self, pool: str, shape: PoolShape) -> mmap.mmap:
        mapping = map_private(self._plan.pool_file(self._rank, pool), shape.file_bytes)
        mapping.madvise(mmap.MADV_DONTFORK)  # a forked child neither needs nor may keep it
        return mapping


def copy_slot(path: Path, source: int, target: int, slot_bytes: int) -> None:
    """Copy the bytes of one slot of a pool's file."""
    descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        content = os.pread(descriptor, slot_bytes, source * slot_bytes)
        if os.pwrite(descriptor, content, target * slot_bytes) != slot_bytes:
            raise OSError(f"slot {source} of {path} could not be moved")
    finally:
        os.close(descriptor)
