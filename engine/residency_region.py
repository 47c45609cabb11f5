"""The slots of one worker in files that outlive it, and the notes beside them that say whose they are."""

from __future__ import annotations

import json
import mmap
import os
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from vllm.logger import init_logger

from engine.config import ConfigError
from engine.residency_place import Lease, make_private, open_private, shortage

log = init_logger("vllm.tierdeck.residency")

#: What makes bytes servable: model, layout, parallelism, as JSON values.
Identity = Mapping[str, Any]

#: How long a worker or scheduler waits for its predecessor to end.
PATIENCE_SECONDS: Final = 10.0


class PoolShape(NamedTuple):
    """Slots of one pool on one worker. `all_parts` is the ready word of a slot that holds everything."""

    slots: int
    slot_bytes: int
    all_parts: int = 1

    @property
    def file_bytes(self) -> int:
        """In whole pages."""
        return -(-self.slots * self.slot_bytes // mmap.PAGESIZE) * mmap.PAGESIZE


@dataclass(frozen=True)
class Plan:
    """Where an engine's memory is to lie and what it has to be. `run` names this start of the engine."""

    directory: Path
    run: str
    identity: Identity
    shapes: Mapping[str, PoolShape]
    world_size: int
    foreign: Literal["replace", "refuse"] = "replace"

    def check_space(self) -> None:
        """Refuse what the mount cannot hold: the system would end the engine hours later."""
        wanted = self.world_size * sum(shape.file_bytes for shape in self.shapes.values())
        if short := shortage(self.directory.parent, wanted):
            raise ConfigError(
                f"kv_connector_extra_config: cpu_bytes_to_use does not fit: {short}. Make the mount larger, write a "
                'smaller size, or write "residency": "off".',
                "cpu_bytes_to_use",
            )

    def make_directory(self) -> None:
        """Both levels, ours alone."""
        make_private(self.directory.parent)
        make_private(self.directory)

    def pool_file(self, rank: int, pool: str) -> Path:
        """The slots of a worker."""
        return self.directory / f"worker-{rank}.{pool}"

    def worker_note(self, rank: int) -> Path:
        """What is known about them."""
        return self.directory / f"worker-{rank}.json"


@dataclass(frozen=True)
class WorkerNote:
    """`birth` names these files, `holder` the run that has them, `writer` the last run that wrote slots."""

    identity: dict[str, Any]
    birth: str
    holder: str
    writer: str | None


@dataclass(frozen=True)
class EngineNote:
    """What the index was written for. `runs`: under these, and no other, it saw every slot that was written."""

    identity: dict[str, Any] = field(default_factory=dict)
    births: list[str] = field(default_factory=list)
    runs: list[str] = field(default_factory=list)


Note = TypeVar("Note", WorkerNote, EngineNote)


def read_note(path: Path, kind: type[Note]) -> Note | None:
    """The note, if it is there and whole."""
    try:
        return kind(**json.loads(path.read_text()))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError) as error:
        log.warning("Host tier: %s cannot be read, so what it describes is dropped (%s).", path, error)
        return None


def write_note(path: Path, note: WorkerNote | EngineNote) -> None:
    """Replace it as a whole: whoever is killed meanwhile leaves the old one."""
    scratch = path.with_suffix(".tmp")
    descriptor = open_private(scratch)
    try:
        os.ftruncate(descriptor, 0)
        os.write(descriptor, json.dumps(asdict(note)).encode())
    finally:
        os.close(descriptor)
    scratch.replace(path)


def differences(found: Identity, wanted: Identity) -> list[str]:
    """The names of what is not the same."""
    return sorted(name for name in {*found, *wanted} if found.get(name) != wanted.get(name))


def refuse_or_say(plan: Plan, found: Identity, what: str) -> None:
    """Say that foreign contents are replaced, or end the start if they must not be."""
    differing = ", ".join(differences(found, plan.identity))
    if plan.foreign == "refuse":
        raise ConfigError(
            f'kv_connector_extra_config: residency_foreign is "refuse", and {what} in {plan.directory} is of another '
            f'engine (it differs in: {differing}): write "replace", or remove that directory.',
            "residency_foreign",
        )
    log.warning(
        "Host tier: %s in %s is of another engine (it differs in: %s) and is dropped.", what, plan.directory, differing
    )


class WorkerShare:
    """The files of one worker, mapped. One process has them at a time."""

    def __init__(self, plan: Plan, rank: int, patience_seconds: float = PATIENCE_SECONDS) -> None:
        self._plan, self._rank = plan, rank
        plan.make_directory()
        self._lease = Lease(plan.directory / f"worker-{rank}.lock", patience_seconds)
        try:
            self._note = self._take_over()
            plan.check_space()
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
            self._note = WorkerNote(dict(self._note.identity), self._note.birth, self._note.holder, self._plan.run)
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
            refuse_or_say(plan, found.identity, f"the memory of worker {self._rank}")
            found = None
        if found is None or not self._has_files():
            self._remove_files()
            found = WorkerNote(dict(plan.identity), uuid.uuid4().hex, plan.run, None)
        note = WorkerNote(found.identity, found.birth, plan.run, found.writer)
        write_note(path, note)
        return note

    def _has_files(self) -> bool:
        pools = [pool for pool, shape in self._plan.shapes.items() if shape.slots]
        return all(self._plan.pool_file(self._rank, pool).is_file() for pool in pools)

    def _remove_files(self) -> None:
        for path in self._plan.directory.glob(f"worker-{self._rank}.*"):
            if path.suffix != ".lock":
                path.unlink()

    def _map(self, pool: str, shape: PoolShape) -> mmap.mmap:
        descriptor = open_private(self._plan.pool_file(self._rank, pool), shape.file_bytes)
        try:
            mapping = mmap.mmap(descriptor, shape.file_bytes)
        finally:
            os.close(descriptor)
        mapping.madvise(mmap.MADV_DONTFORK)  # a forked child neither needs nor may keep it
        return mapping
