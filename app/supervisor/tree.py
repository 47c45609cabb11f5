"""The processes of one start of an engine, from first to last, and what they leave behind."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import structlog

from app.supervisor import processes, runrecord, sharedmemory
from app.supervisor.devices import DeviceMemory, held_bytes
from app.supervisor.liveness import Pulse
from app.supervisor.processes import Process
from app.supervisor.runrecord import RunRecord
from app.supervisor.sharedmemory import Removed

log = structlog.get_logger(__name__)

_KILL_WAIT_SECONDS = 5.0
#: Without their front end the others have no request to finish.
_HEADLESS_GRACE_SECONDS = 5.0
_LOOK_AGAIN_SECONDS = 1.0
#: From the end of the last process until the driver has its memory back: longer than that, and it never will.
_RELEASE_SECONDS = 60.0


@dataclass(frozen=True)
class Left:
    """What is still there of an engine that is being ended."""

    processes: int = 0
    held_bytes: int | None = None
    """Device memory that they hold; on a machine without devices, memory of the machine."""


class ProcessTree:
    """Knows by marker which processes belong to a start; remembers those it saw, and their files."""

    def __init__(
        self, name: str, record: RunRecord, record_path: Path, root: Process | None, devices: DeviceMemory
    ) -> None:
        self.name = name
        self.root = root
        self._record = record
        self._path = record_path
        self._devices = devices
        self._known: frozenset[Process] = frozenset()
        self._is_recorded = True

    @property
    def marker(self) -> str:
        """The value that every process of this start carries in its environment."""
        return self._record.marker

    async def refresh(self) -> frozenset[Process]:
        """Look at the process table: who is alive, and which shared-memory files they use."""
        members = await asyncio.to_thread(processes.find_tree, self.marker, self.root, self._known)
        self._known |= members
        files = self._record.shared_files | await asyncio.to_thread(sharedmemory.files_of, members)
        if files != self._record.shared_files or not self._is_recorded:
            self._record = replace(self._record, shared_files=files)
            await self._write_record()
        return members

    async def _write_record(self) -> None:
        """Only another deck needs it: what this one does with the engine goes on without."""
        try:
            await asyncio.to_thread(runrecord.write, self._path, self._record)
        except OSError as error:
            log.warning("the record of a run cannot be written", engine=self.name, path=str(self._path), why=str(error))
            self._is_recorded = False
        else:
            self._is_recorded = True

    def pulse(self) -> Pulse:
        """How the processes that were seen so far are doing."""
        return processes.pulse_of(self._known, self.root)

    async def end(self, grace_seconds: float, tell: Callable[[Left], None]) -> Removed:
        """Return when every process has ended, and its device and shared memory is given back.

        The root is asked first, so that it can end the others in order. Once it is gone, or when it was from
        the beginning, the others are asked. Who does not end in time is killed.
        """
        members = await self._look(tell)
        if self.root in members:
            _send(signal.SIGTERM, {self.root})
            members = await self._wait(members, grace_seconds, tell, of=self.root)
        if self.root not in members:
            _send(signal.SIGTERM, members)
            members = await self._wait(members, min(grace_seconds, _HEADLESS_GRACE_SECONDS), tell)
        while members:
            log.warning("killing what is left of an engine", engine=self.name, processes=_names(members))
            _send(signal.SIGKILL, members)
            members = await self._wait(members, _KILL_WAIT_SECONDS, tell)
        await self._await_release(tell)
        tell(Left())
        return await self._clean_up()

    async def _wait(
        self, members: frozenset[Process], seconds: float, tell: Callable[[Left], None], of: Process | None = None
    ) -> frozenset[Process]:
        """Until none is left, or `of` is not among them any more, at most so long; who is left."""
        until = time.monotonic() + seconds
        while members and (of is None or of in members) and (left := until - time.monotonic()) > 0:
            await processes.wait_all([of] if of else members, min(left, _LOOK_AGAIN_SECONDS))
            members = await self._look(tell)
        return members

    async def _look(self, tell: Callable[[Left], None]) -> frozenset[Process]:
        members = await self.refresh()
        tell(Left(len(members), await asyncio.to_thread(self._held_bytes, members)))
        return members

    def _held_bytes(self, members: frozenset[Process]) -> int | None:
        if not members:
            return None
        if not self._devices.devices():
            return processes.resident_bytes(members)
        return self._on_devices()

    def _on_devices(self) -> int:
        """Held under the pid of any process that was seen to be ours: some are listed after their end."""
        return held_bytes(self._devices.holders(), {process.pid for process in self._known})

    async def _await_release(self, tell: Callable[[Left], None]) -> None:
        """The driver takes memory back after the end of a process, not with it."""
        until = time.monotonic() + _RELEASE_SECONDS
        while held := await asyncio.to_thread(self._on_devices):
            tell(Left(0, held))
            if time.monotonic() >= until:
                log.warning("device memory of an ended engine was not given back", engine=self.name, held_bytes=held)
                return
            await asyncio.sleep(_LOOK_AGAIN_SECONDS)

    async def _clean_up(self) -> Removed:
        removed = await asyncio.to_thread(sharedmemory.remove_unused, self._record.shared_files)
        if removed.names:
            log.info("removed left-over shared memory", engine=self.name, **_describe(removed))
        try:
            await asyncio.to_thread(self._path.unlink, missing_ok=True)
        except OSError as error:  # it names a run that is over: whoever reads it finds nothing of that
            log.warning("the record of a run cannot be removed", engine=self.name, why=str(error))
        return removed


def _send(number: signal.Signals, members: Iterable[Process]) -> None:
    for process in members:
        processes.send_signal(process, number)


def _names(members: frozenset[Process]) -> dict[str, str]:
    return {str(pid): name for pid, name in processes.names_of(members).items()}


def _describe(removed: Removed) -> dict[str, object]:
    return {"files": list(removed.names), "freed_bytes": removed.freed_bytes}
