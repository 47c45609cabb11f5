"""One run of an engine: the process, what it prints, and how far its start is."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass

import structlog

from app.supervisor import phases, processes
from app.supervisor.causes import Cause
from app.supervisor.command import Given
from app.supervisor.decide import INTERNAL, Exited, Message, Stalled, Trouble
from app.supervisor.faults import Exit, Fault
from app.supervisor.logfile import LogFile
from app.supervisor.logwatch import SERVING_SECONDS, LogWatch
from app.supervisor.phases import Phase
from app.supervisor.processes import Process
from app.supervisor.signatures import HandlerScanner

log = structlog.get_logger(__name__)

_AGAIN_SECONDS = 1.0


@dataclass(frozen=True)
class RunFacts:
    """Who runs. `started_at` is in seconds since the epoch."""

    process: Process
    marker: str
    started_at: float
    version: int | None
    served_before: bool
    """An earlier deck saw it serve."""
    given: Given | None
    """What its fleet gave it; None for a process that an earlier release started."""


class Run:
    """Watches one living process until it ends. Everything it learns goes to `report`."""

    def __init__(
        self,
        facts: RunFacts,
        log: LogFile,
        position: int,
        report: Callable[[Message, object], None],
        on_change: Callable[[], None],
        on_lines: Callable[[int], None],
    ) -> None:
        self.facts = facts
        self.phase: Phase = phases.ADOPTED if facts.served_before else phases.LAUNCHED
        self.has_served = False
        self.listening = asyncio.Event()
        self.last_life = time.monotonic()
        self._report = report
        self._on_change = on_change
        self._handler = HandlerScanner()
        self._watch = LogWatch(log, position, time.time(), self._take_line, on_lines, self._take_quiet)
        self._tasks = [
            asyncio.create_task(self._logged(self._watch.run()), name=f"log-{facts.process.pid}"),
            asyncio.create_task(self._logged(self._await_end()), name=f"exit-{facts.process.pid}"),
        ]

    @property
    def marker(self) -> str:
        """Names this run; reports about it carry it."""
        return self.facts.marker

    def served(self) -> None:
        """It gave a token: from now on its output is read at leisure."""
        self.has_served = True
        self._watch.interval_seconds = SERVING_SECONDS

    async def close(self) -> None:
        """Stop watching; the process itself is left alone."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _logged(self, work: Coroutine[None, None, None]) -> None:
        try:
            await work
        except Exception as error:  # the task's edge: nobody else would see it
            log.exception("watching an engine failed", pid=self.facts.process.pid)
            fault = Fault(INTERNAL, Cause.NOT_WATCHED % {"why": error}, fatal=False)
            self._report(Trouble(fault), self.marker)

    async def _await_end(self) -> None:
        ended = await self._exit()
        self._tasks[0].cancel()
        await asyncio.gather(self._tasks[0], return_exceptions=True)
        await self._watch.catch_up()
        scanner = self._watch.scanner
        self._report(Exited(ended, scanner.fault, scanner.last_words), self.marker)

    async def _exit(self) -> Exit:
        while True:
            try:
                return await processes.wait_exit(self.facts.process)
            except OSError as error:  # no file descriptor is left: an end that nobody hears of would be worse
                log.warning("an engine cannot be waited for", pid=self.facts.process.pid, why=str(error))
                await asyncio.sleep(_AGAIN_SECONDS)

    def _take_quiet(self) -> None:
        self._tell_stall(self._handler.feed_nothing())

    def _tell_stall(self, fault: Fault | None) -> None:
        if fault is not None:
            self._report(Stalled(fault), self.marker)

    def _take_line(self, line: str) -> None:
        if phases.shows_life(line):
            self.last_life = time.monotonic()
        self._tell_stall(self._handler.feed(line))
        after = phases.advance(self.phase, line)
        if after == self.phase:
            return
        self.phase = after
        if after.progress >= phases.LISTENING:
            self.listening.set()
        self._on_change()
