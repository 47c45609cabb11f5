"""What is needed to tell where a request's cached tokens were."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import bindparam, func, select, update
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


async def store(session: AsyncSession, found: Sequence[Mapping[str, int]]) -> None:
    """Complete records: `row_id`, and tokens from `vram` and `host`."""
    statement = update(TABLE).where(TABLE.c.id == bindparam("row_id"), TABLE.c.vram_tokens.is_(None))
    values: dict[str, Any] = {"vram_tokens": bindparam("vram"), "host_tokens": bindparam("host")}
    await session.execute(statement.values(values), list(found))


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
