"""Databases for tests: SQLite always, and a PostgreSQL of our own where the server is installed."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import create_async_engine

from app.store.database import Database
from app.store.models import EngineRow, FleetRow, ProfileRow, ProfileVersionRow

T0 = 1_800_000_000.0

SERVER_USER = "postgres"


def postgres_binaries() -> Path | None:
    """Where initdb is; the newest of several. None when there is no server."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    on_path = shutil.which("initdb")
    if found:
        return found[-1].parent
    return Path(on_path).parent if on_path else None


def kinds() -> list[str]:
    """The databases that tests can be run on here."""
    return ["sqlite", "postgresql"] if postgres_binaries() else ["sqlite"]


def _binaries() -> Path:
    found = postgres_binaries()
    if found is None:
        raise RuntimeError("PostgreSQL is not installed")
    return found


@contextmanager
def away(database: Database) -> Iterator[None]:
    """Meanwhile every statement fails, as on a database that is locked."""

    def refuse(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        raise OperationalError(statement, None, Exception("database is locked"))

    event.listen(database.engine.sync_engine, "before_cursor_execute", refuse)
    try:
        yield
    finally:
        event.remove(database.engine.sync_engine, "before_cursor_execute", refuse)


@dataclass(frozen=True)
class Postgres:
    """A server of our own."""

    url: str
    data: Path
    options: str

    def start(self) -> None:
        self._control("-l", self.data / "log", "-o", self.options, "start")

    def stop(self) -> None:
        """At once, whoever is connected."""
        self._control("-m", "immediate", "stop")

    @contextmanager
    def away(self) -> Iterator[None]:
        """Meanwhile it does not run."""
        self.stop()
        try:
            yield
        finally:
            self.start()

    def _control(self, *arguments: str | Path) -> None:
        _run(_binaries() / "pg_ctl", "-D", self.data, "-w", *arguments)


@contextmanager
def postgres_server() -> Iterator[Postgres]:
    """A server listening on a free local port, its files in a temporary directory."""
    port, data = _free_port(), Path(tempfile.mkdtemp(prefix="tierdeck-postgres-"))
    if os.geteuid() == 0:  # the server refuses to run as root
        shutil.chown(data, SERVER_USER)
    _run(_binaries() / "initdb", "-D", data, "-U", SERVER_USER, "-A", "trust", "-E", "UTF8", "--no-sync")
    options = f"-p {port} -k {data} -c listen_addresses=127.0.0.1 -c fsync=off"
    server = Postgres(f"postgresql+asyncpg://{SERVER_USER}@127.0.0.1:{port}/postgres", data, options)
    server.start()
    try:
        yield server
    finally:
        server.stop()
        shutil.rmtree(data)


@contextmanager
def fallible(kind: str, directory: Path) -> Iterator[tuple[str, Callable[[Database], AbstractContextManager[None]]]]:
    """The URL of an empty database, and how it is away for a while."""
    if kind == "sqlite":
        yield f"sqlite+aiosqlite:///{directory}/deck.db", away
    else:
        with postgres_server() as server:
            yield server.url, lambda _database: server.away()


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """The one PostgreSQL server of this test run."""
    with postgres_server() as server:
        yield server.url


@pytest.fixture(params=kinds())
async def database(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Database]:
    """An empty, migrated database of each kind."""
    if request.param == "sqlite":
        url = f"sqlite+aiosqlite:///{tmp_path / 'deck.db'}"
    else:
        url = await _new_postgres_database(request.getfixturevalue("postgres_url"))
    database = Database(url)
    await database.migrate()
    yield database
    await database.close()


async def add_engine(database: Database, name: str = "e1") -> int:
    """An engine of its own fleet, running its own profile; its id."""
    async with database.begin() as session:
        profile = ProfileRow(name=f"p-{name}", created_at=T0)
        session.add(profile)
        await session.flush()
        version = ProfileVersionRow(
            profile_id=profile.id,
            number=1,
            created_at=T0,
            author="t",
            comment="",
            kv_transfer_config={},
            flags={"kv-cache-dtype": "fp8"},
            environment={},
        )
        fleet = FleetRow(name=f"f-{name}", model="m", served_model_name="m", interpreter="python", created_at=T0)
        session.add_all([version, fleet])
        await session.flush()
        engine = EngineRow(
            fleet_id=fleet.id,
            name=name,
            port=1,
            profile_version_id=version.id,
            running_version_id=version.id,
            created_at=T0,
        )
        session.add(engine)
        await session.flush()
        return engine.id


@pytest.fixture
async def sqlite_database(tmp_path: Path) -> AsyncIterator[Database]:
    """An empty, migrated SQLite database, where the kind does not matter."""
    database = Database(f"sqlite+aiosqlite:///{tmp_path / 'deck.db'}")
    await database.migrate()
    yield database
    await database.close()


async def _new_postgres_database(server: str) -> str:
    name = f"deck_{uuid.uuid4().hex}"
    engine = create_async_engine(server, isolation_level="AUTOCOMMIT")
    async with engine.connect() as connection:
        await connection.execute(text(f"CREATE DATABASE {name}"))
    await engine.dispose()
    return server.rsplit("/", 1)[0] + f"/{name}"


def _run(*command: str | Path) -> None:
    as_user = ["runuser", "-u", SERVER_USER, "--"] if os.geteuid() == 0 else []
    subprocess.run([*as_user, *map(str, command)], check=True, stdout=subprocess.DEVNULL, cwd="/")


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port
