"""What has to be known about a run after the deck that started it is gone, kept in one small file.

The database holds who the engine is; this file holds where its output begins and which shared-memory
files it was seen to use.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import structlog

from app.supervisor.sharedmemory import SharedFile

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class RunRecord:
    """`boot` tells apart equal inodes before and after a restart of the machine."""

    marker: str
    boot: str
    log_start: int
    shared_files: frozenset[SharedFile]


def boot_id() -> str:
    """An identifier of this boot of the machine."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def write(path: Path, record: RunRecord) -> None:
    """Replace the record as a whole."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    content = {**asdict(record), "shared_files": [asdict(file) for file in sorted(record.shared_files)]}
    scratch = path.with_suffix(".tmp")
    scratch.write_text(json.dumps(content))
    scratch.replace(path)


def read(path: Path) -> RunRecord | None:
    """The record, if there is one of this boot."""
    try:
        content = json.loads(path.read_text())
        record = RunRecord(
            marker=content["marker"],
            boot=content["boot"],
            log_start=content["log_start"],
            shared_files=frozenset(SharedFile(**file) for file in content["shared_files"]),
        )
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        log.warning("the record of a run cannot be read", path=str(path), error=str(error))
        return None
    return record if record.boot == boot_id() else None
