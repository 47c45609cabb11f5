"""How many requests are open on each engine: what a drain waits on and what routing weighs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager


class InFlight:
    """Counted from the moment an engine was chosen until its connection is released."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._idle: dict[str, asyncio.Event] = {}

    def count(self, engine: str) -> int:
        """Requests open on `engine` now."""
        return self._counts.get(engine, 0)

    @property
    def total(self) -> int:
        """Requests open on all engines."""
        return sum(self._counts.values())

    @contextmanager
    def enter(self, engine: str) -> Iterator[None]:
        """Count one request on `engine` for the length of the `with` block."""
        self._counts[engine] = self.count(engine) + 1
        try:
            yield
        finally:
            self._leave(engine)

    async def idle(self, engine: str) -> None:
        """Wait until no request is open on `engine`."""
        while self.count(engine):
            await self._idle.setdefault(engine, asyncio.Event()).wait()

    def _leave(self, engine: str) -> None:
        left = self._counts[engine] - 1
        if left:
            self._counts[engine] = left
            return
        del self._counts[engine]
        if event := self._idle.pop(engine, None):
            event.set()
