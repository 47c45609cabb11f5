"""What a restarted deck recalls of an engine, so that its counters go on where they were."""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy.ext.asyncio import AsyncSession

from app.derive.counters import Counter, ProcessStart
from app.derive.points import Point
from app.scrape.ingest import EXPOSED_START, RECORDED_START, Memory
from app.scrape.names import SeriesKey
from app.store.queries import samples, scrapes


async def load_memory(session: AsyncSession, engine_id: int) -> tuple[Memory, dict[SeriesKey, int]]:
    """The memory of an engine as of its last stored scrape, and the ids of its series."""
    series = await samples.series_of(session, [engine_id])
    ids = [one.id for one in series]
    points = {**await samples.newest(session, ids, samples.BY_MINUTE), **await samples.newest(session, ids)}
    last_run = await scrapes.last_ok(session, engine_id)
    by_key = {one.key: points[one.id] for one in series if one.id in points}
    kinds = {one.key: one.kind for one in series}
    memory = recall(by_key, kinds, last_run.last_at if last_run else None)
    return memory, {one.key: one.id for one in series}


def recall(points: Mapping[SeriesKey, Point], kinds: Mapping[SeriesKey, str], last_ok_at: float | None) -> Memory:
    """Rebuild the memory. A counter last seen before its process started counts from zero."""
    process = ProcessStart(_value(points, EXPOSED_START), _value(points, RECORDED_START))
    started = process.exposed_at if process.exposed_at is not None else process.recorded_at
    counters = {
        key: Counter(0.0 if started is not None and point.at < started else point.value, point.total)
        for key, point in points.items()
        if kinds[key] == "counter"
    }
    return Memory(counters, process, last_ok_at)


def _value(points: Mapping[SeriesKey, Point], key: SeriesKey) -> float | None:
    point = points.get(key)
    return None if point is None else point.value
