"""The scheduler's right to the host memory of its engine: the lease, and notes that agree with the workers'.

Each worker names its files (`birth`) and notes the last run that wrote to them; the scheduler notes the files that
its index is about and the runs for which it saw every write. Only if these agree for all workers do the rows count.
So files that were lost or replaced, workers that went on without their scheduler, and an index that missed a run
void the contents, and nothing has to be told between the processes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from vllm.logger import init_logger

from engine.residency_place import InUseError, Lease
from engine.residency_plan import EngineNote, Plan, WorkerNote, disagreement, read_note, refuse_or_say, write_note
from engine.residency_takeover import NotTakenOverError, write_index
from engine.served import ServedFile
from engine.snapshot import SNAPSHOT_NAME
from engine.snapshot_writer import SnapshotWriter, Teller

log = init_logger("vllm.tierdeck.residency")


class Tenancy:
    """Held from when all workers have their files until the end."""

    def __init__(self, plan: Plan, patience_seconds: float) -> None:
        self._plan = plan
        self._note = plan.engine_note
        plan.make_directory()
        self._lease = Lease(plan.directory / "engine.lock", patience_seconds)
        self._writer: SnapshotWriter | None = None

    @contextlib.contextmanager
    def opening(self, close: Callable[[], None]) -> Iterator[None]:
        """Open the index inside. It is empty where it does not describe the workers' files. After a failure all is
        closed again.
        """
        try:
            self._agree()
            try:
                yield
            except BaseException:
                self._note.unlink()  # the note vouches for an index that nobody will keep
                raise
        except BaseException:
            close()
            raise

    def tell(self, teller: Teller, *beside: Callable[[bool], None]) -> None:
        """From now on the deck is told what is there, and what requests were served from; `beside` as in the writer."""
        directory = self._plan.directory
        beside = (ServedFile(directory, teller.served), *beside)
        self._writer = SnapshotWriter(directory / SNAPSHOT_NAME, teller, beside=beside)

    def end(self) -> None:
        """Give it back."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        self._lease.release()

    def _agree(self) -> None:
        workers = _workers_of(self._plan)
        note = read_note(self._note, EngineNote)
        if note is not None and note.identity != self._plan.identity:
            note = self._taken_over(note, workers)
        fault = "there is none" if note is None else _disagreement(note, workers)
        runs = [self._plan.run]
        if fault is None:
            runs += sorted({worker.writer for worker in workers if worker.writer})
        else:
            self._drop_all(fault, note is not None)
        write_note(self._note, EngineNote(dict(self._plan.identity), [worker.birth for worker in workers], runs))
        self._forget({path for path in self._plan.directory.glob("*.index") if path.stem not in self._plan.shapes})

    def _taken_over(self, found: EngineNote, workers: list[WorkerNote]) -> EngineNote | None:
        """The note of the index that was made of it; None, and said, if there is none."""
        try:
            write_index(self._plan, found, workers)
        except NotTakenOverError as reason:
            refuse_or_say(self._plan, found.identity, "the index", str(reason))
            return None
        return EngineNote(dict(self._plan.identity), [worker.birth for worker in workers])

    def _drop_all(self, fault: str, say: bool) -> None:
        if say:
            log.warning("Host tier: the index in %s is void: %s.", self._plan.directory, fault)
        self._forget(self._plan.directory.glob("*.index"))

    def _forget(self, indices: Iterable[Path]) -> None:
        for path in indices:
            path.unlink()


def _workers_of(plan: Plan) -> list[WorkerNote]:
    """The notes of all workers of this run. InUseError if one of them could not use its files."""
    notes = []
    for rank in range(plan.world_size):
        note = read_note(plan.worker_note(rank), WorkerNote)
        if note is None or note.holder != plan.run:
            raise InUseError(f"worker {rank} has its memory elsewhere")
        notes.append(note)
    return notes


def _disagreement(note: EngineNote, workers: list[WorkerNote]) -> str | None:
    """Why the index does not describe the workers' files; None if it does."""
    return next((fault for rank, worker in enumerate(workers) if (fault := disagreement(note, rank, worker))), None)
