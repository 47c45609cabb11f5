"""From samples on a grid to a chart's lines. Pure.

A line's key names its colour. Labels and titles are English sources for the translation catalogue.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from app.derive import points
from app.derive.origin import SOURCE_METRICS, origin, shares, together
from app.derive.points import Tracks
from app.derive.quantiles import quantile
from app.derive.slots import STATE, TOKEN, add_gauges, pool_sum, ratio
from app.scrape.names import SeriesKey

Values = list[float | None]
#: One engine's, on one moment of the grid: gauges by series.
Gauges = Mapping[SeriesKey, float]


@dataclass(frozen=True)
class ChartLine:
    """One line: None where there is nothing to draw."""

    key: str
    label: str
    unit: str
    values: Values


@dataclass(frozen=True)
class ChartKind:
    """What a chart asks, in which unit, from which series, and how its lines are made.

    `draw` is given the tracks of one or more engines, the number of buckets, and over how many buckets
    shares and quantiles are taken.
    """

    title: str
    unit: str
    metrics: tuple[str, ...]
    draw: Callable[[Sequence[Tracks], int, int], list[ChartLine]]
    needs_traffic: bool = False


def _token_origin(engines: Sequence[Tracks], count: int, smoothed: int) -> list[ChartLine]:
    gained = [points.gained(tracks, count, smoothed) for tracks in engines]
    parts = [
        shares(together(origin(gains) for gains in column if gains is not None)) or (None,) * 4
        for column in zip(*gained, strict=True)
    ]
    vram, host, avoidable, recomputed = (list(line) for line in zip(*parts, strict=True))
    return [
        ChartLine("vram", "VRAM hit", "share", vram),
        ChartLine("host", "Host hit", "share", host),
        ChartLine("avoidable", "Avoidable recompute", "share", avoidable),
        ChartLine("recomputed", "Other recompute", "share", recomputed),
    ]


def _slots(engines: Sequence[Tracks], count: int, _smoothed: int) -> list[ChartLine]:
    columns = _gauges(engines, count)
    return [
        ChartLine(key, label, "share", [_pool_share(gauges, pool) for gauges in columns])
        for key, label, pool in (
            ("token-slots", "Token slots used", TOKEN),
            ("state-slots", "State slots used", STATE),
        )
    ]


def _ttft(engines: Sequence[Tracks], count: int, smoothed: int) -> list[ChartLine]:
    gained = [points.gained(tracks, count, smoothed) for tracks in engines]
    buckets = [bucket_gains(gains for gains in column if gains) for column in zip(*gained, strict=True)]
    return [
        ChartLine(key, key, "seconds", [quantile(share, found) for found in buckets])
        for key, share in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99))
    ]


def _load(engines: Sequence[Tracks], count: int, _smoothed: int) -> list[ChartLine]:
    def gauge(name: str) -> Values:
        return points.add([points.values(tracks.get(SeriesKey(name), points.Track()), count) for tracks in engines])

    preempted = [points.gains(tracks.get(SeriesKey("preemptions"), points.Track()), count) for tracks in engines]
    return [
        ChartLine("running", "Running", "requests", gauge("requests_running")),
        ChartLine("waiting", "Waiting", "requests", gauge("requests_waiting")),
        ChartLine(
            "preemptions", "Preemptions", "per minute", points.add([points.per_minute(one) for one in preempted])
        ),
    ]


def _memory(engines: Sequence[Tracks], count: int, _smoothed: int) -> list[ChartLine]:
    usage = [points.values(tracks.get(SeriesKey("kv_usage"), points.Track()), count) for tracks in engines]
    host = [host_share(gauges) for gauges in _gauges(engines, count)]
    return [
        ChartLine("kv", "KV cache in VRAM", "share", points.mean(usage)),
        ChartLine("host", "Host tier", "share", host),
    ]


KINDS: Mapping[str, ChartKind] = {
    "token-origin": ChartKind(
        "Where did input tokens come from?", "share", SOURCE_METRICS, _token_origin, needs_traffic=True
    ),
    "slots": ChartKind("Which slots give out first?", "share", ("host_slots", "host_slots_used"), _slots),
    "ttft": ChartKind(
        "How long do users wait for a first token?", "seconds", ("ttft_seconds_bucket",), _ttft, needs_traffic=True
    ),
    "load": ChartKind(
        "How busy are the engines?", "requests", ("requests_running", "requests_waiting", "preemptions"), _load
    ),
    "memory": ChartKind(
        "How full is memory?", "share", ("kv_usage", "host_bytes", "host_slots", "host_slots_used"), _memory
    ),
}


def bucket_gains(engines: Iterable[Mapping[SeriesKey, float]], name: str = "ttft_seconds_bucket") -> dict[float, float]:
    """What a histogram's buckets, TTFT's if none is named, gained over all engines, by upper bound."""
    total: dict[float, float] = {}
    for gains in engines:
        for key, gained in gains.items():
            if key.name == name:
                bound = float(key.label("le"))
                total[bound] = total.get(bound, 0.0) + gained
    return total


def host_share(gauges: Gauges) -> float | None:
    """The part of the host tier's memory whose slots are used."""
    used = total = 0.0
    for pool in (TOKEN, STATE):
        size, share = pool_sum(gauges, "host_bytes", pool), _pool_share(gauges, pool)
        if size is not None and share is not None:
            used, total = used + size * share, total + size
    return used / total if total else None


def is_empty(lines: Iterable[ChartLine]) -> bool:
    """True when there is nothing to draw."""
    return all(value is None for line in lines for value in line.values)


def _pool_share(gauges: Gauges, pool: str) -> float | None:
    return ratio(pool_sum(gauges, "host_slots_used", pool), pool_sum(gauges, "host_slots", pool))


def _gauges(engines: Sequence[Tracks], count: int) -> list[Gauges]:
    """For each bucket the engines' gauges added up, of the engines that have any there."""
    return [add_gauges(_gauges_at(tracks, index) for tracks in engines) for index in range(count)]


def _gauges_at(tracks: Tracks, index: int) -> dict[SeriesKey, float]:
    return {key: track.buckets[index].value for key, track in tracks.items() if index in track.buckets}
