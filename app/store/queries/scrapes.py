"""Outcomes of scrapes as runs, and the marks on charts."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from sqlalchemy import func, or_, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from app.store.models import MarkRow, ScrapeRow


@dataclass(frozen=True)
class Run:
    """A stretch of time in which every scrape of an engine ended the same way."""

    id: int
    engine_id: int
    first_at: float
    last_at: float
    ok: bool
    reason: str


@dataclass(frozen=True)
class Mark:
    """Something that happened, for the charts."""

    engine_id: int | None
    at: float
    kind: str
    text: str


async def start_run(session: AsyncSession, engine_id: int, at: float, ok: bool, reason: str) -> Run:
    """Begin a run with its first scrape."""
    row = ScrapeRow(engine_id=engine_id, first_at=at, last_at=at, ok=ok, reason=reason)
    session.add(row)
    await session.flush()
    return _run(row)


async def extend_run(session: AsyncSession, run_id: int, at: float) -> None:
    """One more scrape ended the same way."""
    await session.execute(update(ScrapeRow).where(ScrapeRow.id == run_id).values(last_at=at))


async def runs_between(session: AsyncSession, engines: Collection[int], from_: float, to: float) -> list[Run]:
    """The runs that touch a window, by time."""
    query = (
        select(ScrapeRow)
        .where(ScrapeRow.engine_id.in_(engines), ScrapeRow.last_at >= from_, ScrapeRow.first_at <= to)
        .order_by(ScrapeRow.first_at)
    )
    return [_run(row) for row in await session.scalars(query)]


async def last_ok(session: AsyncSession, engine_id: int) -> Run | None:
    """The newest run of scrapes that brought numbers."""
    query = select(ScrapeRow).where(ScrapeRow.engine_id == engine_id, ScrapeRow.ok.is_(True))
    row = await session.scalar(query.order_by(ScrapeRow.first_at.desc()).limit(1))
    return None if row is None else _run(row)


async def first_ok_at(session: AsyncSession, engines: Collection[int]) -> dict[int, float]:
    """Engine id -> time of its first scrape that brought numbers."""
    query = select(ScrapeRow.engine_id, func.min(ScrapeRow.first_at))
    query = query.where(ScrapeRow.engine_id.in_(engines), ScrapeRow.ok.is_(True)).group_by(ScrapeRow.engine_id)
    return dict((await session.execute(query)).all())


def add_mark(session: AsyncSession, mark: Mark) -> None:
    """Put a mark on the charts."""
    session.add(MarkRow(engine_id=mark.engine_id, at=mark.at, kind=mark.kind, text=mark.text))


async def marks_between(session: AsyncSession, engines: Collection[int], from_: float, to: float) -> list[Mark]:
    """The marks of some engines, and those of no engine, in a window."""
    query = (
        select(MarkRow)
        .where(or_(MarkRow.engine_id.in_(engines), MarkRow.engine_id.is_(None)), MarkRow.at >= from_, MarkRow.at <= to)
        .order_by(MarkRow.at)
    )
    return [Mark(row.engine_id, row.at, row.kind, row.text) for row in await session.scalars(query)]


def _run(row: ScrapeRow) -> Run:
    return Run(row.id, row.engine_id, row.first_at, row.last_at, row.ok, row.reason)
