"""Follows the output of a run for its owner: progress of the start, causes of an end, rotation."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from app.supervisor.logfile import LogCursor, LogFile
from app.supervisor.signatures import FaultScanner

STARTING_SECONDS = 0.25
SERVING_SECONDS = 1.0
#: A flood is not read line by line: only this much of what came since the last look.
_BACKLOG_BYTES = 512 * 1024


class LogWatch:
    """Looks for new lines while a run lives: often while it starts, once a second afterwards.

    A file has no event to wait for, so its length is asked. The engine itself is never held up.
    """

    def __init__(
        self, log: LogFile, position: int, now: float, on_line: Callable[[str], None], on_lines: Callable[[int], None]
    ) -> None:
        self._log = log
        self._cursor = LogCursor(log, position, now, _BACKLOG_BYTES)
        self._on_line = on_line
        self._on_lines = on_lines
        self.scanner = FaultScanner()
        self.interval_seconds = STARTING_SECONDS

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self.catch_up()
            await asyncio.to_thread(self._log.rotate_if_large)
            await asyncio.sleep(self.interval_seconds)

    async def catch_up(self) -> None:
        """Read to the end, giving way between two pieces."""
        seen = 0
        while self._cursor.behind:
            batch = self._cursor.take()
            seen += len(batch.lines) + batch.skipped
            for line in batch.lines:
                self.scanner.feed(line.text)
                self._on_line(line.text)
            await asyncio.sleep(0)
        if seen:
            self._on_lines(seen)
