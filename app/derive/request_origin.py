"""Which part of one request's cached tokens was in VRAM and which in host memory. Pure.

An engine tells their sum for each request, and both apart for all requests together. Over a stretch of time
around the request in which one of the two did not grow, all of it was the other; in one that
saw no other request's hits, what both gained is its own. Else it is not known, and not guessed.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

#: A page may be read so much later than the moment it is stored under.
READ_LATE_SECONDS = 1.5
VRAM, HOST, COMPUTED = "local_cache_hit", "external_kv_transfer", "local_compute"


@dataclass(frozen=True)
class Cached:
    """A request with tokens from cache. They were counted between `start` and `end`."""

    id: int
    start: float
    end: float
    cached_tokens: int


@dataclass(frozen=True)
class Totals:
    """A counter as it was read: times, ascending, and totals that never fall."""

    times: Sequence[float]
    totals: Sequence[float]


def split(request: Cached, counters: Mapping[str, Totals]) -> tuple[int, int] | None:
    """Tokens from VRAM and from host memory; None while, or if, that cannot be told. `counters`: by source."""
    computed = counters.get(COMPUTED)
    if computed is None:
        return None
    first = bisect_right(computed.times, request.start - READ_LATE_SECONDS) - 1
    last = bisect_right(computed.times, request.end)
    if first < 0 or last >= len(computed.times):
        return None
    window = computed.times[first], computed.times[last]
    return _told(request.cached_tokens, _gained(counters.get(VRAM), *window), _gained(counters.get(HOST), *window))


def _told(cached: int, vram: float, host: float) -> tuple[int, int] | None:
    if vram + host < cached:
        return None  # the counters are not those of this request's engine process
    if host == 0:
        return cached, 0
    if vram == 0:
        return 0, cached
    return (round(vram), round(host)) if vram + host == cached else None


def _gained(counter: Totals | None, start: float, end: float) -> float:
    """A source that was never counted up has gained nothing."""
    return 0.0 if counter is None else _at(counter, end) - _at(counter, start)


def _at(counter: Totals, at: float) -> float:
    index = bisect_left(counter.times, at)
    if index < len(counter.times) and counter.times[index] == at:
        return counter.totals[index]
    return counter.totals[index - 1] if index else 0.0
