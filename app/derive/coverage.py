"""How well a window is covered by scrapes, and what is said where it is not. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from app.derive.headline import Outage

#: Reasons under which a page that does not come is part of the engine's life.
EXPECTED = frozenset({"starting", "stopping"})
#: Failed scrapes that together last no longer than this are covered by the counters themselves.
TOLERATED_SECONDS = 10.0
#: A run of scrapes this old is over.
OVER_SECONDS = 15.0


class Run(Protocol):
    """A stretch of scrapes that ended the same way (`app.store.queries.scrapes.Run`)."""

    @property
    def first_at(self) -> float: ...  # noqa: D102
    @property
    def last_at(self) -> float: ...  # noqa: D102
    @property
    def ok(self) -> bool: ...  # noqa: D102
    @property
    def reason(self) -> str: ...  # noqa: D102


@dataclass(frozen=True)
class Coverage:
    """What is known of one engine in a window. `reason` says why it is not complete, as a code."""

    has_numbers: bool
    reason: str | None = None
    outage: Outage | None = None


def coverage(
    runs: Sequence[Run], first_ok_at: float | None, from_: float, to: float, has_fault: bool = False
) -> Coverage:
    """Judge the scrapes of an engine in a window, given its runs there in order of time.

    `has_fault`: a counter fell in the window although its process did not restart.
    """
    has_numbers = any(run.ok for run in runs)
    outage = _outage(runs, to)
    if outage is not None or _failed_seconds(runs, from_, to) > TOLERATED_SECONDS:
        return Coverage(has_numbers, "scrape_failed", outage)
    if has_fault:
        return Coverage(has_numbers, "data_fault")
    if first_ok_at is not None and first_ok_at > from_ + OVER_SECONDS:
        return Coverage(has_numbers, "window_starts_before_data")
    return Coverage(has_numbers)


def is_failing(run: Run) -> bool:
    """True for a run of failures that nobody expected."""
    return not run.ok and run.reason not in EXPECTED


def _outage(runs: Sequence[Run], to: float) -> Outage | None:
    """The failures that go on at the end of the window, from the first of them."""
    since = None
    for run in reversed(runs):
        if not is_failing(run) or (since is None and run.last_at < to - OVER_SECONDS):
            break
        since = run.first_at
    return None if since is None else Outage(since, runs[-1].reason)


def _failed_seconds(runs: Iterable[Run], from_: float, to: float) -> float:
    failing = (run for run in runs if is_failing(run))
    return sum(min(run.last_at, to) - max(run.first_at, from_) for run in failing)
