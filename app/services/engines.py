"""The verbs on engines: what the page, the command line and the door ask of the supervisor."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable

import httpx
import structlog

from app.config import Settings
from app.errors import InvalidInput, NotFound
from app.events import Event, Events
from app.store.database import Database
from app.store.queries import engines as queries
from app.supervisor import residentmemory
from app.supervisor.command import ENTRY, shell_command
from app.supervisor.decide import Drain, Restart, Shutdown, Start, Stop
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


class Engines:
    """All engines of this deck. Every call is about one, by its name, or raises NotFound.

    `in_flight` and `idle` are set by the door: how many requests it has open on an engine, and a wait
    until there are none. `entry` is the program that an engine's interpreter runs.
    """

    def __init__(self, settings: Settings, database: Database, events: Events, entry: tuple[str, ...] = ENTRY) -> None:
        self.in_flight: Callable[[str], int] = lambda _name: 0
        self.idle: Callable[[str], Awaitable[None]] = self._idle_by_count
        self._settings = settings
        self._database = database
        self._events = events
        self._entry = entry
        self._owners: dict[str, EngineOwner] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._client: httpx.AsyncClient | None = None
        self._change = asyncio.Event()
        self._in_flight_change = asyncio.Event()
        self._log_told_at: dict[str, float] = {}

    async def open(self) -> None:
        """Adopt the engines that run, start those that should, and supervise all from here on."""
        self._settings.log_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        # Engines are on this machine: a proxy from the environment must not come between.
        self._client = httpx.AsyncClient(trust_env=False)
        await self.load()

    async def load(self) -> None:
        """Take up the engines of the database that are not supervised yet."""
        async with self._database.session() as session:
            found = [(row.engine.id, row.engine.name) for row in await queries.all_definitions(session)]
        for engine_id, name in found:
            if name not in self._owners:
                await self._supervise(engine_id, name)
        known = frozenset(owner.work.memory_name for owner in self._owners.values())
        await asyncio.to_thread(residentmemory.forget_all, self._settings.data_dir, known)

    async def close(self) -> None:
        """Stop supervising. Engines are ended too, unless the settings let them outlive the deck."""
        if not self._settings.engines_outlive_deck:
            await asyncio.gather(*(self._shut_down(name) for name in self._owners))
            await asyncio.to_thread(residentmemory.forget_all, self._settings.data_dir)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
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
        """Have it run; calls off a drain. Returns once that is under way."""
        return await self._owner(name).inbox.command(Start())

    async def stop(self, name: str, *, now: bool = False, forget: bool = False) -> EngineStatus:
        """Have it not run: drain, then end it. `now` leaves out the drain, `forget` gives its host memory back."""
        status = await self._owner(name).inbox.command(Stop(now))
        if forget:
            self._tasks.append(asyncio.create_task(self._forget_when_stopped(name), name=f"forget-{name}"))
        return status

    async def restart(self, name: str) -> EngineStatus:
        """Drain, end, and start with the wanted version."""
        return await self._owner(name).inbox.command(Restart())

    async def drain(self, name: str) -> EngineStatus:
        """Send it no new requests until it is started again. Raises Conflict when it does not serve."""
        return await self._owner(name).inbox.command(Drain())

    async def apply_version(self, name: str, version_id: int) -> None:
        """Have the next start use this profile version."""
        owner = self._owner(name)
        async with self._database.session() as session:
            if not await queries.version_exists(session, version_id):
                raise NotFound(f"There is no profile version {version_id}.", path="version_id")
        await owner.set_version(version_id)

    async def changed(self) -> None:
        """Wait until the status of any engine changes."""
        await self._change.wait()

    async def wait_for(self, name: str, states: frozenset[EngineState], timeout_seconds: float | None) -> EngineStatus:
        """Wait until the engine is in one of `states`. Raises TimeoutError."""
        async with asyncio.timeout(timeout_seconds):
            while (status := self.status(name)).state not in states:
                await self.changed()
        return status

    def in_flight_changed(self) -> None:
        """For a door that counts requests but has no wait of its own."""
        self._in_flight_change.set()
        self._in_flight_change = asyncio.Event()

    async def transitions(self, name: str, limit: int = 50) -> list[Transition]:
        """The last changes of state, newest first."""
        engine_id = self._owner(name).work.spec.engine_id
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
            raise InvalidInput(f"Write one of: {', '.join(LEVELS)}.", path="level")
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
        )
        owner = EngineOwner(await records.spec(), records, self._settings.data_dir / "run", surroundings)
        self._owners[name] = owner
        await owner.open()
        self._tasks.append(asyncio.create_task(owner.run(), name=f"engine-{name}"))

    async def _shut_down(self, name: str) -> None:
        await self._owner(name).inbox.command(Shutdown())
        await self.wait_for(name, frozenset({EngineState.STOPPED}), None)

    async def _forget_when_stopped(self, name: str) -> None:
        """Unless it is started again meanwhile."""
        while (status := self.status(name)).wanted == "stopped":
            if status.state is EngineState.STOPPED:
                await asyncio.to_thread(residentmemory.forget, self._owner(name).work.memory_name)
                return
            await self.changed()

    def _owner(self, name: str) -> EngineOwner:
        try:
            return self._owners[name]
        except KeyError:
            raise NotFound(f"There is no engine named {name!r}.", path="name") from None

    async def _idle_by_count(self, name: str) -> None:
        while self.in_flight(name):
            await self._in_flight_change.wait()

    def _on_status(self, status: EngineStatus) -> None:
        self._change.set()
        self._change = asyncio.Event()
        self._events.publish(Event("engine", status.name, status.as_json()))

    def _on_lines(self, name: str, count: int) -> None:
        now = time.monotonic()
        if now - self._log_told_at.get(name, 0.0) >= LOG_EVENT_SECONDS:
            self._log_told_at[name] = now
            self._events.publish(Event("log", name, {"count": count}))
