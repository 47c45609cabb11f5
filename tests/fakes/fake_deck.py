"""A deck without engines: real pages, database, profiles, rollouts and alerts; engines and charts are played.

For the pages' states that a real run cannot easily show (empty, idle, stale, down, a start at 40 %), and
for screenshots: `python -m tests.fakes.fake_deck --scenario busy --port 8790`.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import uvicorn
from fastapi import FastAPI
from sqlalchemy import select

from app.alerts.delivery import DeliveryLoop
from app.background import Loops
from app.config import Settings
from app.deck import Deck
from app.errors import NotFound
from app.events import Event, Events
from app.proxy.metrics import DoorMetrics
from app.services.alerts import Alerts
from app.services.deep_checks import DeepChecks
from app.services.engine_probe import EngineProbe
from app.services.fleets import Fleets
from app.services.planning import Planning
from app.services.preview import Previews
from app.services.profiles import Profiles
from app.services.requests import Requests
from app.services.rollouts import Rollouts
from app.services.signin import SignIn
from app.services.surroundings import Surroundings
from app.store.database import Database
from app.store.models import EngineRow, ProfileVersionRow
from app.store.queries.engines import all_definitions
from app.supervisor.causes import Cause
from app.supervisor.loglines import LogBatch, LogLine
from app.supervisor.records import engine_spec
from app.supervisor.states import EngineState
from app.supervisor.status import EngineStatus, Transition
from app.web.application import build_application
from tests.fakes.fake_canary import canary_client
from tests.fakes.fake_charts import FakeCharts
from tests.fakes.fake_rows import seeded_database

TOKEN = "let-me-in"
SCENARIOS = ("busy", "pressed", "empty", "idle", "starting", "down", "none")
#: What stands in for `-m engine.probe`.
PROBE = (str(Path(__file__).with_name("fake_probe.py")),)

STATES = {"starting": EngineState.STARTING, "down": EngineState.FAILED}
CAUSES = {
    "starting": "Started by the deck.",
    "down": Cause.NO_MODEL % {"path": "/models/qwen"},
}


class FakeEngines:
    """Engines that move when told to, at once or in steps of `step_seconds`."""

    def __init__(self, database: Database, events: Events, scenario: str, step_seconds: float = 0.0) -> None:
        self.in_flight = lambda _name: 0
        self._database = database
        self._events = events
        self._step_seconds = step_seconds
        self._change = asyncio.Event()
        self._held_at: EngineState | None = None
        self._let_go = asyncio.Event()
        self._log = _log_lines()
        self._tasks: set[asyncio.Task[None]] = set()
        names = () if scenario == "none" else ("main-1", "main-2") if scenario in {"busy", "pressed"} else ("main-1",)
        state, cause = STATES.get(scenario, EngineState.READY), CAUSES.get(scenario, "Answered its health check.")
        self._statuses = {name: _status(name, 8710 + place, state, cause) for place, name in enumerate(names)}
        self._past = {name: _past(state, cause) for name in names}
        if scenario == "starting":
            self.set("main-1", phase="Loading the weights", progress=0.42)
        if scenario == "down":
            self.set("main-1", error_code="model_not_found", pid=None, started_at=None, running_version=None)
        if scenario == "busy":
            self.set("main-2", running_version=3)

    def set(self, name: str, **changes: Any) -> None:
        """Change a status and tell everyone."""
        old = self._statuses[name]
        new = replace(old, **changes)
        if new.state is not old.state:
            new = replace(new, since=time.time())
            self._past[name].insert(0, Transition(time.time(), old.state, new.state, new.cause, {}))
        self._statuses[name] = new
        self._change.set()
        self._change = asyncio.Event()
        self._events.publish(Event("engine", name, new.as_json()))

    def hold_at(self, state: EngineState) -> None:
        """Stay in `state` on the next way through it, until `go_on`."""
        self._held_at = state
        self._let_go.clear()

    def go_on(self) -> None:
        """Leave the state that `hold_at` named."""
        self._held_at = None
        self._let_go.set()

    def write(self, text: str, level: str = "info") -> None:
        """A line more in every log."""
        self._log.append(LogLine(self._log[-1].number + len(text) + 1, time.time(), level, text))

    def statuses(self, fleet: str | None = None) -> list[EngineStatus]:
        return [status for status in self._statuses.values() if fleet in (None, status.fleet)]

    def status(self, name: str) -> EngineStatus:
        if name not in self._statuses:
            raise NotFound(f"There is no engine named {name!r}.", path="name")
        return self._statuses[name]

    async def start(self, name: str) -> EngineStatus:
        self._go(name, (EngineState.STARTING, EngineState.READY))
        return self.status(name)

    async def stop(self, name: str, *, now: bool = False) -> EngineStatus:
        self._go(name, (EngineState.STOPPING, EngineState.STOPPED))
        return self.status(name)

    async def restart(self, name: str) -> EngineStatus:
        self._go(name, (EngineState.STOPPING, EngineState.STOPPED, EngineState.STARTING, EngineState.READY))
        return self.status(name)

    async def drain(self, name: str) -> EngineStatus:
        self._go(name, (EngineState.DRAINING,))
        return self.status(name)

    async def idle(self, name: str) -> None:
        """Nothing is open for long here."""

    def hold(self, name: str, why: str) -> None:
        self.set(name, held=why)

    def hold_when_it_comes(self, name: str, why: str) -> None:
        """It is held as soon as it is there, which is soon enough here."""

    def release(self, name: str) -> None:
        self.set(name, held="")

    async def check_version(self, name: str, version_id: int) -> None:
        """Nothing speaks against any."""

    async def host_memory(self, name: str) -> str:
        """Kept, as the connector does by default."""
        return "kept"

    def start_limit(self, name: str) -> float | None:
        """None: a start takes as long as it takes."""

    async def apply_version(self, name: str, version_id: int) -> None:
        async with self._database.begin() as session:
            version = await session.get_one(ProfileVersionRow, version_id)
            row = (await session.scalars(select(EngineRow).where(EngineRow.name == name))).one()
            row.running_version_id, row.pid = version_id, 1
        self.set(name, wanted_version=version.number, running_version=version.number)

    async def load(self) -> None:
        """Engines that the database has and this deck has not, on their way to being ready."""
        async with self._database.session() as session:
            found = [engine_spec(row) for row in await all_definitions(session)]
        for spec in (one for one in found if one.name not in self._statuses):
            added = _status(spec.name, spec.port, EngineState.STOPPED, "Added.")
            given = {"fleet": spec.fleet, "model": spec.model, "served_model_name": spec.served_model_name}
            self._statuses[spec.name] = replace(added, **given, devices=spec.devices)
            self._past[spec.name] = []
            self._go(spec.name, (EngineState.STARTING, EngineState.READY))

    async def reload(self, fleet: str) -> None:
        async with self._database.session() as session:
            specs = [engine_spec(row) for row in await all_definitions(session) if row.fleet.name == fleet]
        for spec in specs:
            old = self.status(spec.name)
            waits = [name for name in ("model", "served_model_name") if getattr(old, name) != getattr(spec, name)]
            settings = {"routing": spec.settings.routing, "join_identical": spec.settings.join_identical}
            self.set(spec.name, restart_for=tuple(waits), **settings)

    async def see_off(self, name: str) -> EngineStatus:
        self.set(name, leaving=True)
        self._go(name, (EngineState.DRAINING, EngineState.STOPPING, EngineState.STOPPED))
        return self.status(name)

    async def changed(self) -> None:
        await self._change.wait()

    async def wait_for(self, name: str, states: frozenset[EngineState], timeout_seconds: float | None) -> EngineStatus:
        async with asyncio.timeout(timeout_seconds):
            while (status := self.status(name)).state not in states:
                await self.changed()
        return status

    async def transitions(self, name: str, limit: int = 50) -> list[Transition]:
        return self._past[self.status(name).name][:limit]

    def shell_command(self, name: str) -> str:
        return f"python -m vllm.entrypoints.openai.api_server --port {self.status(name).port}"

    def log_tail(self, name: str, lines: int = 500, search: str = "", level: str = "") -> list[LogLine]:
        return [line for line in self._log if search in line.text and level in {"", line.level}][-lines:]

    async def follow_log(self, name: str, after: int) -> AsyncIterator[LogBatch]:
        while True:
            new = tuple(line for line in self._log if line.number > after)
            if new:
                after = new[-1].number
                yield LogBatch(new, 0)
            await asyncio.sleep(0.1)

    def _go(self, name: str, states: tuple[EngineState, ...]) -> None:
        first, *rest = states
        self._arrive(name, first)
        task = asyncio.get_running_loop().create_task(self._walk(name, rest))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _walk(self, name: str, states: list[EngineState]) -> None:
        for state in (None, *states):
            if state is not None:
                await asyncio.sleep(self._step_seconds)
                self._arrive(name, state)
            if self._statuses[name].state is self._held_at:
                await self._let_go.wait()
        if self._statuses[name].leaving:
            gone = self._statuses.pop(name)
            self._events.publish(Event("engine", name, gone.as_json()))

    def _arrive(self, name: str, state: EngineState) -> None:
        is_starting = state is EngineState.STARTING
        self.set(
            name,
            state=state,
            cause=f"Asked for: {state.value}.",
            phase="Loading the weights" if is_starting else None,
            progress=0.4 if is_starting else None,
        )


class FakeDoor:
    """A door with three requests open."""

    waiting = 0
    metrics = DoorMetrics()

    def in_flight(self, engine: str) -> int:
        return 3


def build(data_dir: Path, scenario: str = "busy", *, step_seconds: float = 0.0, port: int = 0) -> FastAPI:
    """The application; its deck is on `app.state.deck`."""
    settings = Settings(data_dir=data_dir, admin_token=TOKEN, port=port)
    database, events = Database(settings.resolved_database_url), Events()
    engines = FakeEngines(database, events, scenario, step_seconds)
    delivery = DeliveryLoop(database, events)
    probe = EngineProbe(settings.data_dir / "probes", entry=PROBE)
    surroundings = Surroundings(database, probe.known)
    profiles = Profiles(database, events, surroundings)
    planning = Planning(database, profiles, cast(Any, engines))
    fleet_service = Fleets(settings, database, events, cast(Any, engines), profiles)
    previews = Previews(settings, database, cast(Any, engines), profiles, planning, fleet_service)
    deck = Deck(
        settings=settings,
        database=database,
        events=events,
        signin=SignIn(settings),
        engines=cast(Any, engines),
        fleets=fleet_service,
        profiles=profiles,
        deep_checks=DeepChecks(profiles, surroundings, probe),
        planning=planning,
        previews=previews,
        rollouts=Rollouts(database, events, cast(Any, engines), profiles, previews, fleet_service, canary_client()),
        charts=cast(Any, FakeCharts(scenario)),
        alerts=Alerts(database, events, delivery),
        door=cast(Any, FakeDoor()),
        requests=Requests(database, events),
        scrape_loop=cast(Any, None),
        alert_loop=cast(Any, None),
        delivery_loop=delivery,
        retention_loop=cast(Any, None),
        loops=Loops(),
    )

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        data_dir.mkdir(parents=True, exist_ok=True)
        (data_dir / "tierdeck.db").write_bytes(await seeded_database(scenario))
        await deck.signin.open()
        await deck.alerts.open()
        deck.loops.start("delivery", delivery.run)
        yield
        await deck.rollouts.close()
        await deck.loops.close()
        await database.close()

    return build_application(deck, lifespan)


def _status(name: str, port: int, state: EngineState, cause: str) -> EngineStatus:
    now = time.time()
    return EngineStatus(
        name=name,
        fleet="main",
        model="/models/qwen",
        state=state,
        since=now - 97_400,
        cause=cause,
        base_url=f"http://127.0.0.1:{port}",
        port=port,
        pid=4711 + port,
        started_at=now - 97_420,
        wanted_profile="agents",
        wanted_version=3,
        running_version=3,
        served_model_name="qwen",
    )


def _past(state: EngineState, cause: str) -> list[Transition]:
    now = time.time()
    return [
        Transition(now - 97_400, EngineState.STARTING, state, cause, {}),
        Transition(now - 97_420, EngineState.STOPPED, EngineState.STARTING, "Started by the deck.", {}),
        Transition(now - 97_425, EngineState.STOPPING, EngineState.STOPPED, "All 3 processes are gone.", {}),
        Transition(now - 97_440, EngineState.READY, EngineState.STOPPING, "Asked for by admin.", {}),
    ]


def _log_lines() -> list[LogLine]:
    texts = (
        ("info", "Initializing a V1 LLM engine (v0.32.0) with config: model='/models/qwen'"),
        ("info", "Loading weights took 38.20 seconds"),
        ("warning", "Prefix caching is experimental for models with linear attention layers."),
        ("info", "GPU KV cache size: 1,003,520 tokens"),
        ("error", "<script>alert('not run')</script> in a log line is text"),
        ("info", "Application startup complete."),
    )
    start = time.time() - 90
    return [LogLine(100 * place + 1, start + place, level, text) for place, (level, text) in enumerate(texts)]


def main() -> None:
    """Serve one scenario until Ctrl-C."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--scenario", choices=SCENARIOS, default="busy")
    parser.add_argument("--port", type=int, default=8790)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        application = build(Path(directory), options.scenario, step_seconds=2.0)
        uvicorn.run(application, port=options.port, timeout_graceful_shutdown=1)


if __name__ == "__main__":
    main()
