"""What the engines' running processes were started with."""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from app.store.models import EngineRow, ProfileVersionRow


async def running_flag(session: AsyncSession, engines: Collection[int], flag: str) -> str | None:
    """The value of an engine flag in the first running profile version that sets it."""
    query = (
        select(ProfileVersionRow.flags)
        .join(EngineRow, EngineRow.running_version_id == ProfileVersionRow.id)
        .where(EngineRow.id.in_(engines))
        .order_by(EngineRow.id)
    )
    values = [flags[flag] for flags in await session.scalars(query) if flag in flags]
    return str(values[0]) if values else None
