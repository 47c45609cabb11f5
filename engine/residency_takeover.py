"""Contents of the other layout of host memory (a static split, one arena) are taken over.

Each worker moves its own bytes before it maps its files; the scheduler writes the rows that go with them. What is
to be kept, and where it goes, both compute from the old index, which stays as it is until all is done. A worker
without a note has nothing, and it has none while bytes are moved: whoever is killed meanwhile leaves nothing that
could be taken for whole.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from vllm.logger import init_logger

from engine.layout import HostLayout
from engine.residency_conversion import (
    POOLS,
    Conversion,
    Held,
    Span,
    Target,
    converted,
    entries_of,
    of_arena,
    of_split,
    rows_of,
)
from engine.residency_identity import ARENA_KEY
from engine.residency_index import IndexFile
from engine.residency_pages import PageIndex
from engine.residency_place import open_private
from engine.residency_plan import (
    ARENA,
    EngineNote,
    Identity,
    Plan,
    WorkerNote,
    differences,
    disagreement,
    read_note,
)

log = init_logger("vllm.tierdeck.residency")


class NotTakenOverError(Exception):
    """The text says why."""


class _Planned(NamedTuple):
    """What is to become of everything, and by which name a worker tells that it has done that."""

    layout: HostLayout
    conversion: Conversion
    name: str


def _planned(plan: Plan, note: EngineNote) -> _Planned:
    """From the old index, which `note` is about."""
    layout = plan.layout
    if layout is None or differences(note.identity, plan.identity) != [ARENA_KEY]:
        raise NotTakenOverError("more than the layout is another one")
    if (ARENA_KEY in note.identity) is bool(layout.pages):
        raise NotTakenOverError("pages of another size are no other layout")
    conversion = converted(_held(plan, layout, note.identity), layout)
    return _Planned(layout, conversion, conversion.digest(json.dumps(asdict(note), sort_keys=True)))


def _held(plan: Plan, layout: HostLayout, identity: Identity) -> list[Held]:
    """What the old index says; it is not changed."""
    if ARENA_KEY in identity:
        index = PageIndex(plan.index_file(ARENA), 0, is_copy=True)
        rows = index.rows()
        index.close()
        return of_arena(layout, rows, int(identity[ARENA_KEY]["page_bytes"]))
    entries = {}
    for pool in POOLS:
        split = IndexFile(plan.index_file(pool), 0, is_copy=True)
        entries[pool] = list(split.entries(layout.known_parts(pool)))
        split.close()
    return of_split(layout, entries)


# --- the worker's part ---


def take_over(plan: Plan, rank: int, found: WorkerNote) -> WorkerNote:
    """Move the slots of the old layout into new files. NotTakenOverError where that cannot be; if bytes were moved by
    then, the worker's note is gone.
    """
    note = read_note(plan.engine_note, EngineNote)
    if note is None or note.identity != found.identity:
        raise NotTakenOverError("no index is about it")
    if fault := disagreement(note, rank, found):
        raise NotTakenOverError(fault)
    planned = _planned(plan, note)
    targets = planned.conversion.targets
    kept, dropped = len(targets), planned.conversion.dropped
    log.info("Host tier: worker %d moves %d slots to the layout of eviction_policy and drops %d.", rank, kept, dropped)
    plan.worker_note(rank).unlink()
    try:
        _move(plan, rank, targets)
    except OSError as error:
        raise NotTakenOverError(f"its bytes could not be moved: {error}") from error
    return WorkerNote(dict(plan.identity), uuid.uuid4().hex, plan.run, None, planned.name)


def _move(plan: Plan, rank: int, targets: Sequence[Target]) -> None:
    """Old file by old file; each slot's old place is given back before the new one is written."""
    with contextlib.ExitStack() as stack:
        files = {}
        for pool, shape in plan.shapes.items():
            path = plan.pool_file(rank, pool)
            path.unlink(missing_ok=True)  # of a run that was killed here
            if shape.slots:
                files[pool] = open_private(path, shape.file_bytes)
                stack.callback(os.close, files[pool])
        for pool in (pool for pool in (*POOLS, ARENA) if pool not in plan.shapes):
            _move_from(plan.pool_file(rank, pool), [one for one in targets if one.held.file == pool], files)
            plan.pool_file(rank, pool).unlink(missing_ok=True)


def _move_from(path: Path, targets: Sequence[Target], files: Mapping[str, int]) -> None:
    with contextlib.closing(_Source(path, (span for target in targets for span in target.held.spans))) as source:
        for target in targets:
            content = source.take(target.held.spans)
            if os.pwrite(files[target.file], content, target.offset) != len(content):
                raise OSError(f"slot {target.place} could not be written")


class _Source:
    """A file that goes back to the system in the measure in which it is read."""

    def __init__(self, path: Path, spans: Iterable[Span]) -> None:
        self._path = path
        self._file = open_private(path, mmap.PAGESIZE)
        # Only to give back what lies there: nothing is read through it, so nothing of it is in this process's memory.
        self._map = mmap.mmap(self._file, 0)
        self._buffer = memoryview(b"")
        #: How many slots that are still to be read have a part of this page.
        self._shared = Counter(page for span in spans for page in _edges(span))

    def take(self, spans: Sequence[Span]) -> memoryview:
        """The bytes of a slot, until the next one is taken; they are not in the file any more afterwards."""
        length = sum(span.length for span in spans)
        if len(self._buffer) < length:
            self._buffer = memoryview(bytearray(length))
        filled = 0
        for span in spans:
            filled += os.preadv(self._file, [self._buffer[filled : filled + span.length]], span.first)
        if filled != length:
            raise OSError(f"{self._path} ends before a slot that the index names")
        for span in spans:
            self._give_back(span)
        return self._buffer[:length]

    def close(self) -> None:
        """Let go of the file."""
        self._map.close()
        os.close(self._file)

    def _give_back(self, span: Span) -> None:
        begin, end = -(-span.first // mmap.PAGESIZE), (span.first + span.length) // mmap.PAGESIZE
        if begin < end:
            self._map.madvise(mmap.MADV_REMOVE, begin * mmap.PAGESIZE, (end - begin) * mmap.PAGESIZE)
        for page in _edges(span):
            self._shared[page] -= 1
            if not self._shared[page]:
                self._map.madvise(mmap.MADV_REMOVE, page * mmap.PAGESIZE, mmap.PAGESIZE)


def _edges(span: Span) -> Iterator[int]:
    """The pages of the machine that it fills in part."""
    first, (last, over) = span.first // mmap.PAGESIZE, divmod(span.first + span.length, mmap.PAGESIZE)
    if span.first % mmap.PAGESIZE:
        yield first
    if over and (last != first or not span.first % mmap.PAGESIZE):
        yield last


# --- the scheduler's part ---


def write_index(plan: Plan, note: EngineNote, workers: Sequence[WorkerNote]) -> None:
    """The rows that go with what the workers have moved. NotTakenOverError unless all of them have."""
    planned = _planned(plan, note)
    for rank, worker in enumerate(workers):
        if worker.converted != planned.name:
            raise NotTakenOverError(f"worker {rank} has not taken over what the index is about")
    for pool, shape in plan.shapes.items():
        path = plan.index_file(pool)
        path.unlink(missing_ok=True)  # of a run that was killed here
        if pool == ARENA:
            _write_rows(PageIndex(path, shape.slots), rows_of(planned.conversion, planned.layout))
        else:
            _write_rows(IndexFile(path, shape.slots), entries_of(planned.conversion, pool))
    kept = Counter(target.held.pool for target in planned.conversion.targets)
    found = (kept["token"], kept["state"], planned.conversion.dropped)
    log.info("Host tier: %d blocks and %d states were taken over from another eviction_policy, %d slots not.", *found)


def _write_rows(index: IndexFile | PageIndex, rows: Iterable[Any]) -> None:
    with contextlib.closing(index):
        for row in rows:
            index.place(row)
