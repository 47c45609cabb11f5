"""Records of the requests at the door: taken without waiting, written in batches, read by page and REST."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import structlog

from app.errors import InvalidInput
from app.events import Event, Events
from app.proxy.record import Outcome, Record
from app.proxy.usage import Usage
from app.store.database import Database
from app.store.models import RequestRow
from app.store.queries import requests as queries
from app.store.queries.requests import Filter

log = structlog.get_logger(__name__)

#: Held while the database is slow or away; at a thousand requests a second for twenty seconds.
MAX_HELD = 20_000
BATCH = 500
#: The most that a record waits for others to be written with.
GATHER_SECONDS = 0.5
HOMES_READ = 50_000
MAX_CHARACTERS = 256
COPIED = (
    "at",
    "path",
    "model",
    "fleet",
    "engine",
    "profile",
    "version",
    "session",
    "request_id",
    "status",
    "streams",
    "is_identical",
    "is_joined",
    "queue_seconds",
    "first_byte_seconds",
    "total_seconds",
    "sent_bytes",
)


@dataclass(frozen=True)
class RequestView:
    """One record as it is shown. Times in seconds; None = it did not come to that, or the engine did not say."""

    id: int
    at: float
    path: str
    model: str | None
    fleet: str | None
    engine: str | None
    profile: str | None
    version: int | None
    session: str | None
    request_id: str | None
    outcome: str
    status: int | None
    streams: bool
    is_identical: bool
    is_joined: bool
    input_tokens: int | None
    output_tokens: int | None
    cached_tokens: int | None
    vram_tokens: int | None
    host_tokens: int | None
    queue_seconds: float | None
    first_byte_seconds: float | None
    total_seconds: float
    sent_bytes: int


class Requests:
    """The ledger of the door."""

    def __init__(self, database: Database, events: Events) -> None:
        self._database = database
        self._events = events
        self._held: deque[dict[str, Any]] = deque()
        self._came = asyncio.Event()
        self._writing: asyncio.Task[None] | None = None
        self.dropped = 0
        """Records that could not be held until the database took them."""

    def keep(self, record: Record) -> None:
        """Take the record of a request that ended; never waits."""
        if len(self._held) >= MAX_HELD:
            self.dropped += 1
            return
        self._held.append(_values(record))
        self._came.set()

    async def run(self) -> None:
        """Write what comes, a batch at a time, until cancelled."""
        while True:
            await self._came.wait()
            await asyncio.sleep(GATHER_SECONDS)
            await self.flush()

    async def flush(self) -> None:
        """Write all that is held. What a fault of the database leaves is tried again the next time.

        A batch that is being written is finished, whoever is cancelled: a transaction that is left half
        done would keep the database locked while the deck ends.
        """
        self._came.clear()
        while self._held:
            self._writing = self._writing or asyncio.create_task(self._write(), name="write-requests")
            await asyncio.shield(self._writing)

    async def _write(self) -> None:
        batch = [self._held[index] for index in range(min(BATCH, len(self._held)))]
        try:
            async with self._database.begin() as session:
                await queries.add(session, batch)
        except Exception:
            self._came.set()
            raise
        finally:
            self._writing = None
        for _ in batch:
            self._held.popleft()
        self._events.publish(Event("request", "", {"count": len(batch)}))

    async def newest(self, wanted: Filter, limit: int) -> list[RequestView]:
        """The newest records that match, newest first. Raises InvalidInput."""
        if wanted.outcome is not None and wanted.outcome not in set(Outcome):
            raise InvalidInput(f"Write one of: {', '.join(Outcome)}.", path="outcome")
        async with self._database.session() as session:
            return [_view(row) for row in await queries.newest(session, wanted, limit)]

    async def homes(self) -> Sequence[tuple[str, str]]:
        """Sessions and the engines that served them, newest first."""
        async with self._database.session() as session:
            return await queries.homes(session, HOMES_READ)


def _values(record: Record) -> dict[str, Any]:
    values = {name: _kept(getattr(record, name)) for name in COPIED}
    vram_tokens, host_tokens = _by_source(record.usage)
    return {
        **values,
        "outcome": record.outcome.value,
        "input_tokens": record.usage.input_tokens,
        "output_tokens": record.usage.output_tokens,
        "cached_tokens": record.usage.cached_tokens,
        "vram_tokens": vram_tokens,
        "host_tokens": host_tokens,
    }


def _kept(value: Any) -> Any:
    """Clients write paths, models and sessions: one that a database refuses must not hold up the others."""
    return value[:MAX_CHARACTERS].replace("\0", "�") if isinstance(value, str) else value


def _by_source(usage: Usage) -> tuple[int | None, int | None]:
    """From VRAM and from host memory. An answer has their sum alone; when it is not 0, `RequestOrigins` finds out."""
    return (0, 0) if usage.cached_tokens == 0 else (None, None)


def _view(row: RequestRow) -> RequestView:
    return RequestView(**{name: getattr(row, name) for name in RequestView.__dataclass_fields__})
