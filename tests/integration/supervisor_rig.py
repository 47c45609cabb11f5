"""A deck's supervisor over a database of its own, with the fake engine in place of vLLM."""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.config import Settings
from app.events import Events
from app.services.engines import Engines
from app.services.fleets import Fleets
from app.services.planning import Planning
from app.services.preview import Previews
from app.services.profiles import Profiles
from app.services.rollouts import Rollouts
from app.store.database import Database
from app.store.models import Base, EngineRow, FleetRow, ProfileRow, ProfileVersionRow
from app.supervisor.checks import port_is_free
from app.supervisor.devices import DeviceMemory
from app.supervisor.processes import process_table, read_entry
from app.supervisor.states import EngineState

FAKE = ("-m", "tests.fakes.fake_engine")
ROOT = Path(__file__).resolve().parents[2]
SETTLED = frozenset({EngineState.READY, EngineState.FAILED})
READY = frozenset({EngineState.READY})
STOPPED = frozenset({EngineState.STOPPED})
LIMIT = 20.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def settings(data_dir: Path, **changes: Any) -> Settings:
    values: dict[str, Any] = {
        "data_dir": data_dir,
        "stop_grace_seconds": 1.0,
        "restart_wait_seconds": 0.2,
        "drain_timeout_seconds": 5.0,
        "start_timeout_seconds": 15.0,
    }
    return Settings(**{**values, **changes})


@dataclass(frozen=True)
class Engine:
    """What the database says of the one engine, `one`."""

    flags: dict[str, Any]
    model: str = "fake/model"
    port: int = 0
    wanted: str = "stopped"
    kv_transfer_config: dict[str, Any] | None = None
    environment: dict[str, Any] | None = None
    interpreter: str = sys.executable


async def create_database(config: Settings, engine: Engine) -> Database:
    database = Database(config.resolved_database_url)
    async with database.engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    async with database.begin() as session:
        profile = ProfileRow(name="demo", created_at=1.0)
        fleet = FleetRow(
            name="fleet",
            model=engine.model,
            served_model_name="fake",
            interpreter=engine.interpreter,
            created_at=1.0,
        )
        session.add_all([profile, fleet])
        await session.flush()
        version = ProfileVersionRow(
            profile_id=profile.id,
            number=1,
            created_at=1.0,
            author="test",
            kv_transfer_config=engine.kv_transfer_config or {},
            flags=engine.flags,
            environment={"PYTHONPATH": str(ROOT), **(engine.environment or {})},
        )
        session.add(version)
        await session.flush()
        session.add(
            EngineRow(
                fleet_id=fleet.id,
                name="one",
                port=engine.port or free_port(),
                profile_version_id=version.id,
                wanted=engine.wanted,
                created_at=1.0,
            )
        )
    return database


async def add_version(database: Database, flags: dict[str, Any], config: dict[str, Any] | None = None) -> int:
    async with database.begin() as session:
        row = ProfileVersionRow(
            profile_id=1,
            number=2,
            created_at=2.0,
            author="test",
            kv_transfer_config=config or {},
            flags=flags,
            environment={"PYTHONPATH": str(ROOT)},
        )
        session.add(row)
        await session.flush()
        return row.id


@dataclass(frozen=True)
class Rig:
    """A running supervisor."""

    engines: Engines
    database: Database
    config: Settings
    events: Events

    @property
    def port(self) -> int:
        return self.engines.status("one").port

    @property
    def fleets(self) -> Fleets:
        profiles = Profiles(self.database, self.events)
        return Fleets(self.config, self.database, self.events, self.engines, profiles)

    @property
    def rollouts(self) -> Rollouts:
        """None of which runs."""
        profiles = Profiles(self.database, self.events)
        planning = Planning(self.database, profiles, self.engines)
        previews = Previews(self.config, self.database, self.engines, profiles, planning, self.fleets)
        return Rollouts(self.database, self.events, self.engines, profiles, previews, self.fleets)

    async def until(self, states: frozenset[EngineState]) -> Any:
        return await self.engines.wait_for("one", states, LIMIT)


@contextmanager
def taken(*ports: int) -> Iterator[None]:
    """Somebody else listens there."""
    with ExitStack() as stack:
        for port in ports:
            thief = stack.enter_context(socket.socket())
            thief.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            thief.bind(("127.0.0.1", port))
            thief.listen()
        yield


def free_ports(count: int) -> list[int]:
    """Free ones in a row."""
    while True:
        first = free_port()
        ports = list(range(first, first + count))
        if first + count < 65536 and all(port_is_free("127.0.0.1", port) for port in ports):
            return ports


async def give_range(rig: Rig, low: int, high: int) -> None:
    async with rig.database.begin() as session:
        fleet = await session.get_one(FleetRow, 1)
        fleet.port_from, fleet.port_to = low, high


@asynccontextmanager
async def supervising(
    config: Settings, database: Database, devices: DeviceMemory | None = None, entry: tuple[str, ...] = FAKE
) -> AsyncIterator[Rig]:
    """A supervisor that is closed at the end; the engines follow the settings."""
    events = Events()
    engines = Engines(config, database, events, entry=entry, devices=devices)
    try:
        await engines.open()
        yield Rig(engines, database, config, events)
    finally:
        await engines.close()


@asynccontextmanager
async def deck(data_dir: Path, engine: Engine, **changes: Any) -> AsyncIterator[Rig]:
    """Database and supervisor; no engine outlives it."""
    config = settings(data_dir, engines_outlive_deck=False, **changes)
    database = await create_database(config, engine)
    try:
        async with supervising(config, database) as rig:
            yield rig
    finally:
        await database.close()


def marked(marker: str) -> list[int]:
    return [entry.process.pid for entry in process_table() if entry.marker == marker and entry.alive]


def port_is_open(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


async def marker_of(rig: Rig) -> str:
    """The recorded marker of engine `one`; empty when no process of it is left."""
    async with rig.database.session() as session:
        row = await session.get(EngineRow, 1)
    return row.marker or "" if row is not None else ""


async def processes_of(rig: Rig) -> list[int]:
    """Living processes of engine `one`."""
    marker = await marker_of(rig)
    return marked(marker) if marker else []


def is_alive(pid: int) -> bool:
    """False for a zombie too: it may be somebody else's to collect."""
    entry = read_entry(pid)
    return entry is not None and entry.alive


@asynccontextmanager
async def prepared(data_dir: Path, engine: Engine) -> AsyncIterator[tuple[Settings, Database]]:
    """Settings under which engines outlive the deck, and a database; nothing outlives the test."""
    config = settings(data_dir)
    database = await create_database(config, engine)
    try:
        yield config, database
    finally:
        async with database.session() as session:
            row = await session.get(EngineRow, 1)
        await database.close()
        for pid in marked(row.marker) if row is not None and row.marker else []:
            os.kill(pid, signal.SIGKILL)
