"""Counters across restarts: what a value that starts at zero again has really added. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

#: Two records of one process may differ by this much (the clock's resolution, a re-read start time).
SAME_START_SECONDS = 1.0

Key = TypeVar("Key")


@dataclass(frozen=True)
class Counter:
    """A counter as last seen: its raw value, and `total`, the value with every reset undone."""

    value: float
    total: float


@dataclass(frozen=True)
class Step:
    """One counter, one scrape on. `fell` says it went back although its process did not restart."""

    counter: Counter
    increase: float
    fell: bool = False


@dataclass(frozen=True)
class ProcessStart:
    """When the process behind a page started: by its own metric, and by the supervisor's record."""

    exposed_at: float | None = None
    recorded_at: float | None = None


def has_restarted(old: ProcessStart, new: ProcessStart) -> bool | None:
    """Whether two scrapes saw different processes; None when neither record can tell.

    The page's own start time decides where both pages have it. The supervisor's record serves pages
    without one.
    """
    for before, after in ((old.exposed_at, new.exposed_at), (old.recorded_at, new.recorded_at)):
        if before is not None and after is not None:
            return abs(after - before) > SAME_START_SECONDS
    return None


def from_zero(counters: Mapping[Key, Counter]) -> dict[Key, Counter]:
    """The memory after a restart: every counter counts from zero, also one that shows up later."""
    return {key: Counter(0.0, counter.total) for key, counter in counters.items()}


def advance(previous: Counter, value: float, same_process: bool) -> Step:
    """Follow a counter to `value`.

    A fall is a reset, and all of `value` is new, unless the process is known to be the same one: then
    it is a fault of the data, nothing is added, and counting goes on from the lower value.
    """
    if value >= previous.value:
        return _added(previous, value, value - previous.value)
    if same_process:
        return Step(Counter(value, previous.total), 0.0, fell=True)
    return _added(previous, value, value)


def _added(previous: Counter, value: float, increase: float) -> Step:
    return Step(Counter(value, previous.total + increase), increase)
