"""Writes that must not be lost when the database is away for a while, and must not hold up who asks for them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

import structlog
from sqlalchemy.exc import DataError, IntegrityError, ProgrammingError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncSession

from app.errors import in_short
from app.store.database import Database

log = structlog.get_logger(__name__)

Write = Callable[[AsyncSession], Awaitable[None]]

AGAIN_SECONDS = 5.0
#: Held at the most; of a longer outage the oldest are lost.
MOST_OWED = 1000


class Owed:
    """Does writes one after the other, each in a transaction; one that fails is tried again until it is done."""

    def __init__(self, database: Database, about: str) -> None:
        self._database = database
        self._about = about
        self._owed: deque[Write] = deque(maxlen=MOST_OWED)
        self._writing: asyncio.Task[None] | None = None
        self._retrying: asyncio.Task[None] | None = None

    async def write(self, write: Write) -> None:
        """Do it, behind what is owed already. Returns when that was tried once, whatever came of it."""
        self._owed.append(write)
        try:
            await self._settle()
        except SQLAlchemyError as error:
            self._warn("not written yet", error)
            self._retrying = self._retrying or asyncio.create_task(self._retry(), name=f"owed-{self._about}")

    async def write_now(self, write: Write) -> None:
        """Do it, behind what is owed already, or not at all. Raises SQLAlchemyError."""
        await self._settle()
        async with self._database.begin() as session:
            await write(session)

    async def close(self) -> None:
        """Try once more, then leave it."""
        if self._retrying is not None:
            self._retrying.cancel()
        try:
            await self._settle()
        except SQLAlchemyError as error:
            self._warn("never written", error)

    async def _settle(self) -> None:
        """A write that has begun is finished, whoever is cancelled: else nobody knows whether it was done."""
        while self._owed:
            self._writing = self._writing or asyncio.create_task(self._write_first(), name=f"write-{self._about}")
            await asyncio.shield(self._writing)

    async def _write_first(self) -> None:
        write = self._owed[0]
        try:
            async with self._database.begin() as session:
                await write(session)
        except (DataError, IntegrityError, ProgrammingError):  # it will never be taken
            log.exception("cannot be written", about=self._about)
        finally:
            self._writing = None
        if self._owed and self._owed[0] is write:
            self._owed.popleft()

    async def _retry(self) -> None:
        while self._owed:
            await asyncio.sleep(AGAIN_SECONDS)
            try:
                await self._settle()
            except SQLAlchemyError as error:
                self._warn("not written yet", error)
        self._retrying = None

    def _warn(self, what: str, error: SQLAlchemyError) -> None:
        log.warning(what, about=self._about, owed=len(self._owed), why=in_short(error))
