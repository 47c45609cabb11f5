"""The processes of one start of an engine, from first to last, and what they leave behind."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import structlog

from app.supervisor import processes, runrecord, sharedmemory
from app.supervisor.processes import Process
from app.supervisor.runrecord import RunRecord
from app.supervisor.sharedmemory import Removed

log = structlog.get_logger(__name__)

_KILL_WAIT_SECONDS = 5.0


class ProcessTree:
    """Knows by marker which processes belong to a start; remembers those it saw, and their files."""

    def __init__(self, name: str, record: RunRecord, record_path: Path, root: Process | None) -> None:
        self.name = name
        self.root = root
        self._record = record
        self._path = record_path
        self._known: frozenset[Process] = frozenset()

    @property
    def marker(self) -> str:
        """The value that every process of this start carries in its environment."""
        return self._record.marker

    async def refresh(self) -> frozenset[Process]:
        """Look at the process table: who is alive, and which shared-memory files they use."""
        members = await asyncio.to_thread(processes.find_tree, self.marker, self.root, self._known)
        self._known |= members
        files = self._record.shared_files | await asyncio.to_thread(sharedmemory.files_of, members)
        if files != self._record.shared_files:
            self._record = replace(self._record, shared_files=files)
            await asyncio.to_thread(runrecord.write, self._path, self._record)
        return members

    async def end(self, grace_seconds: float, tell_alive: Callable[[int], None]) -> Removed:
        """Return when every process has ended and its shared memory is given back.

        The root is asked first, so that it can end the others in order; without it, all are asked.
        Whoever is left after `grace_seconds` is killed.
        """
        if members := await self.refresh():
            tell_alive(len(members))
            self._ask(members)
            await processes.wait_all(members, grace_seconds)
        while members := await self.refresh():
            tell_alive(len(members))
            log.warning("killing what is left of an engine", engine=self.name, processes=_names(members))
            for process in members:
                processes.send_signal(process, signal.SIGKILL)
            await processes.wait_all(members, _KILL_WAIT_SECONDS)
        tell_alive(0)
        return await self._clean_up()

    def _ask(self, members: frozenset[Process]) -> None:
        asked = {self.root} & members if self.root is not None else frozenset()
        for process in asked or members:
            processes.send_signal(process, signal.SIGTERM)

    async def _clean_up(self) -> Removed:
        removed = await asyncio.to_thread(sharedmemory.remove_unused, self._record.shared_files)
        if removed.names:
            log.info("removed left-over shared memory", engine=self.name, **_describe(removed))
        await asyncio.to_thread(self._path.unlink, missing_ok=True)
        return removed


def _names(members: frozenset[Process]) -> dict[str, str]:
    return {str(pid): name for pid, name in processes.names_of(members).items()}


def _describe(removed: Removed) -> dict[str, object]:
    return {"files": list(removed.names), "freed_bytes": removed.freed_bytes}
