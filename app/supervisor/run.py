"""One run of an engine: the process, what it prints, and how far its start is."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass

import structlog

from app.supervisor import phases, processes
from app.supervisor.decide import Exited, Message, Stalled, Trouble
from app.supervisor.faults import Fault
from app.supervisor.logfile import LogFile
from app.supervisor.logwatch import SERVING_SECONDS, LogWatch
from app.supervisor.phases import Phase
from app.supervisor.processes import Process
from app.supervisor.signatures import output_handler_died

log = structlog.get_logger(__name__)

HANDLER_DEAD = Fault(
    "output_handler_dead",
    "The engine's output handler died: it still answers HTTP, but no request will be finished; restart it.",
    fatal=False,
)


@dataclass(frozen=True)
class RunFacts:
    """Who runs. `started_at` is in seconds since the epoch."""

    process: Process
    marker: str
    started_at: float
    version: int | None
    adopted: bool


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
        self.phase: Phase = phases.ADOPTED if facts.adopted else phases.LAUNCHED
        self.has_served = False
        self.listening = asyncio.Event()
        self.last_life = time.monotonic()
        self._report = report
        self._on_change = on_change
        self._watch = LogWatch(log, position, time.time(), self._take_line, on_lines)
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
            fault = Fault("internal", f"The deck could not watch the engine: {error}", fatal=False)
            self._report(Trouble(fault), self.marker)

    async def _await_end(self) -> None:
        ended = await processes.wait_exit(self.facts.process)
        self._tasks[0].cancel()
        await asyncio.gather(self._tasks[0], return_exceptions=True)
        await self._watch.catch_up()
        scanner = self._watch.scanner
        self._report(Exited(ended, scanner.fault, scanner.last_words), self.marker)

    def _take_line(self, line: str) -> None:
        if phases.shows_life(line):
            self.last_life = time.monotonic()
        if output_handler_died(line):
            self._report(Stalled(HANDLER_DEAD), self.marker)
        after = phases.advance(self.phase, line)
        if after == self.phase:
            return
        self.phase = after
        if after.progress >= phases.LISTENING:
            self.listening.set()
        self._on_change()
