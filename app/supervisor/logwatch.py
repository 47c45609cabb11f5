"""Follows the output of a run for its owner: progress of the start, causes of an end, rotation."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import structlog

from app.supervisor.logfile import LogCursor, LogFile
from app.supervisor.loglines import LogBatch
from app.supervisor.signatures import FaultScanner

log = structlog.get_logger(__name__)

STARTING_SECONDS = 0.25
SERVING_SECONDS = 1.0
#: A copy of twenty MiB that finds no room is not tried every second.
ROTATE_AGAIN_SECONDS = 30.0
#: A flood is not read line by line: only this much of what came since the last look.
_BACKLOG_BYTES = 512 * 1024


class LogWatch:
    """Looks for new lines while a run lives: often while it starts, once a second afterwards.

    A file has no event to wait for, so its length is asked. The engine itself is never held up.
    """

    def __init__(
        self,
        log: LogFile,
        position: int,
        now: float,
        on_line: Callable[[str], None],
        on_lines: Callable[[int], None],
        on_quiet: Callable[[], None],
    ) -> None:
        self._log = log
        self._cursor = LogCursor(log, position, now, _BACKLOG_BYTES)
        self._on_line = on_line
        self._on_lines = on_lines
        self._on_quiet = on_quiet
        self._rotate_after = 0.0
        self._unreadable = ""
        self.scanner = FaultScanner()
        self.interval_seconds = STARTING_SECONDS

    async def run(self) -> None:
        """Until cancelled. A disk that is full or fails is tried again: the run is watched all the same."""
        while True:
            if not await self.catch_up():
                self._on_quiet()
            await self._rotate()
            await asyncio.sleep(self.interval_seconds)

    async def _rotate(self) -> None:
        if time.monotonic() < self._rotate_after:
            return
        try:
            await asyncio.to_thread(self._log.rotate_if_large)
        except OSError as error:
            log.warning("a log cannot be rotated", path=str(self._log.path), why=str(error))
            self._rotate_after = time.monotonic() + ROTATE_AGAIN_SECONDS

    async def catch_up(self) -> int:
        """Read to the end, giving way between two pieces; how many lines that were."""
        seen = 0
        while (batch := self._take()) is not None:
            seen += len(batch.lines) + batch.skipped
            for line in batch.lines:
                self.scanner.feed(line.text)
                self._on_line(line.text)
            await asyncio.sleep(0)
        if seen:
            self._on_lines(seen)
        return seen

    def _take(self) -> LogBatch | None:
        """The next piece; None at the end, and where the file cannot be read."""
        try:
            batch = self._cursor.take() if self._cursor.behind else None
        except OSError as error:
            if str(error) != self._unreadable:
                self._unreadable = str(error)
                log.warning("a log cannot be read", path=str(self._log.path), why=str(error))
            return None
        self._unreadable = ""
        return batch
