"""Records of requests at the door."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from sqlalchemy import Table, and_, delete, func, insert, or_, select
from sqlalchemy.ext.asyncio import AsyncSession

from app.store.models import RequestRow

#: Rows are written through the table: the mapper would cost more than the database.
TABLE = cast(Table, RequestRow.__table__)


@dataclass(frozen=True)
class Filter:
    """Which records: those that match everything that is given. `before`: an id, for the next page."""

    fleet: str | None = None
    engine: str | None = None
    outcome: str | None = None
    session: str | None = None
    before: int | None = None


async def add(session: AsyncSession, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write records, in the order in which they ended."""
    await session.execute(insert(TABLE), list(rows))


async def newest(session: AsyncSession, wanted: Filter, limit: int) -> Sequence[RequestRow]:
    """The newest records that match, newest first."""
    query = select(RequestRow).order_by(RequestRow.id.desc()).limit(limit)
    for name in ("fleet", "engine", "outcome", "session"):
        value = getattr(wanted, name)
        if value is not None:
            query = query.where(getattr(RequestRow, name) == value)
    if wanted.before is not None:
        query = query.where(RequestRow.id < wanted.before)
    return (await session.scalars(query)).all()


async def homes(session: AsyncSession, limit: int) -> Sequence[tuple[str, str]]:
    """Session and engine of the newest requests that had both, newest first."""
    query = (
        select(RequestRow.session, RequestRow.engine)
        .where(RequestRow.session.is_not(None), RequestRow.engine.is_not(None))
        .order_by(RequestRow.id.desc())
        .limit(limit)
    )
    return [(row.session, row.engine) for row in await session.execute(query)]


async def count_failed(session: AsyncSession, fleet: str, from_: float, to: float) -> int:
    """Requests to a fleet that ended in a window, refused, broken off by an engine, or cut by the deck's end."""
    ended = RequestRow.at + RequestRow.total_seconds
    failed = or_(
        RequestRow.outcome.in_(("upstream_closed", "upstream_error", "interrupted")),
        and_(RequestRow.outcome == "refused", RequestRow.status >= 500),
    )
    query = select(func.count()).where(RequestRow.fleet == fleet, RequestRow.at <= to, ended >= from_, failed)
    return int(await session.scalar(query) or 0)


async def delete_before(session: AsyncSession, at: float) -> None:
    """Remove records of requests that began before `at`."""
    await session.execute(delete(RequestRow).where(RequestRow.at < at))
