"""What an engine's owner does in each state: launch, ask, wait, end. Decides nothing, moves no state."""

from __future__ import annotations

import asyncio
import errno
import math
import os
import sys
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import structlog

from app.config import PROJECT_ROOT, Settings, inherited_environment
from app.errors import TierdeckError
from app.supervisor import checks, phases, processes, readiness, residentmemory, runrecord
from app.supervisor.causes import Cause
from app.supervisor.command import EngineSpec, launch_plan
from app.supervisor.decide import (
    Drained,
    Gone,
    Message,
    Overdue,
    PortFree,
    PortMoved,
    Refused,
    RetryDue,
    Serves,
    Silent,
)
from app.supervisor.devices import DeviceMemory
from app.supervisor.faults import Fault
from app.supervisor.gate import StartGate
from app.supervisor.ground import Ground
from app.supervisor.liveness import Counts, Limits, Reading
from app.supervisor.logfile import LogFile
from app.supervisor.readiness import Answer, Probe
from app.supervisor.records import EngineRecords, Recorded
from app.supervisor.run import Run, RunFacts
from app.supervisor.runrecord import RunRecord
from app.supervisor.states import PORT_IN_USE, EngineState
from app.supervisor.status import EngineStatus
from app.supervisor.tree import Left, ProcessTree
from app.supervisor.watch import LifeWatch
from engine.residency_place import ID_VARIABLE

log = structlog.get_logger(__name__)

_LOOK_SECONDS = 30.0
_START_LOOK_SECONDS = 2.0
_PORT_LOOK_SECONDS = 1.0
_LOADING_GRACE_SECONDS = 3.0
_HOPELESS_SECONDS = 10.0
#: The machine lacks something for now: disk, memory, open files.
_PASSING = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM})
_SERVED_BEFORE = frozenset({EngineState.READY, EngineState.DRAINING})


@dataclass(frozen=True)
class Surroundings:
    """What the supervision of an engine is given by the deck."""

    settings: Settings
    client: httpx.AsyncClient
    on_status: Callable[[EngineStatus], None]
    on_lines: Callable[[str, int], None]
    idle: Callable[[str], Awaitable[None]]
    """Waits until the door has no request open on the engine."""
    in_flight: Callable[[str], int]
    move_port: Callable[[str], Awaitable[int | None]]
    """Gives an engine that does not run another port of its fleet; None where none is free."""
    devices: DeviceMemory
    gate: StartGate


class EngineWork:
    """The present run of one engine and the acts on it. Reports what comes of them to the owner."""

    def __init__(
        self,
        spec: EngineSpec,
        records: EngineRecords,
        directory: Path,
        deck: Surroundings,
        report: Callable[[Message, object], None],
        tell: Callable[[], None],
    ) -> None:
        self.spec = spec
        self.run: Run | None = None
        self.left = Left()
        """What is being ended."""
        self.log_file = LogFile(deck.settings.log_dir / f"{file_name(spec.name)}.log")
        self.memory_name = residentmemory.identifier(deck.settings.data_dir, spec.name)
        """Names the host memory that outlives the engine."""
        self._record_path = directory / f"{file_name(spec.name)}.json"
        self._records = records
        self._deck = deck
        self._report = report
        self._tell = tell
        self._tree: ProcessTree | None = None
        self._served_before = False
        self.ground = Ground(deck.devices, deck.gate, deck.settings.device_wait_seconds, tell)
        self.life = self._new_life()

    async def adopt(self, recorded: Recorded) -> bool:
        """Take over the recorded process if it is the one that was recorded; else only what it left."""
        if recorded.marker is None:
            return False
        record = await asyncio.to_thread(runrecord.read, self._record_path)
        if record is None or record.marker != recorded.marker:
            record = RunRecord(recorded.marker, runrecord.boot_id(), self.log_file.end, frozenset())
        process = _verified(recorded)
        self._tree = ProcessTree(self.spec.name, record, self._record_path, process, self._deck.devices)
        if process is None:
            return False
        self._served_before = recorded.state in _SERVED_BEFORE
        started_at = processes.start_time(process, time.time())
        version, given = recorded.running_version, recorded.given
        facts = RunFacts(process, recorded.marker, started_at, version, self._served_before, given)
        self._watch(facts, self.log_file.end if self._served_before else record.log_start)
        return True

    async def start(self, turn: object) -> None:
        """Launch the wanted version, unless a run was adopted, and ask it until it serves."""
        if self.run is None:
            self.ground.clear()
            await self.end_tree()
            self.spec = await self._records.spec()
            self._tell()
        else:
            await self.ground.claim(self.spec)
        try:
            self._report(await self._come_up(), turn)
        finally:
            self.ground.leave(self.spec.name)

    async def _come_up(self) -> Message:
        if self.run is None:
            fault = await self.ground.prepare(self.spec, self.memory_name) or await self._launch()
            if fault is not None:
                return Refused(fault)
        if self.run is None or self._tree is None:
            raise RuntimeError("a launch without a fault makes a run")
        return await self._until_it_serves(self.run, self._tree)

    def observe(self, at: float, counts: Counts | None) -> None:
        """One more look at the engine's numbers; None when they did not come."""
        if self._tree is not None:
            self.life.take(Reading(at, counts, self._deck.in_flight(self.spec.name), self._tree.pulse()))

    async def keep_watch(self, turn: object) -> None:
        """Of an engine that serves: until it stalls."""
        async with self._looking_after():
            stalled = await self.life.until_it_stalls()
        self._report(stalled, turn)

    async def await_token(self, since: float, turn: object) -> None:
        """Of an engine that is stalled since `since`: until it serves again, or for as long as the settings let it."""
        limit = self._deck.settings.restart_stalled_seconds
        message: Message = Overdue(limit)
        with suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, since + limit - time.time()) if limit else None), self._looking_after():
                message = await self.life.until_it_serves(since)
        self._report(message, turn)

    @asynccontextmanager
    async def _looking_after(self) -> AsyncIterator[None]:
        """Meanwhile new processes and shared-memory files are noted, so that they can be cleaned up later."""
        async with asyncio.TaskGroup() as group:
            looking = group.create_task(self._look_after())
            yield
            looking.cancel()

    async def _look_after(self) -> None:
        while self._tree is not None:
            await self._tree.refresh()
            await asyncio.sleep(_LOOK_SECONDS)

    async def await_idle(self, hopeless: bool, turn: object) -> None:
        """Wait for the requests in flight, but not for ever; not for long where they will hardly be answered."""
        name, own = self.spec.name, self.spec.settings.drain_timeout_seconds
        seconds = self._deck.settings.drain_timeout_seconds if own is None else own
        seconds = min(seconds, _HOPELESS_SECONDS) if hopeless else seconds
        try:
            await asyncio.wait_for(self._deck.idle(name), seconds)
        except TimeoutError:
            log.warning("drain timed out", engine=name, seconds=seconds, in_flight=self._deck.in_flight(name))
        self._report(Drained(self._deck.in_flight(name)), turn)

    async def stop(self, turn: object) -> None:
        """End everything; done when no process is left."""
        evidence = await self.end_tree()
        fault = await asyncio.to_thread(checks.check_port, self.spec.host, self.spec.port)
        self._report(Gone(evidence if fault is None else {**evidence, "port": fault.sentence}), turn)

    async def back_off(self, next_try_at: float | None, turn: object) -> None:
        """Clear away what the failed run left, and wait for the next try."""
        await self.end_tree()
        await asyncio.sleep(max(0.0, (next_try_at or 0.0) - time.time()))
        self._report(RetryDue(), turn)

    async def clear_away(self, error_code: str | None, turn: object) -> None:
        """End what the last run left; where its port was lost, wait until that is free again, or find another."""
        await self.end_tree()
        if error_code == PORT_IN_USE:
            self._report(await self._await_port(), turn)

    async def _await_port(self) -> PortFree | PortMoved:
        port, seconds = self.spec.port, self._deck.settings.port_wait_seconds
        patience = time.monotonic() + (seconds or math.inf)
        while not checks.port_is_free(self.spec.host, port):
            await asyncio.sleep(_PORT_LOOK_SECONDS)
            if time.monotonic() >= patience:
                if (other := await self._deck.move_port(self.spec.name)) is not None:
                    return PortMoved(port, other, seconds)
                log.warning("no other port of its fleet is free", engine=self.spec.name, port=port)
                patience = time.monotonic() + seconds
        return PortFree()

    async def end_tree(self) -> dict[str, Any]:
        """End every process of the last run and give its shared memory back; then forget it."""
        tree = self._tree
        if tree is None:
            return {}
        removed = await tree.end(self._grace_seconds(), self._set_left)
        await self.drop_run()
        await self._records.forget_process()
        self._tree = None
        self._tell()
        return {"removed_shared_files": list(removed.names), "freed_bytes": removed.freed_bytes}

    async def drop_run(self) -> None:
        """Stop watching the run; its processes are left as they are."""
        run, self.run = self.run, None
        if run is not None:
            await run.close()

    async def _launch(self) -> Fault | None:
        marker, spec, now = uuid.uuid4().hex, self.spec, time.time()
        import_root = None if Path(spec.interpreter) == Path(sys.executable) else str(PROJECT_ROOT)
        try:
            environment = {**inherited_environment(), ID_VARIABLE: self.memory_name}
            plan = launch_plan(spec, marker, environment, import_root)
        except TierdeckError as error:
            return Fault("config_rejected", error.message, fatal=True)
        await self._records.save_launch(marker, spec)
        record = RunRecord(marker, runrecord.boot_id(), self.log_file.end, frozenset())
        try:
            await asyncio.to_thread(runrecord.write, self._record_path, record)
            await asyncio.to_thread(self.log_file.append, _headline(spec, now))
            # from here to the watch nothing may be awaited: a process without an owner could come of it
            process = processes.spawn(plan, self.log_file.path)
        except OSError as error:
            await self._records.forget_process()
            if error.errno in _PASSING:
                raise
            sentence = Cause.NOT_LAUNCHED % {"interpreter": spec.interpreter, "why": error.strerror}
            return Fault("launch_failed", sentence, fatal=True)
        self._tree = ProcessTree(spec.name, record, self._record_path, process, self._deck.devices)
        facts = RunFacts(process, marker, now, spec.profile.number, served_before=False, given=spec.given)
        self._watch(facts, record.log_start)
        self._served_before = False
        self._tell()
        text = f"{spec.name} started with {spec.profile.name} v{spec.profile.number}"
        await self._records.save_process(process, now, text)
        return None

    async def _until_it_serves(self, run: Run, tree: ProcessTree) -> Serves | Silent | Refused:
        """Ask until a token comes, or until nothing has moved for too long."""
        limit = checks.start_timeout_seconds(self.spec, self._deck.settings.start_timeout_seconds)
        tries, looked = 0, 0.0
        while True:
            probe = await self._ask(limit)
            if run.phase.progress >= phases.KV_SIZED:
                self.ground.leave(self.spec.name)
            if probe.answer is Answer.SERVES:
                own = {process.pid for process in await tree.refresh()}
                if (fault := await asyncio.to_thread(checks.check_listener, self.spec.port, own)) is not None:
                    return Refused(fault)
                run.served()
                return Serves(probe.detail or _served(run))
            silence = time.monotonic() - run.last_life
            if limit and silence >= limit:
                return Silent(silence, probe.detail)
            if time.monotonic() - looked >= _START_LOOK_SECONDS:
                looked = time.monotonic()
                await tree.refresh()
            tries += 1
            await _wait_briefly(run.listening, readiness.wait_seconds(tries))

    async def _ask(self, limit: float) -> Probe:
        client, spec = self._deck.client, self.spec
        probe = await readiness.ask_health(client, spec.base_url)
        if probe.answer is not Answer.HEALTHY:
            return probe
        if self._served_before:
            return Probe(Answer.SERVES, Cause.SERVED_BEFORE)
        patience = min(limit or readiness.TOKEN_TIMEOUT_SECONDS, readiness.TOKEN_TIMEOUT_SECONDS)
        return await self.life.ask(partial(self._ask_token, patience))

    async def _ask_token(self, patience_seconds: float) -> Probe:
        given = (self.run and self.run.facts.given) or self.spec.given
        client = self._deck.client
        return await readiness.ask_token(client, self.spec.base_url, given.served_model_name, patience_seconds)

    def _watch(self, facts: RunFacts, position: int) -> None:
        def tell_lines(count: int) -> None:
            self._deck.on_lines(self.spec.name, count)

        self.run = Run(facts, self.log_file, position, self._report, self._tell, tell_lines)
        self.life = self._new_life()

    def _new_life(self) -> LifeWatch:
        settings = self._deck.settings
        limits = Limits.of(settings.stall_seconds, settings.idle_probe_seconds)
        return LifeWatch(limits, partial(self._ask_token, limits.stall_seconds))

    def _grace_seconds(self) -> float:
        """An engine that is still loading has nothing to lose, and vLLM does not answer SIGTERM then."""
        full = self._deck.settings.stop_grace_seconds
        loading = self.run is not None and not self.run.has_served and not self._served_before
        return min(full, _LOADING_GRACE_SECONDS) if loading else full

    def _set_left(self, left: Left) -> None:
        if left != self.left:
            self.left = left
            self._tell()


def file_name(engine: str) -> str:
    """A file name for whatever an engine is called."""
    return "".join(letter if letter.isalnum() or letter in "-_." else f"%{ord(letter):x}" for letter in engine)


def _verified(recorded: Recorded) -> processes.Process | None:
    """The recorded process, if it lives, started when it should have, and carries the marker."""
    entry = processes.read_entry(recorded.process.pid) if recorded.process else None
    if entry is None or not entry.alive or entry.process != recorded.process or entry.marker != recorded.marker:
        return None
    return entry.process


def _headline(spec: EngineSpec, now: float) -> str:
    """A line in the engine's own format, so that runs can be told apart in its log."""
    stamp = time.strftime("%m-%d %H:%M:%S", time.localtime(now))
    profile = f"{spec.profile.name} v{spec.profile.number}"
    return f"(Tierdeck pid={os.getpid()}) INFO {stamp} [supervisor] Starting {spec.name} with {profile}."


def _served(run: Run) -> str:
    return Cause.SERVES % {"seconds": f"{time.time() - run.facts.started_at:.0f}"}


async def _wait_briefly(event: asyncio.Event, seconds: float) -> None:
    """Wait for `event`, but no longer than `seconds`; an event that has come is used up."""
    try:
        await asyncio.wait_for(event.wait(), seconds)
    except TimeoutError:
        return
    event.clear()
