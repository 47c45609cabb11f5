"""How long drains and starts take, from what was observed. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from app.rollouts.said import NOTHING, Said, say
from app.supervisor.states import EngineState

#: A drain waits for twice what nearly all requests of the last hour took, within bounds.
OBSERVED_SECONDS = 3600.0
FACTOR = 2.0
FEWEST_REQUESTS = 100
SHORTEST_DRAIN_SECONDS = 30.0
LONGEST_DRAIN_SECONDS = 1800.0
#: The newest moves count: an engine of last month says little about today's.
MOVES_COUNTED = 5

_S = EngineState
#: A start from another state is a deck that found the engine running: it says nothing about loading.
_STARTS_FROM = frozenset({_S.STOPPED, _S.BACKOFF, _S.FAILED})


@dataclass(frozen=True)
class StateChange:
    """A recorded change of an engine's state; `at` in seconds since the epoch."""

    at: float
    old: EngineState
    new: EngineState


@dataclass(frozen=True)
class Observed:
    """Medians in seconds; None = never seen."""

    drain_seconds: float | None
    stop_seconds: float | None
    start_seconds: float | None


@dataclass(frozen=True)
class DrainLimit:
    """How long a drain waits for open requests, and where the number is from."""

    seconds: float
    why: Said


@dataclass(frozen=True)
class Lengths:
    """How long the requests of the last hour took: how many there were, and their 99th percentile."""

    count: float
    p99_seconds: float | None


def drain_limit(asked: float | None, fleet_s: float | None, lengths: Lengths, usual_seconds: float) -> DrainLimit:
    """As asked for, else as the fleet says, else by how long requests took, else as usual.

    The longest wait is what saves a request from being cut: too few of them say nothing about the next one.
    """
    if asked is not None:
        return DrainLimit(asked, say("As asked for."))
    if fleet_s is not None:
        return DrainLimit(fleet_s, say("As set for the fleet."))
    if lengths.p99_seconds is None or lengths.count < FEWEST_REQUESTS:
        return DrainLimit(usual_seconds, say("Too few requests ended in the last hour: as set for the deck."))
    p99_seconds = lengths.p99_seconds
    seconds = round(min(max(FACTOR * p99_seconds, SHORTEST_DRAIN_SECONDS), LONGEST_DRAIN_SECONDS))
    sentence = "99 of 100 requests of the last hour ended within %(seconds)s s; twice that, between 30 s and 30 min."
    return DrainLimit(seconds, say(sentence, seconds=f"{p99_seconds:.3g}"))


def observed(engines: Iterable[Sequence[StateChange]]) -> Observed:
    """From the changes of each engine, oldest first."""
    drains, stops, starts = list[tuple[float, float]](), list[tuple[float, float]](), list[tuple[float, float]]()
    for changes in engines:
        for begun, ended in pairwise(changes):
            seen = (ended.at, ended.at - begun.at)
            if begun.new is _S.DRAINING and ended.new is _S.STOPPING:
                drains.append(seen)
            elif begun.new is _S.STOPPING and ended.new is _S.STOPPED:
                stops.append(seen)
            elif begun.new is _S.STARTING and begun.old in _STARTS_FROM and ended.new is _S.READY:
                starts.append(seen)
    return Observed(_newest_median(drains), _newest_median(stops), _newest_median(starts))


def _newest_median(seen: list[tuple[float, float]]) -> float | None:
    newest = [seconds for _, seconds in sorted(seen)[-MOVES_COUNTED:]]
    return median(newest) if newest else None


def expected_seconds(seen: Observed, rounds: int) -> float | None:
    """Of a whole rollout: as often as engines restart one after the other; None while no start was seen.

    The least that it takes where a drain or a stop was never seen: `unseen` says so.
    """
    if seen.start_seconds is None:
        return None
    return rounds * ((seen.drain_seconds or 0.0) + (seen.stop_seconds or 0.0) + seen.start_seconds)


def unseen(seen: Observed) -> Said:
    """What an expectation lacks, or nothing."""
    if seen.start_seconds is None:
        return say("No start of an engine of this fleet was seen yet.")
    if seen.drain_seconds is None or seen.stop_seconds is None:
        return say("It takes at least that long: no drain of an engine of this fleet was seen yet.")
    return NOTHING
