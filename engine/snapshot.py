"""Which sessions are in host memory, as the engine tells its deck: a file beside the memory, for its owner alone.

The engine writes it while it serves, as a whole each time, and the deck reads it when it is asked. Standard library
only: both use it.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from engine.residency_place import replaced

SNAPSHOT_NAME: Final = "sessions.json"
#: Raise it when a field changes its meaning.
FORMAT: Final = 1
#: So many sessions are told, those that stay longest; how many there are is told as well.
MOST_SESSIONS: Final = 5_000
_ID_LETTERS: Final = 16


class NotReadableError(Exception):
    """There is a snapshot, and it cannot be read; the text says why."""


@dataclass(frozen=True, slots=True)
class ResidentSession:
    """A chain of blocks that no other one goes on from. `id` is of its last restorable boundary, so it is another one
    when the session has gone on.
    """

    id: str
    tokens: int  # that are there
    restorable_tokens: int  # up to the deepest boundary from which it could go on; 0 for none
    used_at: float  # seconds since the epoch
    bytes: int  # of all workers, that it shares with no other session
    superseded: bool  # its session has a newer one: it goes before all that are not
    victim_rank: int | None  # 0 goes first; None: it is in use and stays, or could not go on anyway


@dataclass(frozen=True)
class Snapshot:
    """What one scheduler knew at a time."""

    written_at: float
    count: int
    sessions: tuple[ResidentSession, ...]


def session_id(boundary: bytes) -> str:
    """The beginning of the block hash at a boundary, in hexadecimal digits."""
    return boundary.hex()[:_ID_LETTERS]


def write_snapshot(path: Path, snapshot: Snapshot) -> None:
    """Replace the file as a whole."""
    told = asdict(snapshot) | {"format": FORMAT}
    with replaced(path) as file:
        json.dump(told, file, separators=(",", ":"))


def read_snapshot(path: Path) -> Snapshot | None:
    """The newest one; None if none was ever written. NotReadableError if it is of no use."""
    try:
        told = json.loads(path.read_text())
        if told["format"] != FORMAT:
            raise NotReadableError(f"{path} has format {told['format']}, not {FORMAT}")
        sessions = tuple(ResidentSession(**one) for one in told["sessions"])
        return Snapshot(float(told["written_at"]), int(told["count"]), sessions)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise NotReadableError(f"{path} cannot be read: {error}") from error


def snapshots_below(directory: Path) -> list[Path]:
    """Of every scheduler of an engine (one per data parallel rank), in order; those that exist."""
    return sorted(directory.glob(f"engine-*/{SNAPSHOT_NAME}"))
