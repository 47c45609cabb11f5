"""Where an engine's host memory is to lie and what it has to be, and the notes beside it that say whose it is."""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, TypeVar

from vllm.logger import init_logger

from engine.config import ConfigError
from engine.layout import HostLayout
from engine.residency_identity import ARENA_KEY
from engine.residency_place import make_private, replaced, shortage

log = init_logger("vllm.tierdeck.residency")

#: The one pool of an arena, and so the name of its files.
ARENA: Final = "arena"
#: What makes bytes servable: model, layout, parallelism, as JSON values.
Identity = Mapping[str, Any]


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
    layout: HostLayout | None = None  # None: what is laid out otherwise is not taken over

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

    def index_file(self, pool: str) -> Path:
        """What lies in them, as the scheduler knows."""
        return self.directory / f"{pool}.index"

    def give_back(self, pool: str) -> None:
        """The memory of each worker behind the last slot of the pool."""
        shape = self.shapes[pool]
        for rank in range(self.world_size):
            path = self.pool_file(rank, pool)
            if shape.slots and path.stat().st_size > shape.file_bytes:
                os.truncate(path, shape.file_bytes)
            elif not shape.slots:
                path.unlink(missing_ok=True)

    @property
    def engine_note(self) -> Path:
        """What is known about the index."""
        return self.directory / "engine.json"

    def worker_note(self, rank: int) -> Path:
        """What is known about a worker's slots."""
        return self.directory / f"worker-{rank}.json"


@dataclass(frozen=True)
class WorkerNote:
    """`birth` names these files, `holder` the run that has them, `writer` the last run that wrote slots, `converted`
    what was taken over from another layout to make them.
    """

    identity: dict[str, Any]
    birth: str
    holder: str
    writer: str | None
    converted: str | None = None


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
    """Replace it as a whole."""
    with replaced(path) as file:
        file.write(json.dumps(asdict(note)))


def disagreement(note: EngineNote, rank: int, worker: WorkerNote) -> str | None:
    """Why the index does not describe this worker's files; None if it does."""
    if note.births[rank : rank + 1] != [worker.birth]:
        return f"the memory of worker {rank} is another one"
    if worker.writer is not None and worker.writer not in note.runs:
        return f"worker {rank} was written to by a run that it did not see"
    return None


def differences(found: Identity, wanted: Identity) -> list[str]:
    """The names of what is not the same."""
    return sorted(name for name in {*found, *wanted} if found.get(name) != wanted.get(name))


def refuse_or_say(plan: Plan, found: Identity, what: str, reason: str) -> None:
    """Say that foreign contents are replaced, or end the start if they must not be. `reason` is why those of this
    engine with another layout are not taken over.
    """
    differing = ", ".join(differences(found, plan.identity))
    if differing == ARENA_KEY:
        sentence = "Host tier: %s in %s is laid out for another eviction_policy and is dropped: %s."
        log.warning(sentence, what, plan.directory, reason)
        return
    if plan.foreign == "refuse":
        raise ConfigError(
            f'kv_connector_extra_config: residency_foreign is "refuse", and {what} in {plan.directory} is of another '
            f'engine (it differs in: {differing}): write "replace", or remove that directory.',
            "residency_foreign",
        )
    log.warning(
        "Host tier: %s in %s is of another engine (it differs in: %s) and is dropped.", what, plan.directory, differing
    )
