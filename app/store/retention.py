"""What is kept how long, and the loop that removes the rest."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

import structlog
from sqlalchemy import bindparam, delete, select

from app.store.database import Database
from app.store.models import MarkRow, ScrapeRow, SeriesRow
from app.store.queries import requests
from app.store.queries.samples import MINUTES, SAMPLES

log = structlog.get_logger(__name__)

HOUR, DAY = 3600.0, 86400.0
RAW_SECONDS = 3 * HOUR
MINUTE_SECONDS = 15 * DAY
REQUEST_SECONDS = 15 * DAY
#: One window more than the longest chart, so that its first point has something to count from.
SLACK_SECONDS = HOUR / 4
PAUSE_SECONDS = 300.0
#: Series thinned in one transaction; writers wait no longer than that takes.
SERIES_PER_TRANSACTION = 50


class RetentionLoop:
    """Removes samples that are older than any chart reaches, and records of requests."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def run(self) -> None:
        """Thin every few minutes until cancelled."""
        while True:
            await self.thin(time.time())
            await asyncio.sleep(PAUSE_SECONDS)

    async def thin(self, now: float) -> None:
        """Remove what is too old at `now`."""
        raw_before, minute_before = now - RAW_SECONDS - SLACK_SECONDS, now - MINUTE_SECONDS - SLACK_SECONDS
        async with self._database.session() as session:
            ids = (await session.scalars(select(SeriesRow.id))).all()
        for start in range(0, len(ids), SERIES_PER_TRANSACTION):
            await self._thin_series(ids[start : start + SERIES_PER_TRANSACTION], raw_before, minute_before)
        async with self._database.begin() as session:
            await session.execute(delete(ScrapeRow).where(ScrapeRow.last_at < minute_before))
            await session.execute(delete(MarkRow).where(MarkRow.at < minute_before))
            await requests.delete_before(session, now - REQUEST_SECONDS)
        log.debug("thinned", series=len(ids), raw_before=raw_before, minute_before=minute_before)

    async def _thin_series(self, ids: Sequence[int], raw_before: float, minute_before: float) -> None:
        """One delete per series: each is one stretch of the key."""
        async with self._database.begin() as session:
            for table, before in ((SAMPLES, raw_before), (MINUTES, minute_before)):
                statement = delete(table).where(table.c.series_id == bindparam("id"), table.c.at < before)
                await session.execute(statement, [{"id": id_} for id_ in ids])
