"""The database: one async engine, SQLite (WAL) or PostgreSQL."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from alembic import command
from alembic.config import Config
from sqlalchemy import event
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, InvalidRequestError, OperationalError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker, create_async_engine

from app.config import PROJECT_ROOT
from app.errors import InvalidInput

#: Where the operator writes the URL; errors name it.
URL_VARIABLE = "TIERDECK_DATABASE_URL"

# aiosqlite prints every value of every statement at DEBUG; some of them are secrets
logging.getLogger("aiosqlite").setLevel(logging.INFO)


class _Connection(sqlite3.Connection):
    """Ends its transaction when it is closed.

    SQLite keeps a closed connection, its transaction and with it the lock on the whole database for as long as
    anybody still holds a cursor of it; the traceback of a task that was cancelled in a statement does.
    """

    def close(self) -> None:
        if self.in_transaction:
            self.rollback()
        super().close()


class Database:
    """Owns the connection pool. Open sessions with `session()` (read) or `begin()` (write).

    Whatever goes wrong with the database there is raised as SQLAlchemyError.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.engine = _create_engine(url)
        if self.engine.dialect.name == "sqlite":
            event.listen(self.engine.sync_engine, "connect", _set_sqlite_pragmas)
        self._sessions = async_sessionmaker(self.engine, expire_on_commit=False)

    @asynccontextmanager
    async def session(self) -> AsyncIterator[AsyncSession]:
        """A session for reading."""
        async with self._sessions() as session:
            await _connect(session)
            yield session

    @asynccontextmanager
    async def begin(self) -> AsyncIterator[AsyncSession]:
        """A session in one transaction: committed at the end, rolled back on an error."""
        async with self._sessions.begin() as session:
            await _connect(session)
            yield session

    async def check(self) -> None:
        """Connect once. Raises InvalidInput with the reason when that is not possible."""
        _make_parent_directory(self.url)
        try:
            async with self.engine.connect():
                return
        except Exception as error:  # each driver has errors of its own; whatever it was is told
            why = str(error).splitlines()[0].rstrip(".") or type(error).__name__
            raise InvalidInput(f"The database cannot be reached: {why}.", path=URL_VARIABLE) from error

    async def migrate(self) -> None:
        """Bring the schema to the newest revision; rows stay."""
        _make_parent_directory(self.url)
        await asyncio.to_thread(upgrade, self.url)

    async def close(self) -> None:
        """Close every connection."""
        await self.engine.dispose()


async def _connect(session: AsyncSession) -> None:
    """Drivers have errors of their own for a server that is away or just starts; callers know SQLAlchemy's alone."""
    try:
        await session.connection()
    except SQLAlchemyError:
        raise
    except Exception as error:
        raise OperationalError("connect", None, error) from error


def _create_engine(url: str) -> AsyncEngine:
    try:
        is_file = make_url(url).get_backend_name() == "sqlite"
        return create_async_engine(
            url,
            connect_args={"factory": _Connection} if is_file else {},
            pool_pre_ping=not is_file,  # a server that was restarted has forgotten the connections of before
            hide_parameters=True,  # errors must not print secrets
        )
    except (ArgumentError, ImportError, InvalidRequestError) as error:
        raise InvalidInput(
            "Write a URL such as sqlite+aiosqlite:////var/lib/tierdeck/tierdeck.db "
            "or postgresql+asyncpg://user:password@host/database.",
            path=URL_VARIABLE,
        ) from error


def alembic_config(url: str) -> Config:
    """Alembic's configuration for `url`, without an ini file."""
    config = Config()
    config.set_main_option("script_location", str(PROJECT_ROOT / "migrations"))
    config.attributes["url"] = url
    return config


def upgrade(url: str, revision: str = "head") -> None:
    """Run the migrations up to `revision` (blocking; starts an event loop of its own)."""
    command.upgrade(alembic_config(url), revision)


def _make_parent_directory(url: str) -> None:
    parsed = make_url(url)
    if parsed.get_backend_name() == "sqlite" and parsed.database not in (None, ":memory:"):
        Path(str(parsed.database)).parent.mkdir(parents=True, exist_ok=True, mode=0o700)


def _set_sqlite_pragmas(connection: Any, _record: Any) -> None:
    cursor = connection.cursor()
    for pragma in ("journal_mode=WAL", "synchronous=NORMAL", "foreign_keys=ON", "busy_timeout=10000"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()
