"""Samples in the database, on SQLite and on PostgreSQL."""

from __future__ import annotations

import pytest

from app.derive.points import Grid
from app.scrape.names import SeriesKey
from app.store.database import Database
from app.store.queries import samples, scrapes
from app.store.queries.samples import BY_MINUTE, RAW, Row
from app.store.retention import RetentionLoop
from tests.databases import T0, add_engine

HITS = SeriesKey("prefix_hits")
SLOTS = SeriesKey("host_slots", (("group", "all"), ("pool", "token")))


async def add_series(database: Database, engine: int) -> int:
    async with database.begin() as session:
        return (await samples.add_series(session, engine, {HITS: "counter", SLOTS: "gauge"}))[HITS]


async def test_series_are_made_once_and_keep_their_labels(database: Database) -> None:
    """Asking twice for the same series gives the same id; labels come back as they went in."""
    engine = await add_engine(database)
    first = await add_series(database, engine)
    assert await add_series(database, engine) == first
    async with database.session() as session:
        found = await samples.series_of(session, [engine])
    assert {one.key for one in found} == {HITS, SLOTS}


async def test_minute_keeps_the_last_sample_written_in_it(database: Database) -> None:
    """The minute sample is the newest one of the minute, however often the minute was written."""
    series = await add_series(database, await add_engine(database))
    async with database.begin() as session:
        await samples.write(session, [Row(series, T0 + 2, 1, 1), Row(series, T0 + 58, 5, 5)])
        await samples.write(session, [Row(series, T0 + 59, 7, 7), Row(series, T0 + 61, 9, 9)])
    async with database.session() as session:
        assert (await samples.newest(session, [series]))[series].total == 9
        ended = await samples.before(session, [series], BY_MINUTE, T0 + 60, T0)
        assert ended[series].total == 7


async def test_writing_a_moment_twice_keeps_the_later_value(database: Database) -> None:
    """A tick that is stored again does not fail and does not double."""
    series = await add_series(database, await add_engine(database))
    async with database.begin() as session:
        await samples.write(session, [Row(series, T0, 1, 1)])
        await samples.write(session, [Row(series, T0, 2, 2)])
    async with database.session() as session:
        assert (await samples.newest(session, [series]))[series].value == 2


@pytest.mark.parametrize("step", [5.0, 15.0, 60.0])
async def test_bucket_holds_its_last_sample(database: Database, step: float) -> None:
    """A bucket excludes its start and includes its end; buckets without samples are left out."""
    series = await add_series(database, await add_engine(database))
    times = [T0 + second for second in range(0, 120, 2) if not 40 <= second < 60]
    async with database.begin() as session:
        await samples.write(session, [Row(series, at, at - T0, at - T0) for at in times])
    grid = Grid(T0, T0 + 120, step, int(120 / step))
    async with database.session() as session:
        found = (await samples.last_in_buckets(session, [series], RAW, grid))[series]
    expected: dict[int, float] = {}
    for at in times:
        if at > T0:
            expected[int((at - T0 - 1e-6) // step)] = at - T0
    assert {index: point.total for index, point in found.items()} == expected


async def test_edges_of_a_window(database: Database) -> None:
    """`before` looks back only so far; `first_after` takes the first sample inside."""
    series = await add_series(database, await add_engine(database))
    async with database.begin() as session:
        await samples.write(session, [Row(series, T0 + at, at, at) for at in (0, 10, 20, 30)])
    async with database.session() as session:
        assert (await samples.before(session, [series], RAW, T0 + 15, T0))[series].total == 10
        assert await samples.before(session, [series], RAW, T0 + 100, T0 + 50) == {}
        assert (await samples.first_after(session, [series], RAW, T0 + 10, T0 + 60))[series].total == 20
        assert await samples.last_below(session, series, 30, RAW) == T0 + 20


async def test_equal_scrapes_are_one_run(database: Database) -> None:
    """A run is extended in place and found by any window that it touches."""
    engine = await add_engine(database)
    async with database.begin() as session:
        run = await scrapes.start_run(session, engine, T0, True, "")
        await scrapes.extend_run(session, run.id, T0 + 100)
        await scrapes.start_run(session, engine, T0 + 102, False, "refused the connection")
    async with database.session() as session:
        assert [one.last_at for one in await scrapes.runs_between(session, [engine], T0 + 50, T0 + 60)] == [T0 + 100]
        assert await scrapes.first_ok_at(session, [engine]) == {engine: T0}
        last = await scrapes.last_ok(session, engine)
        assert last is not None
        assert last.last_at == T0 + 100


async def test_retention_removes_what_no_chart_reaches(database: Database) -> None:
    """Raw samples go after three hours, minutes after fifteen days; the newest stay."""
    series = await add_series(database, await add_engine(database))
    hour, day = 3600.0, 86400.0
    async with database.begin() as session:
        await samples.write(session, [Row(series, T0 - age, 1, 1) for age in (16 * day, 5 * hour, 2 * hour, 0.0)])
    await RetentionLoop(database).thin(T0)
    async with database.session() as session:
        raw = await samples.first_after(session, [series], RAW, 0, T0)
        minute = await samples.first_after(session, [series], BY_MINUTE, 0, T0)
    assert raw[series].at == T0 - 2 * hour
    assert minute[series].at == pytest.approx(T0 - 5 * hour, abs=60)
