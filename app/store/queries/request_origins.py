"""What is needed to tell where a request's cached tokens were."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import BindParameter, Integer, bindparam, func, or_, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from app.store.models import RequestRow
from app.store.queries.requests import TABLE
from app.store.queries.samples import SAMPLES

#: Rows are found by their number: so many of the newest are looked at, not the whole table.
LOOKED_AT = 5000


async def without(session: AsyncSession, ended_after: float, limit: int) -> Sequence[RequestRow]:
    """The newest requests with tokens from cache of which it is not known where they were."""
    newest_id = await session.scalar(select(func.max(RequestRow.id))) or 0
    query = (
        select(RequestRow)
        .where(RequestRow.cached_tokens > 0, RequestRow.vram_tokens.is_(None), RequestRow.engine.is_not(None))
        .where(RequestRow.id > newest_id - LOOKED_AT, RequestRow.at + RequestRow.total_seconds > ended_after)
        .order_by(RequestRow.id.desc())
        .limit(limit)
    )
    return (await session.scalars(query)).all()


async def untold(session: AsyncSession, ended_after: float, ended_before: float, limit: int) -> Sequence[RequestRow]:
    """The newest requests that ended in between, that an engine has a name for, and whose counts are not all known."""
    newest_id = await session.scalar(select(func.max(RequestRow.id))) or 0
    ended = RequestRow.at + RequestRow.total_seconds
    query = (
        select(RequestRow)
        .where(RequestRow.request_id.is_not(None), RequestRow.engine.is_not(None))
        .where(or_(RequestRow.input_tokens.is_(None), RequestRow.vram_tokens.is_(None)))
        .where(RequestRow.id > newest_id - LOOKED_AT, ended > ended_after, ended <= ended_before)
        .order_by(RequestRow.id.desc())
        .limit(limit)
    )
    return (await session.scalars(query)).all()


async def store(session: AsyncSession, found: Sequence[Mapping[str, int | None]]) -> None:
    """Complete records: `row_id`, tokens of `input` and `output`, and of the input from `vram` and `host`. None is not
    known; what is known already stays.
    """
    values: dict[str, Any] = {
        name: func.coalesce(TABLE.c[name], found)
        for name, found in {
            "input_tokens": _given("input"),
            "output_tokens": _given("output"),
            "cached_tokens": _given("vram") + _given("host"),
            "vram_tokens": _given("vram"),
            "host_tokens": _given("host"),
        }.items()
    }
    await session.execute(update(TABLE).where(TABLE.c.id == bindparam("row_id")).values(values), list(found))


def _given(name: str) -> BindParameter[int | None]:
    return bindparam(name, type_=Integer())


async def totals_since(
    session: AsyncSession, series: Sequence[int], since: float
) -> Mapping[int, list[tuple[float, float]]]:
    """Times and totals of raw samples from `since` on, by series, oldest first."""
    columns = SAMPLES.c
    query = select(columns.series_id, columns.at, columns.total).where(columns.series_id.in_(series))
    found: dict[int, list[tuple[float, float]]] = {}
    for row in await session.execute(query.where(columns.at >= since).order_by(columns.series_id, columns.at)):
        found.setdefault(row.series_id, []).append((row.at, row.total))
    return found
