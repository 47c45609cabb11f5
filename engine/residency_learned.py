"""What a policy has learned of reuse, kept beside the host memory that outlives its engine. Standard library only.

It is about the traffic and not about the bytes: it stays true when the contents do not fit any more.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from engine.policies.reuse import BINS, CLASSES, KINDS, Counts, Learned
from engine.residency_place import replaced

LEARNED_NAME: Final = "learned.json"
#: Raise it when classes or bins are no longer the same.
FORMAT: Final = 1
#: What was learned since it was last kept is lost when a process is killed.
LEAST_SECONDS: Final = 30.0
#: A count says no more than that exactly.
_DIGITS: Final = 4
#: No count in requests of today gets there: they fade.
_MOST: Final = 1e9


class NotLearnedError(Exception):
    """There is something, and it cannot be gone on from; the text says why."""


def read_learned(path: Path) -> Learned | None:
    """What an earlier run had learned; None if nothing was kept."""
    try:
        found = json.loads(path.read_text())
        if found["format"] != FORMAT:
            raise NotLearnedError(f"{path} is of format {found['format']!r}, not {FORMAT}")
        return Learned(_kinds(found["kinds"]), _classes(found["classes"]))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
        raise NotLearnedError(f"{path} cannot be read: {error!r}") from error


def write_learned(path: Path, learned: Learned) -> None:
    """Replace it as a whole."""
    classes = {str(klass): _rounded(counts) for klass, counts in learned.classes.items()}
    kept = {"format": FORMAT, "kinds": [_rounded(counts) for counts in learned.kinds], "classes": classes}
    with replaced(path) as file:
        file.write(json.dumps(kept))


class Keeper:
    """Writes it now and then."""

    def __init__(self, path: Path, learned: Callable[[], Learned | None], least_seconds: float = LEAST_SECONDS) -> None:
        self._path = path
        self._learned = learned
        self._least_seconds = least_seconds
        self._due = 0.0

    def __call__(self, last: bool) -> None:
        """Once more if it is time, or the last time. OSError if it cannot be written."""
        if not last and time.monotonic() < self._due:
            return
        self._due = time.monotonic() + self._least_seconds
        learned = self._learned()
        if learned is not None:
            write_learned(self._path, learned)


def _rounded(counts: Counts) -> list[list[float]]:
    return [[round(count, _DIGITS) for count in by_bin] for by_bin in counts]


def _kinds(found: list[Any]) -> tuple[Counts, ...]:
    if len(found) != KINDS:
        raise ValueError(f"{len(found)} kinds")
    return tuple(_counts(counts) for counts in found)


def _classes(found: Mapping[str, Any]) -> dict[int, Counts]:
    classes = {int(klass): _counts(counts) for klass, counts in found.items()}
    if unknown := [klass for klass in classes if not 0 <= klass < CLASSES]:
        raise ValueError(f"classes {unknown}")
    return classes


def _counts(found: list[list[float]]) -> Counts:
    counts = Counts(*([float(count) for count in by_bin] for by_bin in found))
    if any(len(by_bin) != BINS for by_bin in counts):
        raise ValueError("other bins of age")
    if not all(0 <= count <= _MOST for by_bin in counts for count in by_bin):  # nor is a NaN
        raise ValueError("what is no count")
    return counts
