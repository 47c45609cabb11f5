"""What an engine's owner does in each state: launch, ask, wait, end. Decides nothing, moves no state."""

from __future__ import annotations

import asyncio
import os
import sys
import time
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import structlog

from app.config import PROJECT_ROOT, Settings, inherited_environment
from app.errors import TierdeckError
from app.supervisor import checks, processes, readiness, residentmemory, runrecord
from app.supervisor.command import EngineSpec, launch_plan
from app.supervisor.decide import Drained, Gone, Message, Refused, RetryDue, Serves, Silent
from app.supervisor.faults import Fault
from app.supervisor.logfile import LogFile
from app.supervisor.readiness import Answer, Probe
from app.supervisor.records import EngineRecords, Recorded
from app.supervisor.run import Run, RunFacts
from app.supervisor.runrecord import RunRecord
from app.supervisor.states import EngineState
from app.supervisor.status import EngineStatus
from app.supervisor.tree import ProcessTree
from engine.residency_place import ID_VARIABLE

log = structlog.get_logger(__name__)

_LOOK_SECONDS = 30.0
_START_LOOK_SECONDS = 2.0
_LOADING_GRACE_SECONDS = 3.0
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
        self.alive = 0
        """Processes that are being ended."""
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

    async def adopt(self, recorded: Recorded) -> bool:
        """Take over the recorded process if it is the one that was recorded; else only what it left."""
        if recorded.marker is None:
            return False
        record = await asyncio.to_thread(runrecord.read, self._record_path)
        if record is None or record.marker != recorded.marker:
            record = RunRecord(recorded.marker, runrecord.boot_id(), self.log_file.end, frozenset())
        process = _verified(recorded)
        self._tree = ProcessTree(self.spec.name, record, self._record_path, process)
        if process is None:
            return False
        self._served_before = recorded.state in _SERVED_BEFORE
        started_at = processes.start_time(process, time.time())
        facts = RunFacts(process, recorded.marker, started_at, recorded.running_version, adopted=True)
        self._watch(facts, self.log_file.end if self._served_before else record.log_start)
        return True

    async def start(self, turn: object) -> None:
        """Launch the wanted version, unless a run was adopted, and ask it until it serves."""
        if self.run is None:
            await self.end_tree()
            self.spec = await self._records.spec()
            self._tell()
            fault = await asyncio.to_thread(self._check_start) or await self._launch()
            if fault is not None:
                self._report(Refused(fault), turn)
                return
        if self.run is not None and self._tree is not None:
            self._report(await self._until_it_serves(self.run, self._tree), turn)

    def _check_start(self) -> Fault | None:
        """Also gives back the host memory that this start has no use for (blocking)."""
        if residentmemory.kept_config(self.spec) is None:
            residentmemory.forget(self.memory_name)
        return checks.check_start(self.spec) or residentmemory.check_space(self.spec, self.memory_name)

    async def look_after(self, _turn: object) -> None:
        """Note new processes and shared-memory files, so that they can be cleaned up later."""
        while self._tree is not None:
            await self._tree.refresh()
            await asyncio.sleep(_LOOK_SECONDS)

    async def await_idle(self, turn: object) -> None:
        """Wait for the requests in flight, but not for ever."""
        name, seconds = self.spec.name, self._deck.settings.drain_timeout_seconds
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

    async def clear_away(self, _turn: object) -> None:
        """End what the last run left; nothing follows."""
        await self.end_tree()

    async def end_tree(self) -> dict[str, Any]:
        """End every process of the last run and give its shared memory back; then forget it."""
        tree = self._tree
        if tree is None:
            return {}
        removed = await tree.end(self._grace_seconds(), self._set_alive)
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
        await self._records.save_launch(marker, spec.profile.version_id)
        record = RunRecord(marker, runrecord.boot_id(), self.log_file.end, frozenset())
        await asyncio.to_thread(runrecord.write, self._record_path, record)
        await asyncio.to_thread(self.log_file.append, _headline(spec, now))
        try:  # from here to the watch nothing may be awaited: a process without an owner could come of it
            process = processes.spawn(plan, self.log_file.path)
        except OSError as error:
            return Fault("launch_failed", f"{spec.interpreter} could not be started: {error.strerror}.", fatal=True)
        self._tree = ProcessTree(spec.name, record, self._record_path, process)
        self._watch(RunFacts(process, marker, now, spec.profile.number, adopted=False), record.log_start)
        self._served_before = False
        self._tell()
        text = f"{spec.name} started with {spec.profile.name} v{spec.profile.number}"
        await self._records.save_process(process, now, text)
        return None

    async def _until_it_serves(self, run: Run, tree: ProcessTree) -> Serves | Silent | Refused:
        """Ask until a token comes, or until nothing has moved for too long."""
        limit, tries, looked = self._deck.settings.start_timeout_seconds, 0, 0.0
        while True:
            probe = await self._ask(limit)
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
            return Probe(Answer.SERVES, "It served before the deck was started anew, and still answers.")
        patience = min(limit or readiness.TOKEN_TIMEOUT_SECONDS, readiness.TOKEN_TIMEOUT_SECONDS)
        return await readiness.ask_token(client, spec.base_url, spec.served_model_name, patience)

    def _watch(self, facts: RunFacts, position: int) -> None:
        def tell_lines(count: int) -> None:
            self._deck.on_lines(self.spec.name, count)

        self.run = Run(facts, self.log_file, position, self._report, self._tell, tell_lines)

    def _grace_seconds(self) -> float:
        """An engine that is still loading has nothing to lose, and vLLM does not answer SIGTERM then."""
        full = self._deck.settings.stop_grace_seconds
        loading = self.run is not None and not self.run.has_served and not self._served_before
        return min(full, _LOADING_GRACE_SECONDS) if loading else full

    def _set_alive(self, count: int) -> None:
        if count != self.alive:
            self.alive = count
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
    return f"It serves: a first token came {time.time() - run.facts.started_at:.0f} s after its start."


async def _wait_briefly(event: asyncio.Event, seconds: float) -> None:
    """Wait for `event`, but no longer than `seconds`; an event that has come is used up."""
    try:
        await asyncio.wait_for(event.wait(), seconds)
    except TimeoutError:
        return
    event.clear()
