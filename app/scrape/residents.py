"""Reads which sessions an engine has in host memory: the file that its connector keeps beside the memory."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from engine.residency_place import NotPrivateError, check_private
from engine.snapshot import NotReadableError, ResidentSession, read_snapshot, snapshots_below


@dataclass(frozen=True)
class Residents:
    """What one engine told. `reason` says why nothing is known; then there are no sessions and no count."""

    sessions: tuple[ResidentSession, ...] = ()
    count: int | None = None
    written_at: float | None = None
    reason: str | None = None


def read_residents(directory: Path, since: float | None = None) -> Residents:
    """Of all schedulers of an engine together. `directory` is that of its memory; what was told before `since`, when
    its present process was started, is not known to hold any more.
    """
    try:
        if not directory.is_dir():
            return Residents(reason="It keeps no host memory that outlives it, so it tells nothing.")
        check_private(directory)
        told = [snapshot for path in snapshots_below(directory) if (snapshot := read_snapshot(path)) is not None]
    except (NotReadableError, NotPrivateError, OSError) as error:
        return Residents(reason=f"What it told cannot be read: {error}.")
    fresh = [snapshot for snapshot in told if since is None or snapshot.written_at >= since]
    if not fresh:
        return Residents(reason="It has told nothing since it was started.")
    return Residents(
        sessions=tuple(session for snapshot in fresh for session in snapshot.sessions),
        count=sum(snapshot.count for snapshot in fresh),
        written_at=min(snapshot.written_at for snapshot in fresh),
    )
