"""What the database does when those who use it are cancelled."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event, text
from sqlalchemy.exc import SQLAlchemyError

from app.store.database import Database
from tests.databases import fallible, kinds


async def test_a_write_that_is_cancelled_locks_nobody_out(tmp_path: Path) -> None:
    """Cancelled in the middle of a statement, and its traceback kept, as the task keeps it: the next write gets in."""
    database = Database(f"sqlite+aiosqlite:///{tmp_path}/deck.db")
    reached, go_on = threading.Event(), threading.Event()

    def hold() -> int:
        reached.set()
        go_on.wait()
        return 1

    @event.listens_for(database.engine.sync_engine, "connect")
    def add_function(connection: Any, _record: Any) -> None:
        connection.create_function("hold", 0, hold)

    async def write(number: str) -> None:
        async with database.begin() as session:
            await session.execute(text("INSERT INTO numbers VALUES (2)"))
            await session.execute(text(f"SELECT {number} UNION ALL SELECT number FROM numbers"))

    async with database.begin() as session:
        await session.execute(text("CREATE TABLE numbers (number INTEGER)"))
    cancelled = asyncio.create_task(write("hold()"))
    await asyncio.to_thread(reached.wait)
    cancelled.cancel()
    go_on.set()
    outcome = await asyncio.gather(cancelled, return_exceptions=True)
    async with asyncio.timeout(5):
        await write("1")
    async with database.session() as session:
        assert (await session.scalars(text("SELECT number FROM numbers ORDER BY 1"))).all() == [2]
    assert isinstance(outcome[0], asyncio.CancelledError)
    await database.close()


@pytest.mark.parametrize("kind", kinds())
async def test_a_database_that_is_away_and_comes_back(tmp_path: Path, kind: str) -> None:
    """Meanwhile each try ends with the one kind of error that is waited out; then the first one works again."""
    with fallible(kind, tmp_path) as (url, away):
        database = Database(url)

        async def write(number: int) -> None:
            async with database.begin() as session:
                await session.execute(text(f"INSERT INTO numbers VALUES ({number})"))

        async def read() -> Sequence[int]:
            async with database.session() as session:
                return (await session.scalars(text("SELECT number FROM numbers ORDER BY 1"))).all()

        async with database.begin() as session:
            await session.execute(text("CREATE TABLE numbers (number INTEGER)"))
        for _ in range(2):
            with away(database):
                for attempt in (write(1), read(), write(2)):
                    with pytest.raises(SQLAlchemyError):
                        await attempt
            await write(3)
            with away(database):
                pass
            assert set(await read()) == {3}
        await database.close()
