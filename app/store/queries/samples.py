"""Samples: written by the scrape loop, read for charts.

Raw samples serve short windows, minute samples long ones. A minute sample stands at the start of
its minute but holds the last value of it, so it is read as if taken at the minute's end.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Integer, Select, Table, and_, cast, func, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncSession

from app.derive.points import Grid, Point
from app.scrape.names import SeriesKey
from app.store.models import Base, EngineRow, MinuteSampleRow, SampleRow, SeriesRow

MINUTE = 60.0

SAMPLES: Table = Base.metadata.tables[SampleRow.__tablename__]
MINUTES: Table = Base.metadata.tables[MinuteSampleRow.__tablename__]


@dataclass(frozen=True)
class Source:
    """A table of samples. A row's real time is up to `lag_seconds` after its `at`."""

    table: Table
    lag_seconds: float


RAW = Source(SAMPLES, 0.0)
BY_MINUTE = Source(MINUTES, MINUTE)


@dataclass(frozen=True)
class Series:
    """A stored series: whose it is, and which."""

    id: int
    engine_id: int
    key: SeriesKey
    kind: str


@dataclass(frozen=True)
class Row:
    """A sample to write."""

    series_id: int
    at: float
    value: float
    total: float


async def engine_ids(session: AsyncSession) -> dict[str, int]:
    """Engine name -> id."""
    rows = await session.execute(select(EngineRow.name, EngineRow.id))
    return dict(rows.all())


async def series_of(
    session: AsyncSession, engines: Collection[int], names: Collection[str] | None = None
) -> list[Series]:
    """The series of some engines, all or those with one of `names`."""
    query = select(SeriesRow).where(SeriesRow.engine_id.in_(engines)).order_by(SeriesRow.id)
    if names is not None:
        query = query.where(SeriesRow.name.in_(names))
    return [_series(row) for row in await session.scalars(query)]


async def add_series(session: AsyncSession, engine_id: int, kinds: Mapping[SeriesKey, str]) -> dict[SeriesKey, int]:
    """Make series that are not there yet; the ids of all of `kinds`."""
    rows = [
        {"engine_id": engine_id, "name": key.name, "labels": labels_text(key), "kind": kind}
        for key, kind in kinds.items()
    ]
    await _insert_or(session, Base.metadata.tables["series"], rows, ("engine_id", "name", "labels"), ())
    return {series.key: series.id for series in await series_of(session, [engine_id])}


async def write(session: AsyncSession, rows: Sequence[Row]) -> None:
    """Store samples, and each as the newest of its minute."""
    await _insert_or(session, SAMPLES, [_values(row, row.at) for row in rows], ("series_id", "at"), ("value", "total"))
    minutes = {(row.series_id, _minute(row.at)): _values(row, _minute(row.at)) for row in rows}
    await _insert_or(session, MINUTES, list(minutes.values()), ("series_id", "at"), ("value", "total"))


async def begin_minutes(session: AsyncSession, rows: Sequence[Row]) -> None:
    """Store first samples as the end of the minute before, where that has none.

    A minute keeps only its last sample; without this, what a counter gained in its first minute would
    be lost to long windows.
    """
    values = [_values(row, _minute(row.at) - MINUTE) for row in rows]
    await _insert_or(session, MINUTES, values, ("series_id", "at"), ())


async def newest(session: AsyncSession, series: Collection[int], source: Source = RAW) -> dict[int, Point]:
    """The last sample of each series."""
    return await _edge(session, series, source, select(func.max(source.table.c.at)))


async def before(
    session: AsyncSession, series: Collection[int], source: Source, at: float, not_before: float
) -> dict[int, Point]:
    """The last sample of each series in `[not_before, at]`."""
    table = source.table.c
    limits = (table.at <= at - source.lag_seconds, table.at >= not_before - source.lag_seconds)
    return await _edge(session, series, source, select(func.max(table.at)).where(*limits))


async def last_until(
    session: AsyncSession, series: Collection[int], source: Source, at: float, not_before: float
) -> dict[int, Point]:
    """Like `before`, for the end of a window: a minute that is not over yet counts."""
    table = source.table.c
    limits = (table.at <= at, table.at >= not_before - source.lag_seconds)
    return await _edge(session, series, source, select(func.max(table.at)).where(*limits))


async def last_in_buckets(
    session: AsyncSession, series: Collection[int], source: Source, grid: Grid
) -> dict[int, dict[int, Point]]:
    """The last sample of each series in each bucket that has one: series id -> bucket -> sample."""
    table, lag = source.table.c, source.lag_seconds
    # Minus a hair, as a sample on an edge ends the bucket before it.
    bucket = _whole(session, (table.at + (lag - grid.from_ - 1e-6)) / grid.step)
    last = (
        select(table.series_id, func.max(table.at).label("at"))
        .where(table.series_id.in_(series), table.at > grid.from_ - lag, table.at <= grid.to)
        .group_by(table.series_id, bucket)
        .subquery()
    )
    query = select(table.series_id, table.at, table.value, table.total).join(
        last, and_(last.c.series_id == table.series_id, last.c.at == table.at)
    )
    query = query.order_by(table.series_id, table.at)
    found: dict[int, dict[int, Point]] = {}
    for series_id, at, value, total in await session.execute(query):
        point = Point(min(at + lag, grid.to), value, total)
        index = min(int((point.at - grid.from_ - 1e-6) // grid.step), grid.count - 1)
        found.setdefault(series_id, {})[index] = point
    return found


async def first_after(
    session: AsyncSession, series: Collection[int], source: Source, at: float, to: float
) -> dict[int, Point]:
    """The first sample of each series in `(at, to]`."""
    table = source.table.c
    limits = (table.at > at - source.lag_seconds, table.at <= to)
    return await _edge(session, series, source, select(func.min(table.at)).where(*limits))


async def last_below(session: AsyncSession, series_id: int, total: float, source: Source) -> float | None:
    """The last time the series' total was below `total`."""
    table = source.table.c
    query = select(func.max(table.at)).where(table.series_id == series_id, table.total < total)
    at: float | None = await session.scalar(query)
    return None if at is None else at + source.lag_seconds


def labels_text(key: SeriesKey) -> str:
    """Labels as the text that makes a series unique."""
    return json.dumps(dict(key.labels), sort_keys=True, separators=(",", ":"))


def _series(row: SeriesRow) -> Series:
    labels = json.loads(row.labels)
    return Series(row.id, row.engine_id, SeriesKey(row.name, tuple(labels.items())), row.kind)


def _minute(at: float) -> float:
    return at // MINUTE * MINUTE


def _values(row: Row, at: float) -> dict[str, float]:
    return {"series_id": row.series_id, "at": at, "value": row.value, "total": row.total}


def _whole(session: AsyncSession, number: ColumnElement[Any]) -> ColumnElement[Any]:
    """A positive number without its fraction: a cast rounds on PostgreSQL, SQLite may lack floor()."""
    if session.get_bind().dialect.name == "postgresql":
        return func.floor(number)
    return cast(number, Integer)


async def _edge(
    session: AsyncSession, series: Collection[int], source: Source, edge: Select[tuple[float]]
) -> dict[int, Point]:
    """The sample of each series at the time that `edge` picks; one look into the key per series."""
    table = source.table.c
    picked = edge.where(table.series_id == SeriesRow.id).scalar_subquery()
    edges = select(SeriesRow.id, picked.label("at")).where(SeriesRow.id.in_(series)).subquery()
    query = select(table.series_id, table.at, table.value, table.total).join(
        edges, and_(edges.c.id == table.series_id, edges.c.at == table.at)
    )
    rows = await session.execute(query)
    return {id_: Point(at + source.lag_seconds, value, total) for id_, at, value, total in rows}


async def _insert_or(
    session: AsyncSession, table: Table, rows: Sequence[Mapping[str, Any]], key: Iterable[str], update: Sequence[str]
) -> None:
    """Insert; rows whose key is there get the columns `update`, or are left alone when there are none."""
    if not rows:
        return
    dialect = postgresql if session.get_bind().dialect.name == "postgresql" else sqlite
    statement = dialect.insert(table)
    if update:
        changes = {name: statement.excluded[name] for name in update}
        statement = statement.on_conflict_do_update(index_elements=list(key), set_=changes)
    else:
        statement = statement.on_conflict_do_nothing(index_elements=list(key))
    await session.execute(statement, list(rows))
