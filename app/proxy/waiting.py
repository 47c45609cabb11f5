"""Requests that wait for an engine, in the order they came."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from app.errors import Unavailable


class Place:
    """One request's place in the line; it keeps it however often it is woken in vain."""

    def __init__(self) -> None:
        self._woken = asyncio.Event()

    def wake(self) -> None:
        """Something changed."""
        self._woken.set()

    async def woken(self, timeout_seconds: float) -> bool:
        """Wait for the next change; False when the time was up first."""
        try:
            async with asyncio.timeout(timeout_seconds):
                await self._woken.wait()
        except TimeoutError:
            return False
        self._woken.clear()
        return True


class WaitingRoom:
    """A bounded line. Woken places resume in the order of their arrival."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._places: dict[int, Place] = {}
        self._arrivals = 0

    def __len__(self) -> int:
        return len(self._places)

    @contextmanager
    def enter(self) -> Iterator[Place]:
        """Stand in the line for the length of the `with` block; raises when it is full."""
        if len(self._places) >= self._limit:
            raise Unavailable(
                f"{len(self._places)} requests already wait for an engine; no more are taken.",
                code="too_many_waiting",
                retry_after_seconds=10,
            )
        self._arrivals += 1
        number, place = self._arrivals, Place()
        self._places[number] = place
        try:
            yield place
        finally:
            del self._places[number]

    def wake(self) -> None:
        """Let every waiting request look again."""
        for place in self._places.values():
            place.wake()
