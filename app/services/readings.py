"""Reading samples for a window: what counters gained, gauges now, series on a grid, scrape coverage."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy.ext.asyncio import AsyncSession

from app.derive.coverage import Coverage, coverage
from app.derive.points import Drawing, Point, Track, Tracks, increases
from app.derive.slots import SlotUse, add_gauges, slot_use
from app.scrape.names import SeriesKey
from app.store.queries import samples, scrapes
from app.supervisor.status import EngineStatus

#: How old the sample may be that a window's gains are counted from.
LOOKBACK_SECONDS = 15.0
MINUTE_LOOKBACK_SECONDS = 180.0
#: A gauge older than this is no longer the present.
FRESH_SECONDS = 10.0
RECENT_SECONDS = 300.0

SLOT_GAUGES = ("host_slots", "host_slots_used")


@dataclass(frozen=True)
class FleetEngines:
    """The engines a question is about: their states, and their ids by name."""

    statuses: Sequence[EngineStatus]
    ids: Mapping[str, int]
    left: Sequence[int] = ()
    """Ids of those that have left since the window began: what they served is part of it."""


@dataclass(frozen=True)
class Reading:
    """One engine in one window: what each counter gained, its newest totals, and how sure that is."""

    increases: Mapping[SeriesKey, float]
    totals: Mapping[SeriesKey, float]
    coverage: Coverage


async def read_gains(
    session: AsyncSession, engines: Collection[int], names: Collection[str], from_: float, to: float
) -> dict[int, Reading]:
    """For each engine what its counters gained in a window."""
    series = await samples.series_of(session, engines, names)
    ids = [one.id for one in series]
    first, last = await _edges(session, ids, from_, to)
    covered = await read_coverage(session, engines, from_, to)
    return {
        engine: Reading(
            increases(_by_key(series, engine, first), _by_key(series, engine, last)),
            {key: point.total for key, point in _by_key(series, engine, last).items()},
            covered[engine],
        )
        for engine in engines
    }


async def read_coverage(
    session: AsyncSession, engines: Collection[int], from_: float, to: float
) -> dict[int, Coverage]:
    """For each engine how well a window is covered by scrapes."""
    runs = await scrapes.runs_between(session, engines, from_, to)
    first_ok = await scrapes.first_ok_at(session, engines)
    marks = await scrapes.marks_between(session, engines, from_, to)
    faulty = {mark.engine_id for mark in marks if mark.kind == "data_fault"}
    return {
        engine: coverage(
            [run for run in runs if run.engine_id == engine], first_ok.get(engine), from_, to, engine in faulty
        )
        for engine in engines
    }


async def read_gauges(
    session: AsyncSession, engines: Collection[int], names: Collection[str], now: float
) -> dict[int, dict[SeriesKey, Point]]:
    """For each engine its gauges as last seen, however long ago that was."""
    series = await samples.series_of(session, engines, names)
    newest = await samples.newest(session, [one.id for one in series])
    points = {id_: point for id_, point in newest.items() if point.at <= now}
    return {engine: _by_key(series, engine, points) for engine in engines}


async def read_slots(session: AsyncSession, ids: Collection[int], now: float) -> SlotUse:
    """The slots of some engines now, and what was evicted in the last minutes."""
    gauges = await read_gauges(session, ids, SLOT_GAUGES, now)
    fresh = [_values(points, now - FRESH_SECONDS) for points in gauges.values()]
    readings = await read_gains(session, ids, ("host_evictions",), now - RECENT_SECONDS, now)
    gained = add_gauges(reading.increases for reading in readings.values())
    return slot_use(add_gauges(fresh), gained, RECENT_SECONDS)


async def read_tracks(
    session: AsyncSession, engines: Collection[int], names: Collection[str], drawing: Drawing
) -> dict[int, Tracks]:
    """For each engine its series on a chart's grid."""
    series = await samples.series_of(session, engines, names)
    ids = [one.id for one in series]
    grid, source = drawing.grid, samples.BY_MINUTE if drawing.by_minute else samples.RAW
    lookback = MINUTE_LOOKBACK_SECONDS if drawing.by_minute else LOOKBACK_SECONDS
    buckets = await samples.last_in_buckets(session, ids, source, grid)
    before = {
        # A series that begins inside the window gains from its first sample on.
        **await samples.first_after(session, ids, source, grid.from_, grid.to),
        **await samples.before(session, ids, source, grid.from_, grid.from_ - lookback),
    }
    return {
        engine: {
            one.key: Track(buckets.get(one.id, {}), before.get(one.id)) for one in series if one.engine_id == engine
        }
        for engine in engines
    }


async def last_rise(session: AsyncSession, engine: int, name: str) -> float | None:
    """The last time that a counter of an engine, all its labels together, was seen lower than it is."""
    times = []
    series = await samples.series_of(session, [engine], [name])
    newest = await samples.newest(session, [one.id for one in series], samples.BY_MINUTE)
    for id_, point in newest.items():
        at = await samples.last_below(session, id_, point.total, samples.RAW)
        if at is None:
            at = await samples.last_below(session, id_, point.total, samples.BY_MINUTE)
        if at is not None:
            times.append(at)
    return max(times, default=None)


async def _edges(
    session: AsyncSession, ids: Collection[int], from_: float, to: float
) -> tuple[dict[int, Point], dict[int, Point]]:
    """The samples a window's gains are counted between. Raw ones where they are still kept."""
    after = await samples.first_after(session, ids, samples.BY_MINUTE, from_, to)
    for id_, point in (await samples.first_after(session, ids, samples.RAW, from_, to)).items():
        if id_ not in after or point.at < after[id_].at:
            after[id_] = point
    minutes_before = await samples.before(session, ids, samples.BY_MINUTE, from_, from_ - MINUTE_LOOKBACK_SECONDS)
    raw_before = await samples.before(session, ids, samples.RAW, from_, from_ - LOOKBACK_SECONDS)
    last_minutes = await samples.last_until(session, ids, samples.BY_MINUTE, to, from_)
    last_raw = await samples.before(session, ids, samples.RAW, to, from_)
    return {**after, **minutes_before, **raw_before}, {**last_minutes, **last_raw}


def _by_key(series: Sequence[samples.Series], engine: int, points: Mapping[int, Point]) -> dict[SeriesKey, Point]:
    return {one.key: points[one.id] for one in series if one.engine_id == engine and one.id in points}


def _values(points: Mapping[SeriesKey, Point], not_before: float) -> dict[SeriesKey, float]:
    return {key: point.value for key, point in points.items() if point.at >= not_before}
