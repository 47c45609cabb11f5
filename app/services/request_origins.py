"""Completes the records of requests: their tokens, and what of the cached ones was in VRAM, what in host memory.

An engine with a host tier tells both of each request. Of another one, its counters around the request say it.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

from sqlalchemy.ext.asyncio import AsyncSession

from app.derive.request_origin import Cached, Totals, split
from app.events import Event, Events
from app.store.database import Database
from app.store.models import RequestRow
from app.store.queries import request_origins as queries
from app.store.queries import samples
from engine.served import ServedRequest

PAUSE_SECONDS = 5.0
#: The page that a request is counted on was read by then, or never will be.
WAIT_SECONDS = 60.0
#: An engine writes down what it served every two seconds.
SETTLE_SECONDS = 4.0
#: Before its first token a request may have been in prefill for long.
LOOK_BACK_SECONDS = 2 * 3600.0
METRIC = "prompt_tokens_by_source"
AT_ONCE = 500


Served = Callable[[str], Mapping[str, ServedRequest]]


class RequestOrigins:
    """One loop; writes the counts of records that end without. `served` gives what an engine, by its name, has told
    of each request; it may wait for the disk.
    """

    def __init__(self, database: Database, events: Events, served: Served) -> None:
        self._database = database
        self._events = events
        self._served = served

    async def run(self) -> None:
        """Complete what can be, every few seconds, until cancelled."""
        while True:
            await self.complete(time.time())
            await asyncio.sleep(PAUSE_SECONDS)

    async def complete(self, now: float) -> int:
        """Complete the records that ended in the last minute; how many were."""
        return await self._complete_by_what_was_told(now) + await self._complete_by_counters(now)

    async def _complete_by_what_was_told(self, now: float) -> int:
        async with self._database.session() as session:
            rows = await queries.untold(session, now - WAIT_SECONDS, now - SETTLE_SECONDS, AT_ONCE)
        engines = sorted({row.engine for row in rows if row.engine})
        told = dict(zip(engines, await asyncio.gather(*map(self._told_by, engines)), strict=True))
        pairs = [(row, told[row.engine or ""].get(row.request_id or "")) for row in rows]
        found = [counts for row, one in pairs if one is not None and (counts := _counts(row, one))]
        if found:
            await asyncio.shield(self._store(found))  # not left half done when the deck ends
        return len(found)

    async def _told_by(self, engine: str) -> Mapping[str, ServedRequest]:
        return await asyncio.to_thread(self._served, engine)

    async def _complete_by_counters(self, now: float) -> int:
        async with self._database.session() as session:
            rows = await queries.without(session, now - WAIT_SECONDS, AT_ONCE)
            counters = await _counters(session, rows, now) if rows else {}
        found = []
        for row in rows:
            told = split(_cached(row), counters.get(row.engine or "", {}))
            if told is not None:
                found.append({"row_id": row.id, "input": None, "output": None, "vram": told[0], "host": told[1]})
        if found:
            await asyncio.shield(self._store(found))
        return len(found)

    async def _store(self, found: Sequence[Mapping[str, int | None]]) -> None:
        async with self._database.begin() as session:
            await queries.store(session, found)
        self._events.publish(Event("request", "", {"count": len(found)}))


def _counts(row: RequestRow, told: ServedRequest) -> dict[str, int | None] | None:
    """What is new in `told`, if anything. Of an answer that says another sum, the parts are not known."""
    agrees = row.cached_tokens in (None, told.vram_tokens + told.host_tokens)
    if row.input_tokens is not None and not agrees:
        return None
    vram, host = (told.vram_tokens, told.host_tokens) if agrees else (None, None)
    return {"row_id": row.id, "input": told.input_tokens, "output": told.output_tokens, "vram": vram, "host": host}


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
