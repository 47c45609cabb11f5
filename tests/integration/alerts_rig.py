"""A deck's alerts on a real database, with a clock that tests move and a stub for the charts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from app.alerts.delivery import DeliveryLoop
from app.alerts.loop import AlertLoop
from app.alerts.sender import Sender
from app.events import Events
from app.services.alerts import Alerts, AlertView, WebhookDraft, WebhookView
from app.store.database import Database, upgrade
from app.store.models import EngineRow, FleetRow, ProfileRow, ProfileVersionRow, ScrapeRow
from app.supervisor.states import EngineState
from app.supervisor.status import EngineStatus

T0 = 1_700_000_000.0


@dataclass
class Clock:
    now: float = T0

    def __call__(self) -> float:
        return self.now


@dataclass(frozen=True)
class Origin:
    input_tokens: float | None
    host_tokens: float | None
    recomputed_tokens: float | None
    reason: str | None = None


@dataclass
class StubCharts:
    """Stands where the charts will: tests say what a window holds."""

    origin: Origin = Origin(0, 0, 0)
    error: Exception | None = None
    asked: list[tuple[float, float, str | None]] = field(default_factory=list)

    async def token_origin(self, window_seconds: float, now: float, fleet: str | None = None) -> Origin:
        self.asked.append((window_seconds, now, fleet))
        if self.error is not None:
            raise self.error
        return self.origin


@dataclass
class StubEngines:
    """Stands where the supervisor will: tests say how the engines are."""

    every: list[EngineStatus] = field(default_factory=list)

    def statuses(self, fleet: str | None = None) -> list[EngineStatus]:
        return [status for status in self.every if fleet in (None, status.fleet)]

    def set(self, name: str, state: EngineState, cause: str = "", **changes: Any) -> None:
        self.every = [status for status in self.every if status.name != name]
        self.every.append(replace(engine_status(name), state=state, cause=cause, **changes))


def engine_status(name: str) -> EngineStatus:
    """One that serves."""
    return EngineStatus(
        name=name,
        fleet="main",
        model="m",
        state=EngineState.READY,
        since=T0,
        cause="It serves.",
        base_url="http://127.0.0.1:8710",
        port=8710,
        pid=1,
        started_at=T0,
        wanted_profile="p",
        wanted_version=1,
        running_version=1,
    )


@dataclass
class Rig:
    """One deck process: everything but the database is new after a restart."""

    database: Database
    clock: Clock
    charts: StubCharts = field(default_factory=StubCharts)
    engines: StubEngines = field(default_factory=StubEngines)
    events: Events = field(default_factory=Events)
    timeout_seconds: float = 10.0

    def __post_init__(self) -> None:
        self.delivery = DeliveryLoop(
            self.database, self.events, sender=Sender(timeout_seconds=self.timeout_seconds), clock=self.clock
        )
        self.loop = AlertLoop(self.database, self.events, self.charts, self.engines, clock=self.clock)
        self.alerts = Alerts(self.database, self.events, self.delivery, clock=self.clock)

    def restarted(self) -> Rig:
        database = Database(self.database.url)
        return Rig(database, self.clock, self.charts, self.engines, timeout_seconds=self.timeout_seconds)

    async def alert(self) -> AlertView:
        """What the rule on host hits says now."""
        return (await self.alerts.alerts())[0]

    async def webhook(self, url: str, channel: str = "generic", **fields: object) -> WebhookView:
        draft = WebhookDraft(name=str(fields.pop("name", channel)), channel=channel, url=url, **fields)  # type: ignore[arg-type]
        return await self.alerts.save_webhook(draft)

    async def webhook_off(self, webhook: WebhookView) -> None:
        draft = WebhookDraft(webhook.name, webhook.channel, keyword=webhook.keyword, enabled=False)
        await self.alerts.save_webhook(draft, webhook.id)

    async def look(self, host: float | None, seconds: float = 60, ok: bool = True, tokens: float = 100_000) -> None:
        """Move the clock, scrape (or fail to), evaluate. `host` is the share of host tokens."""
        self.clock.now += seconds
        self.charts.origin = Origin(tokens, tokens * (host or 0), tokens * 0.35)
        await self.scraped(ok)
        await self.loop.evaluate_once(self.clock.now)

    async def scraped(self, ok: bool) -> None:
        async with self.database.begin() as session:
            reason = "" if ok else "connection refused"
            session.add(ScrapeRow(engine_id=1, first_at=self.clock.now, last_at=self.clock.now, ok=ok, reason=reason))

    async def fire(self) -> None:
        """Three bad minutes."""
        for _ in range(3):
            await self.look(0.0)

    async def resolve(self) -> None:
        """Three good minutes."""
        for _ in range(3):
            await self.look(0.6)


@cache
def migrated() -> bytes:
    """A database file with the newest schema; migrating takes longer than most of these tests."""
    with TemporaryDirectory() as directory:
        path = Path(directory) / "deck.db"
        upgrade(f"sqlite+aiosqlite:///{path}")
        return path.read_bytes()


@asynccontextmanager
async def opened_rig(directory: Path) -> AsyncIterator[Rig]:
    path = directory / "deck.db"
    path.write_bytes(await asyncio.to_thread(migrated))
    database = Database(f"sqlite+aiosqlite:///{path}")
    await add_fleet(database)
    rig = Rig(database, Clock())
    await rig.alerts.open()
    try:
        yield rig
    finally:
        await database.close()


async def add_fleet(database: Database) -> None:
    async with database.begin() as session:
        session.add(ProfileRow(id=1, name="p", created_at=T0))
        session.add(FleetRow(id=1, name="main", model="m", served_model_name="m", interpreter="python", created_at=T0))
        await session.flush()
        session.add(
            ProfileVersionRow(
                id=1, profile_id=1, number=1, created_at=T0, author="a", kv_transfer_config={}, flags={}, environment={}
            )
        )
        await session.flush()
        session.add(EngineRow(id=1, fleet_id=1, name="main-1", port=8710, profile_version_id=1, created_at=T0))
