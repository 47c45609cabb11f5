"""The verbs on engines: what the page, the command line and the door ask of the supervisor."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine

import httpx
import structlog
from sqlalchemy.exc import SQLAlchemyError

from app.config import Settings
from app.errors import Conflict, InvalidInput, NotFound
from app.events import Event, Events
from app.services.ports import free_port
from app.store.database import Database
from app.store.queries import engines as queries
from app.store.queries import profiles
from app.supervisor import checks, residentmemory
from app.supervisor.command import ENTRY, EngineSpec, shell_command
from app.supervisor.decide import Drain, Restart, Shutdown, Start, Stop
from app.supervisor.devices import DeviceMemory, Nvml
from app.supervisor.faults import Fault
from app.supervisor.gate import StartGate
from app.supervisor.liveness import Counts
from app.supervisor.logfile import LogCursor
from app.supervisor.loglines import LEVELS, LogBatch, LogLine
from app.supervisor.owner import EngineOwner
from app.supervisor.records import EngineRecords
from app.supervisor.states import EngineState
from app.supervisor.status import EngineStatus, Transition
from app.supervisor.work import Surroundings

log = structlog.get_logger(__name__)

FOLLOW_SECONDS = 0.25
FOLLOW_LINES = 100
"""At most this many lines in each batch of a followed log, so 400 a second."""
LOG_EVENT_SECONDS = 0.5
AGAIN_SECONDS = 5.0


class Engines:
    """All engines of this deck. Every call is about one, by its name, or raises NotFound.

    `in_flight` and `idle` are set by the door: how many requests it has open on an engine, and a wait
    until there are none. `entry` is the program that an engine's interpreter runs; `devices` tells of the
    memory of the machine's GPUs, by default what the driver says.
    """

    def __init__(
        self,
        settings: Settings,
        database: Database,
        events: Events,
        entry: tuple[str, ...] = ENTRY,
        devices: DeviceMemory | None = None,
    ) -> None:
        self.in_flight: Callable[[str], int] = lambda _name: 0
        self.idle: Callable[[str], Awaitable[None]] = _never_busy
        self._settings = settings
        self._database = database
        self._events = events
        self._entry = entry
        self._devices = devices or Nvml()
        self._gate = StartGate()
        self._owners: dict[str, EngineOwner] = {}
        self._supervision: dict[str, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        """What waits for an engine to have stopped."""
        self._loading = asyncio.Lock()
        self._moving = asyncio.Lock()
        self._leaving: set[str] = set()
        self._held_at_birth: dict[str, str] = {}
        self._client: httpx.AsyncClient | None = None
        self._change = asyncio.Event()
        self._log_told_at: dict[str, float] = {}

    async def open(self) -> None:
        """Adopt the engines that run, start those that should, and supervise all from here on."""
        self._settings.log_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        # Engines are on this machine: a proxy from the environment must not come between.
        self._client = httpx.AsyncClient(trust_env=False)
        await self.load()

    async def load(self) -> None:
        """Take up the engines of the database that are not supervised yet; see those off that went out of service.

        Raises SQLAlchemyError; what it did not come to is then taken up as soon as the database answers again.
        """
        try:
            await self._load()
        except SQLAlchemyError:
            self._begin(self._load_later(), "load-engines")
            raise

    async def _load_later(self) -> None:
        while True:
            await asyncio.sleep(AGAIN_SECONDS)
            try:
                return await self._load()
            except SQLAlchemyError:
                log.exception("engines could not be taken up")

    async def _load(self) -> None:
        async with self._loading:
            async with self._database.session() as session:
                found = [row.engine for row in await queries.supervised(session)]
            for row in found:
                if row.name not in self._owners:
                    await self._supervise(row.id, row.name)
                if row.retired_at is not None and row.name not in self._leaving:
                    await self._see_off(row.name)
            known = frozenset(owner.work.memory_name for owner in self._owners.values())
            await asyncio.to_thread(residentmemory.forget_all, self._settings.data_dir, known)

    async def close(self) -> None:
        """Stop supervising. Engines are ended too, unless the settings let them outlive the deck."""
        await _cancel(self._tasks)
        if not self._settings.engines_outlive_deck:
            ended = await asyncio.gather(*(self._shut_down(name) for name in self._owners), return_exceptions=True)
            for error in (one for one in ended if one is not None):
                log.error("an engine could not be ended with the deck", exc_info=error)
            await asyncio.to_thread(residentmemory.forget_all, self._settings.data_dir)
        await _cancel(self._supervision.values())
        for owner in self._owners.values():
            await owner.close()
        if self._client is not None:
            await self._client.aclose()

    def statuses(self, fleet: str | None = None) -> list[EngineStatus]:
        """Every engine, by name; of one fleet if it is given."""
        every = (self._owners[name].status for name in sorted(self._owners))
        return [status for status in every if fleet is None or status.fleet == fleet]

    def status(self, name: str) -> EngineStatus:
        """One engine now."""
        return self._owner(name).status

    async def start(self, name: str) -> EngineStatus:
        """Have it run; calls off a drain. Returns once that is under way. Raises Conflict for one that leaves."""
        return await self._staying(name).inbox.command(Start())

    async def stop(self, name: str, *, now: bool = False, forget: bool = False) -> EngineStatus:
        """Have it not run: drain, then end it. `now` leaves out the drain, `forget` gives its host memory back."""
        status = await self._owner(name).inbox.command(Stop(now))
        if forget:
            self._begin(self._forget_when_stopped(name), f"forget-{name}")
        return status

    async def restart(self, name: str) -> EngineStatus:
        """Drain, end, and start with the wanted version. Raises Conflict for one that leaves."""
        return await self._staying(name).inbox.command(Restart())

    async def drain(self, name: str) -> EngineStatus:
        """Send it no new requests until it is started again. Raises Conflict when it does not serve."""
        return await self._owner(name).inbox.command(Drain())

    def observe(self, name: str, at: float, counts: Counts | None) -> None:
        """What a scrape at `at` told of an engine; None when its numbers did not come."""
        if (owner := self._owners.get(name)) is not None:
            owner.work.observe(at, counts)

    def take_own_tokens(self, name: str) -> int:
        """Input tokens that the deck itself asked the engine for, since the last call."""
        owner = self._owners.get(name)
        return 0 if owner is None else owner.work.life.take_asked_tokens()

    def hold(self, name: str, why: str) -> None:
        """Keep traffic from it until `release`, also when it is ready: `why` is the sentence for who waits.

        Not kept beyond this deck: who holds an engine does so again when the next deck comes up.
        """
        self._owner(name).hold(why)

    def hold_when_it_comes(self, name: str, why: str) -> None:
        """`hold` for an engine that is about to be added: traffic is kept from it from the first."""
        self._held_at_birth[name] = why

    def release(self, name: str) -> None:
        """Let traffic to it again."""
        self._owner(name).hold("")

    async def reload(self, fleet: str) -> None:
        """Take up what was changed on a fleet: how it is dealt to at once, the rest with each engine's next start."""
        for owner in self._owners.values():
            if owner.work.spec.fleet == fleet:
                await owner.reload()

    async def move_port(self, name: str) -> int | None:
        """Give an engine that does not run another port of its fleet; None where none is free."""
        owner = self._owner(name)
        async with self._moving:  # two that look at once would find the same one
            async with self._database.begin() as session:
                fleet = (await queries.definition(session, owner.work.spec.engine_id)).fleet
                port = await free_port(session, self._settings, self.statuses(), fleet.port_from, fleet.port_to)
                if port is None:
                    return None
                await queries.change(session, owner.work.spec.engine_id, port=port)
            await owner.reload()
        return port

    async def see_off(self, name: str) -> EngineStatus:
        """Drain and end an engine that was taken out of service, give its host memory back, and supervise it no more.

        Returns once that is under way; a deck that ends meanwhile goes on with it when it comes up. Raises
        SQLAlchemyError; it is then seen off as soon as the database answers again.
        """
        try:
            return await self._see_off(name)
        except SQLAlchemyError:
            self._begin(self._load_later(), "load-engines")
            raise

    async def _see_off(self, name: str) -> EngineStatus:
        owner = self._owner(name)
        await owner.reload()
        status = await owner.inbox.command(Stop())
        if name not in self._leaving:
            self._leaving.add(name)
            self._begin(self._let_go(name), f"leave-{name}")
        return status

    async def apply_version(self, name: str, version_id: int) -> None:
        """Have the next start use this profile version. Raises NotFound."""
        owner = self._owner(name)
        async with self._database.session() as session:
            await profiles.known_version(session, version_id)
        await owner.set_version(version_id)

    async def check_version(self, name: str, version_id: int) -> Fault | None:
        """The first reason why it could not be started with this version; None when nothing speaks against it."""
        owner = self._owner(name)
        spec = await owner.spec_with(version_id)
        return await asyncio.to_thread(_fault_of, spec, owner.work.memory_name)

    async def host_memory(self, name: str) -> residentmemory.Fate:
        """What a stop does with the host tier of the version that runs, or is started next."""
        owner = self._owner(name)
        async with self._database.session() as session:
            row = (await queries.definition(session, owner.work.spec.engine_id)).engine
        return residentmemory.fate(await owner.spec_with(row.running_version_id or row.profile_version_id))

    def start_limit(self, name: str) -> float | None:
        """The longest that a start of it may show no progress, in seconds; None = no limit."""
        return checks.start_timeout_seconds(self._owner(name).work.spec, self._settings.start_timeout_seconds) or None

    async def changed(self) -> None:
        """Wait until the status of any engine changes."""
        await self._change.wait()

    async def wait_for(self, name: str, states: frozenset[EngineState], timeout_seconds: float | None) -> EngineStatus:
        """Wait until the engine is in one of `states`. Raises TimeoutError."""
        async with asyncio.timeout(timeout_seconds):
            while (status := self.status(name)).state not in states:
                await self.changed()
        return status

    async def transitions(self, name: str, limit: int = 50) -> list[Transition]:
        """The last changes of state, newest first; of every state that was told."""
        owner = self._owner(name)
        await owner.written()
        engine_id = owner.work.spec.engine_id
        async with self._database.session() as session:
            rows = await queries.newest_transitions(session, engine_id, limit)
        return [
            Transition(row.at, EngineState(row.old_state), EngineState(row.new_state), row.cause, row.evidence)
            for row in rows
        ]

    def shell_command(self, name: str) -> str:
        """The start of this engine as one line for a shell."""
        return shell_command(self._owner(name).work.spec)

    def log_tail(self, name: str, lines: int = 500, search: str = "", level: str = "") -> list[LogLine]:
        """The last lines of the log that match, oldest first (reads a file: call it in a thread)."""
        owner = self._owner(name)
        if level and level not in LEVELS:
            raise InvalidInput("Write one of: %(choices)s.", path="level", values={"choices": ", ".join(LEVELS)})
        return owner.work.log_file.tail(lines, search, level, time.time())

    async def follow_log(self, name: str, after: int) -> AsyncIterator[LogBatch]:
        """Lines behind number `after` (0: from the beginning) as they come, for as long as it is read.

        A line that is not finished comes again, with the same number, when it changes.
        """
        cursor = LogCursor(self._owner(name).work.log_file, max(0, after - 1), time.time())
        while True:
            batch = await asyncio.to_thread(cursor.take, FOLLOW_LINES)
            lines = tuple(line for line in batch.lines if line.number > after)
            if lines or batch.skipped:
                yield LogBatch(lines, batch.skipped)
            # A file has no event to wait for; asked only while somebody reads.
            await asyncio.sleep(FOLLOW_SECONDS)

    async def _supervise(self, engine_id: int, name: str) -> None:
        if self._client is None:
            raise RuntimeError("Engines.open comes first")
        records = EngineRecords(self._database, engine_id, self._entry)
        surroundings = Surroundings(
            settings=self._settings,
            client=self._client,
            on_status=self._on_status,
            on_lines=self._on_lines,
            idle=lambda engine: self.idle(engine),
            in_flight=lambda engine: self.in_flight(engine),
            move_port=self.move_port,
            devices=self._devices,
            gate=self._gate,
        )
        owner = EngineOwner(await records.spec(), records, self._settings.data_dir / "run", surroundings)
        owner.hold(self._held_at_birth.get(name, ""))
        await owner.open()
        self._held_at_birth.pop(name, None)
        self._owners[name] = owner
        self._supervision[name] = asyncio.create_task(owner.run(), name=f"engine-{name}")

    async def _shut_down(self, name: str) -> None:
        owner = self._owner(name)
        await owner.inbox.command(Shutdown())
        await self.wait_for(name, frozenset({EngineState.STOPPED, EngineState.FAILED}), None)
        await owner.written()

    async def _forget_when_stopped(self, name: str) -> None:
        """Unless it is started again meanwhile."""
        while (status := self.status(name)).wanted == "stopped":
            if status.state is EngineState.STOPPED:
                await asyncio.to_thread(residentmemory.forget, self._owner(name).work.memory_name)
                return
            await self.changed()

    async def _let_go(self, name: str) -> None:
        """Once it has stopped. Its rows and its log stay."""
        while self.status(name).state is not EngineState.STOPPED:
            await self.changed()
        owner = self._owners.pop(name)
        self._leaving.discard(name)
        await _cancel([self._supervision.pop(name)])
        await owner.close()
        await asyncio.to_thread(residentmemory.forget, owner.work.memory_name)
        self._on_status(owner.status)

    def _begin(self, work: Coroutine[None, None, None], name: str) -> None:
        task = asyncio.create_task(_logged(work), name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _staying(self, name: str) -> EngineOwner:
        owner = self._owner(name)
        if owner.work.spec.leaving:
            sentence = "Engine %(name)s is being taken out of service; add another one to its fleet."
            raise Conflict(sentence, path="name", values={"name": name})
        return owner

    def _owner(self, name: str) -> EngineOwner:
        try:
            return self._owners[name]
        except KeyError:
            raise NotFound('There is no engine named "%(name)s".', path="name", values={"name": name}) from None

    def _on_status(self, status: EngineStatus) -> None:
        self._change.set()
        self._change = asyncio.Event()
        self._events.publish(Event("engine", status.name, status.as_json()))

    def _on_lines(self, name: str, count: int) -> None:
        now = time.monotonic()
        if now - self._log_told_at.get(name, 0.0) >= LOG_EVENT_SECONDS:
            self._log_told_at[name] = now
            self._events.publish(Event("log", name, {"count": count}))


async def _logged(work: Coroutine[None, None, None]) -> None:
    try:
        await work
    except Exception:  # the task's edge: nobody else would see it
        log.exception("work on an engine failed")


async def _never_busy(_: str) -> None:
    """Without a door nobody asks anything of an engine."""


async def _cancel(tasks: Collection[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _fault_of(spec: EngineSpec, memory_name: str) -> Fault | None:
    return checks.check_version(spec) or residentmemory.check_space(spec, memory_name)
