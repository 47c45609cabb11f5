"""Host memory that outlives its engine: what a new start of the same engine finds, and who decides it.

The bytes lie with the workers (`residency_region`), what they mean with the scheduler (`residency_index`). Each
worker names its files (`birth`) and notes the last run that wrote to them; the scheduler notes the files that its
index is about and the runs for which it saw every write. Only if these agree for all workers do the rows count.
So files that were lost or replaced, workers that went on without their scheduler, and an index that missed a run
void the contents, and nothing has to be told between the processes.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Protocol

from vllm.logger import init_logger

from engine.config import ConfigError, TierConfig
from engine.layout import HostLayout, PoolName
from engine.residency_identity import NotResidentError, identity_of
from engine.residency_index import Entry, Fit, IndexFile, NoLedger, PoolLedger, fit
from engine.residency_place import ID_VARIABLE, MOUNT, InUseError, Lease, NotPrivateError, directory_of
from engine.residency_region import (
    PATIENCE_SECONDS,
    EngineNote,
    Plan,
    PoolShape,
    WorkerNote,
    WorkerShare,
    read_note,
    refuse_or_say,
    write_note,
)

log = init_logger("vllm.tierdeck.residency")

_UNUSABLE: Final = (InUseError, NotPrivateError, OSError)


class Memory(Protocol):
    """The scheduler's side of the host memory, as a manager sees it."""

    def ledger(self, pool: str) -> PoolLedger:
        """Where to tell what happens to a pool's slots."""

    def entries(self, pool: str) -> list[Entry]:
        """What was found in a pool, least valuable first."""

    def close(self) -> None:
        """Let go of it."""


class PassingMemory:
    """Goes with the engine."""

    def ledger(self, pool: str) -> PoolLedger:
        """Nothing is written down."""
        return NoLedger()

    def entries(self, pool: str) -> list[Entry]:
        """Nothing was there before."""
        return []

    def close(self) -> None:
        """Nothing to let go of."""


class ResidentMemory:
    """Outlives the engine. Opened when all workers have theirs."""

    def __init__(self, plan: Plan, patience_seconds: float = PATIENCE_SECONDS) -> None:
        self._plan = plan
        self._indices: dict[str, IndexFile] = {}
        self._entries: dict[str, list[Entry]] = {}
        plan.make_directory()
        self._lease = Lease(plan.directory / "engine.lock", patience_seconds)
        try:
            self._open()
        except BaseException:
            self.close()
            raise

    def ledger(self, pool: str) -> PoolLedger:
        """The index of the pool."""
        return self._indices[pool]

    def entries(self, pool: str) -> list[Entry]:
        """What the last run left there and still fits, least valuable first."""
        return self._entries[pool]

    def close(self) -> None:
        """Let go of the files, which stay."""
        for index in self._indices.values():
            index.close()
        self._lease.release()

    def _open(self) -> None:
        workers = _workers_of(self._plan)
        note_file = self._plan.directory / "engine.json"
        note = read_note(note_file, EngineNote)
        if note is not None and note.identity != self._plan.identity:
            refuse_or_say(self._plan, note.identity, "the index")
            note = None
        fault = "there is none" if note is None else _disagreement(note, workers)
        runs = [self._plan.run]
        if fault is None:
            runs += sorted({worker.writer for worker in workers if worker.writer})
        else:
            self._drop_all(fault, note is not None)
        write_note(note_file, EngineNote(dict(self._plan.identity), [worker.birth for worker in workers], runs))
        try:
            self._open_pools()
        except BaseException:
            note_file.unlink()  # the note vouches for an index that nobody will keep
            raise

    def _open_pools(self) -> None:
        for pool, shape in self._plan.shapes.items():
            self._indices[pool] = IndexFile(self._index_file(pool), shape.slots)
            self._entries[pool] = self._adopted(pool, shape)

    def _index_file(self, pool: str) -> Path:
        return self._plan.directory / f"{pool}.index"

    def _drop_all(self, fault: str, say: bool) -> None:
        if say:
            log.warning("Host tier: the index in %s is void: %s.", self._plan.directory, fault)
        for path in self._plan.directory.glob("*.index"):
            path.unlink()

    def _adopted(self, pool: str, shape: PoolShape) -> list[Entry]:
        index = self._indices[pool]
        fitted = fit(index.entries(shape.all_parts), shape.slots)
        for entry in fitted.dropped:
            index.drop(entry.slot)
        moved = self._moved(pool, shape, index, fitted)
        if index.slots > shape.slots:
            index.shrink(shape.slots)
            self._shrink(pool, shape)
        if fitted.dropped:
            log.info("Host tier: %d %s slots of the last run do not fit any more.", len(fitted.dropped), pool)
        return sorted([*fitted.kept, *moved], key=_rank)

    def _moved(self, pool: str, shape: PoolShape, index: IndexFile, fitted: Fit) -> list[Entry]:
        """Copy first, then vouch for the new place, then forget the old one."""
        moved = []
        for entry, target in fitted.moves:
            for rank in range(self._plan.world_size):
                _copy_slot(self._plan.pool_file(rank, pool), entry.slot, target, shape.slot_bytes)
            moved.append(entry._replace(slot=target))
            index.place(moved[-1])
            index.drop(entry.slot)
        return moved

    def _shrink(self, pool: str, shape: PoolShape) -> None:
        for rank in range(self._plan.world_size):
            path = self._plan.pool_file(rank, pool)
            if shape.slots and path.stat().st_size > shape.file_bytes:
                os.truncate(path, shape.file_bytes)
            elif not shape.slots:
                path.unlink(missing_ok=True)


def _rank(entry: Entry) -> int:
    return entry.rank


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
    for rank, worker in enumerate(workers):
        if note.births[rank : rank + 1] != [worker.birth]:
            return f"the memory of worker {rank} is another one"
        if worker.writer is not None and worker.writer not in note.runs:
            return f"worker {rank} was written to by a run that it did not see"
    return None


def _copy_slot(path: Path, source: int, target: int, slot_bytes: int) -> None:
    descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        content = os.pread(descriptor, slot_bytes, source * slot_bytes)
        if os.pwrite(descriptor, content, target * slot_bytes) != slot_bytes:
            raise OSError(f"slot {source} of {path} could not be moved")
    finally:
        os.close(descriptor)


class Residency:
    """Whether and where the contents of this engine are kept; both kinds of process make one."""

    def __init__(self, plan: Plan | None, patience_seconds: float = PATIENCE_SECONDS) -> None:
        self._plan = plan
        self._patience_seconds = patience_seconds

    def scheduler_memory(self) -> Memory:
        """What the manager works with."""
        if self._plan is None:
            return PassingMemory()
        try:
            memory = ResidentMemory(self._plan, self._patience_seconds)
        except _UNUSABLE as error:
            log.warning("Host tier: contents will not outlive this engine: %s.", error)
            return PassingMemory()
        found = {pool: len(memory.entries(pool)) for pool in self._plan.shapes}
        log.info("Host tier: contents outlive the engine in %s; found there: %s.", self._plan.directory, _words(found))
        return memory

    def worker_share(self, rank: int) -> WorkerShare | None:
        """The files of a worker; None if its memory is to be its own."""
        if self._plan is None:
            return None
        try:
            return WorkerShare(self._plan, rank, self._patience_seconds)
        except _UNUSABLE as error:
            log.warning("Host tier: the memory of worker %d goes with the engine: %s.", rank, error)
            return None


def _words(found: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {pool} slots" for pool, count in found.items())


def residency_of(
    config: Any, tier_config: TierConfig, surroundings: Any, specs: list[Any], layout: HostLayout, mount: Path = MOUNT
) -> Residency:
    """As configured. What makes keeping unsafe is said, and the memory then goes with the engine."""
    given = os.environ.get(ID_VARIABLE)
    if tier_config.residency == "off" or (tier_config.residency == "auto" and not given):
        return Residency(None)
    seed = os.environ.get("PYTHONHASHSEED")
    try:
        identity = identity_of(config, surroundings.vllm_config, specs, layout, None if seed == "random" else seed)
        root = directory_of(given or _identifier(config.model.name), mount)
    except NotResidentError as reason:
        log.warning("Host tier: contents will not outlive this engine: %s.", reason)
        return Residency(None)
    except ValueError as error:
        raise ConfigError(f"{ID_VARIABLE}: {error}.") from error
    return Residency(
        Plan(
            directory=root / f"engine-{config.parallel.data_parallel_index}",
            run=f"{config.engine_id}/{surroundings.vllm_config.instance_id}",
            identity=identity,
            shapes=pool_shapes(layout),
            world_size=config.parallel.world_size,
            foreign="refuse" if tier_config.residency_foreign == "refuse" else "replace",
        )
    )


def pool_shapes(layout: HostLayout) -> dict[str, PoolShape]:
    """The pools of a static split."""
    names: tuple[PoolName, ...] = ("token", "state")
    return {
        name: PoolShape(layout.slots(name), layout.slot_bytes(name), (1 << len(layout.pool_groups(name))) - 1)
        for name in names
    }


def _identifier(model: str) -> str:
    """Without a deck, an engine is known by its model: a second one of it keeps its memory to itself."""
    return "model-" + hashlib.sha256(model.encode()).hexdigest()[:16]
