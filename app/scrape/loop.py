"""The scrape loop: reads every living engine's metrics page on a fixed beat and stores it."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import httpx
import structlog
from sqlalchemy.ext.asyncio import AsyncSession

from app.config import Settings
from app.events import Event, Events
from app.scrape.counts import NOBODY, Watcher, counts_of
from app.scrape.fetch import EngineStatuses, Outcome, fetch
from app.scrape.ingest import Ingest, Memory, NewSample, ingest
from app.scrape.memory import load_memory
from app.scrape.names import SeriesKey
from app.store.database import Database
from app.store.queries import samples, scrapes
from app.supervisor.states import ALIVE
from app.supervisor.status import EngineStatus

log = structlog.get_logger(__name__)

#: The page has to come well before the next beat.
TIMEOUT_SHARE = 0.9
#: A run of equal outcomes ends when this many beats are missing.
RUN_GAP_BEATS = 3


@dataclass(frozen=True)
class Coverage:
    """How well the last page of an engine was understood: what it lacks, and names nobody reads."""

    at: float
    unavailable: tuple[str, ...]
    unknown: tuple[str, ...]


@dataclass(frozen=True)
class _Watched:
    """One engine as the loop remembers it. Replaced as a whole once a tick is stored."""

    engine_id: int
    memory: Memory
    ids: Mapping[SeriesKey, int]
    run: scrapes.Run | None = None
    coverage: Coverage | None = None


@dataclass(frozen=True)
class _Stored:
    """A tick's outcome for one engine, to be believed when the transaction is through."""

    outcome: Outcome
    watched: _Watched = field(repr=False)
    own_tokens: int
    """Of the deck's own, those that no page has counted yet."""


class ScrapeLoop:
    """Owns the scraping of all engines; the only writer of samples."""

    def __init__(
        self,
        settings: Settings,
        database: Database,
        events: Events,
        engines: EngineStatuses,
        watcher: Watcher = NOBODY,
    ) -> None:
        self._interval = settings.scrape_interval_seconds
        self._database = database
        self._events = events
        self._engines = engines
        self._watcher = watcher
        self._own_tokens: Counter[str] = Counter()
        """Not yet taken off: input tokens that the deck itself asked for."""
        self._watched: dict[str, _Watched] = {}
        self._client: httpx.AsyncClient | None = None

    async def run(self) -> None:
        """Scrape on the beat until cancelled. A beat that is late is left out, not made up for."""
        try:
            while True:
                await self.scrape_once(time.time())
                await asyncio.sleep(self._interval - time.time() % self._interval)
        finally:
            await self.close()

    async def close(self) -> None:
        """Give the connections back."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    async def scrape_once(self, now: float) -> None:
        """Scrape every engine that has a process, store what came in one transaction, tell the watchers."""
        client = self._open_client()
        statuses = [status for status in self._engines.statuses() if _has_process(status)]
        outcomes = await asyncio.gather(*(fetch(client, status) for status in statuses))
        self._take_own_tokens(statuses)  # told before the engine counts them, so no page holds more than these
        for outcome in outcomes:
            self._watcher.observe(outcome.status.name, now, counts_of(outcome.page))
        if not outcomes:
            return
        async with self._database.begin() as session:
            await self._meet(session, outcomes)
            stored = [await self._store(session, outcome, now) for outcome in self._known(outcomes)]
        for one in stored:
            self._believe(one, now)

    def coverage(self, engine: str) -> Coverage | None:
        """What the last page of an engine lacked and had in excess; None before the first page."""
        watched = self._watched.get(engine)
        return watched.coverage if watched else None

    def _take_own_tokens(self, statuses: list[EngineStatus]) -> None:
        for status in statuses:
            self._own_tokens[status.name] += self._watcher.take_own_tokens(status.name)

    def _open_client(self) -> httpx.AsyncClient:
        if self._client is None:
            # trust_env: a proxy of the environment has no business between the deck and its engines.
            self._client = httpx.AsyncClient(timeout=self._interval * TIMEOUT_SHARE, trust_env=False)
        return self._client

    async def _meet(self, session: AsyncSession, outcomes: list[Outcome]) -> None:
        """Recall engines that are new to this loop from the database."""
        new = [outcome.status.name for outcome in outcomes if outcome.status.name not in self._watched]
        if not new:
            return
        ids = await samples.engine_ids(session)
        for name in new:
            if name in ids:
                memory, series = await load_memory(session, ids[name])
                self._watched[name] = _Watched(ids[name], memory, series)

    def _known(self, outcomes: list[Outcome]) -> list[Outcome]:
        return [outcome for outcome in outcomes if outcome.status.name in self._watched]

    async def _store(self, session: AsyncSession, outcome: Outcome, now: float) -> _Stored:
        watched = self._watched[outcome.status.name]
        own_tokens = self._own_tokens[outcome.status.name]
        run = await self._store_run(session, watched, outcome, now)
        if outcome.page is None:
            seen = _Watched(watched.engine_id, watched.memory, watched.ids, run, watched.coverage)
            return _Stored(outcome, seen, own_tokens)
        taken = ingest(watched.memory, outcome.page, outcome.status.started_at, now, own_tokens)
        ids = await self._store_samples(session, watched, taken)
        coverage = Coverage(now, outcome.page.unavailable, outcome.page.unknown)
        return _Stored(outcome, _Watched(watched.engine_id, taken.memory, ids, run, coverage), taken.own_tokens)

    async def _store_run(self, session: AsyncSession, watched: _Watched, outcome: Outcome, now: float) -> scrapes.Run:
        run = watched.run
        if run is None or not _continues(run, outcome, now, self._interval * RUN_GAP_BEATS):
            return await scrapes.start_run(session, watched.engine_id, now, outcome.ok, outcome.reason)
        await scrapes.extend_run(session, run.id, now)
        return scrapes.Run(run.id, run.engine_id, run.first_at, now, run.ok, run.reason)

    async def _store_samples(self, session: AsyncSession, watched: _Watched, taken: Ingest) -> Mapping[SeriesKey, int]:
        ids = watched.ids
        missing = {sample.key: sample.kind for sample in taken.samples if sample.key not in ids}
        if missing:
            ids = await samples.add_series(session, watched.engine_id, missing)
        await samples.write(session, [_row(sample, ids) for sample in taken.samples])
        first = [sample for sample in taken.samples if sample.begins or sample.key in missing]
        await samples.begin_minutes(session, [_row(sample, ids) for sample in _first_of_each(first)])
        for mark in taken.marks:
            scrapes.add_mark(session, scrapes.Mark(watched.engine_id, mark.at, mark.kind, mark.text))
        return ids

    def _believe(self, stored: _Stored, now: float) -> None:
        """Remember what is stored, and say so."""
        status, outcome = stored.outcome.status, stored.outcome
        before = self._watched[status.name].run
        if before is None or before.ok != outcome.ok:
            log.info("scrape changed", engine=status.name, ok=outcome.ok, reason=outcome.reason)
        self._watched[status.name] = stored.watched
        self._own_tokens[status.name] = stored.own_tokens
        data = {"at": now, "ok": outcome.ok, "reason": outcome.reason}
        self._events.publish(Event("scrape", status.name, data))


def _has_process(status: EngineStatus) -> bool:
    return status.pid is not None and status.state in ALIVE


def _continues(run: scrapes.Run, outcome: Outcome, now: float, gap: float) -> bool:
    return run.ok == outcome.ok and run.reason == outcome.reason and now - run.last_at <= gap


def _first_of_each(found: list[NewSample]) -> list[NewSample]:
    """The earliest sample of each series."""
    return list({sample.key: sample for sample in sorted(found, key=lambda sample: -sample.at)}.values())


def _row(sample: NewSample, ids: Mapping[SeriesKey, int]) -> samples.Row:
    return samples.Row(ids[sample.key], sample.at, sample.value, sample.total)
