"""Completes the records of requests: what of their cached tokens was in VRAM, what in host memory."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence

from sqlalchemy.ext.asyncio import AsyncSession

from app.derive.request_origin import Cached, Totals, split
from app.events import Event, Events
from app.store.database import Database
from app.store.models import RequestRow
from app.store.queries import request_origins as queries
from app.store.queries import samples

PAUSE_SECONDS = 5.0
#: The page that a request is counted on was read by then, or never will be.
WAIT_SECONDS = 60.0
#: Before its first token a request may have been in prefill for long.
LOOK_BACK_SECONDS = 2 * 3600.0
METRIC = "prompt_tokens_by_source"
AT_ONCE = 500


class RequestOrigins:
    """One loop; writes two columns of records that end with neither."""

    def __init__(self, database: Database, events: Events) -> None:
        self._database = database
        self._events = events

    async def run(self) -> None:
        """Complete what can be, every few seconds, until cancelled."""
        while True:
            await self.complete(time.time())
            await asyncio.sleep(PAUSE_SECONDS)

    async def complete(self, now: float) -> int:
        """Complete the records that ended in the last minute; how many were."""
        async with self._database.session() as session:
            rows = await queries.without(session, now - WAIT_SECONDS, AT_ONCE)
            counters = await _counters(session, rows, now) if rows else {}
        found = []
        for row in rows:
            told = split(_cached(row), counters.get(row.engine or "", {}))
            if told is not None:
                found.append({"row_id": row.id, "vram": told[0], "host": told[1]})
        if found:
            await asyncio.shield(self._store(found))  # not left half done when the deck ends
        return len(found)

    async def _store(self, found: Sequence[Mapping[str, int]]) -> None:
        async with self._database.begin() as session:
            await queries.store(session, found)
        self._events.publish(Event("request", "", {"count": len(found)}))


async def _counters(
    session: AsyncSession, rows: Sequence[RequestRow], now: float
) -> Mapping[str, Mapping[str, Totals]]:
    """Engine name -> source -> what was read of it, as far back as these requests reach."""
    ids = await samples.engine_ids(session)
    names = {ids[row.engine]: row.engine for row in rows if row.engine in ids}
    series = await samples.series_of(session, names, (METRIC,))
    since = max(min(row.at for row in rows), now - LOOK_BACK_SECONDS) - 60.0
    points = await queries.totals_since(session, [one.id for one in series], since)
    found: dict[str, dict[str, Totals]] = defaultdict(dict)
    for one in series:
        at = points.get(one.id, [])
        found[names[one.engine_id]][one.key.label("source") or ""] = Totals([t for t, _ in at], [v for _, v in at])
    return found


def _cached(row: RequestRow) -> Cached:
    """Counted after it was sent to the engine, and before its first token or its end."""
    end = row.at + (row.total_seconds if row.first_byte_seconds is None else row.first_byte_seconds)
    return Cached(row.id, row.at + (row.queue_seconds or 0.0), end, row.cached_tokens or 0)
