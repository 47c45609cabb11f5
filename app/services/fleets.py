"""The verbs on fleets: what there is, adding and changing one, more engines and fewer."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sqlalchemy.ext.asyncio import AsyncSession

from app.config import Settings
from app.errors import Conflict, InvalidInput, NotFound
from app.events import Event, Events
from app.fleets import devices
from app.fleets.content import FIELDS_OF_A_START, MOST_ENGINES, Content, read_content, read_count, read_name
from app.fleets.placing import new_name, ports_of
from app.fleets.room import need_of, shortage
from app.rollouts.holds import Hold
from app.services.engines import Engines
from app.services.ports import free_port
from app.services.profiles import Profiles
from app.services.surroundings import DRIVER, no_fleet
from app.store.database import Database
from app.store.models import EngineRow, FleetRow, ProfileRow, ProfileVersionRow
from app.store.queries import engines as engine_queries
from app.store.queries import fleets as queries
from app.store.queries import profiles as profile_queries
from app.store.queries import rollouts
from app.store.queries.engines import EngineDefinition
from app.store.queries.fleets import FirstEngine
from app.supervisor import machine
from app.supervisor.command import EngineSpec, is_path_like
from app.supervisor.records import engine_spec, settings_of
from app.supervisor.status import EngineStatus

Version = tuple[ProfileRow, ProfileVersionRow]


@dataclass(frozen=True)
class FleetView:
    """A fleet as shown."""

    name: str
    content: Content
    created_at: float
    engines: tuple[EngineStatus, ...]
    """Those in service, and those that are just leaving."""

    @property
    def staying(self) -> tuple[EngineStatus, ...]:
        """Those in service."""
        return tuple(engine for engine in self.engines if not engine.leaving)

    @property
    def restart_for(self) -> tuple[str, ...]:
        """Fields that some running engine has not taken up yet."""
        waiting = {name for engine in self.engines for name in engine.restart_for}
        return tuple(name for name in FIELDS_OF_A_START if name in waiting)

    def as_json(self) -> dict[str, Any]:
        """For REST."""
        return {
            "name": self.name,
            **self.content.as_json(),
            "created_at": self.created_at,
            "engines": [engine.name for engine in self.staying],
            "leaving": [engine.name for engine in self.engines if engine.leaving],
            "ready": sum(engine.serves for engine in self.engines),
            "restart_for": list(self.restart_for),
        }


@dataclass(frozen=True)
class NewEngine:
    """What adding an engine to a fleet would make. `port` is 0 when none is free; `refusal` says why it cannot be."""

    fleet: str
    name: str
    port: int
    devices: tuple[str, ...]
    profile: str
    version: int
    host_bytes: int
    refusal: Conflict | None = None


class Fleets:
    """Every fleet of this deck. What is changed is written first, then taken up by `engines`."""

    def __init__(
        self, settings: Settings, database: Database, events: Events, engines: Engines, profiles: Profiles
    ) -> None:
        self._settings = settings
        self._database = database
        self._events = events
        self._engines = engines
        self._profiles = profiles
        self._turn = asyncio.Lock()
        """Two changes at once could choose the same name, port or devices."""

    async def list(self) -> Sequence[FleetView]:
        """Every fleet, by name."""
        async with self._database.session() as session:
            rows = await queries.all_fleets(session)
        return [self._view(row) for row in rows]

    async def get(self, name: str) -> FleetView:
        """One fleet. Raises NotFound."""
        async with self._database.session() as session:
            return self._view(await _fleet(session, name))

    async def create(
        self, name: str, asked: Mapping[str, Any], profile: str, version: int | None = None, engines: Any = 1
    ) -> FleetView:
        """Add a fleet and start its engines with a profile's version (the newest if none is given).

        Raises InvalidInput with the field, NotFound (profile, version), Conflict (the name is taken, no room).
        """
        read_name(name)
        count = read_count(engines)
        wanted = await self._profiles.version(profile, version)
        content = read_content(asked, wanted.flags, interpreter=str(self._settings.engine_python))
        async with self._turn:
            await self._check(name, content, is_new=True)
            async with self._database.begin() as session:
                row = await queries.add(session, name, time.time(), **content.as_json(), follows_settings=False)
                found = await self._version(session, row, wanted.id)
                for _ in range(count):
                    await self._place(session, row, found)
            await self._engines.load()
        return await self._told(name)

    async def update(self, name: str, asked: Mapping[str, Any]) -> FleetView:
        """Change what is given. How requests are dealt is in force at once, the rest with each engine's next start.

        Raises NotFound, InvalidInput with the field, Conflict (a rollout would start engines with it half-way).
        """
        async with self._turn:
            async with self._database.session() as session:
                present = await _fleet(session, name)
                own = await queries.engines_of(session, present.id)
                flags = (await self._version(session, present, None))[1].flags if own else {}
                content = read_content(asked, flags, _content(present))
                if _differs_at_a_start(content, _content(present)):
                    await _no_rollout(session, present, None)
            await self._check(name, content)
            await self._store(name, content)
            await self._engines.reload(name)
        return await self._told(name)

    async def delete(self, name: str) -> Sequence[EngineStatus]:
        """Take a fleet out of service: its engines are drained and ended, its history stays.

        Returns its engines on their way out. Raises NotFound, Conflict (a rollout runs).
        """
        async with self._turn:
            async with self._database.begin() as session:
                row = await _fleet(session, name)
                await _no_rollout(session, row, None)
                names = await queries.engine_names(session, row.id)
                await queries.retire(session, row.id, time.time())
            left = [await self._engines.see_off(engine) for engine in names]
        self._events.publish(Event("fleet", name, {"deleted": True}))
        return left

    async def new_engine(self, name: str, version_id: int | None = None) -> NewEngine:
        """What adding an engine would make. Raises NotFound."""
        async with self._database.session() as session:
            row = await _fleet(session, name)
            return await self._plan(session, row, await self._version(session, row, version_id))

    async def add_engine(
        self,
        name: str,
        *,
        version_id: int | None = None,
        rollout_id: int | None = None,
        turn_id: int | None = None,
    ) -> EngineStatus:
        """Add an engine and start it, with the version that the fleet's engines have unless another is given.

        `rollout_id`: the rollout on whose behalf it is done; any other that runs forbids it. `turn_id`: whose engine
        it is to replace; written together with the engine, or a deck that ends in between could give one engine to
        two turns. It gets no traffic until it is released. Raises NotFound, Conflict (no port, no devices, no memory,
        a rollout runs).
        """
        async with self._turn:
            async with self._database.begin() as session:
                row = await _fleet(session, name)
                await _no_rollout(session, row, rollout_id)
                if len(await queries.engine_names(session, row.id)) >= MOST_ENGINES:
                    values = {"most": MOST_ENGINES}
                    raise Conflict("A fleet has at most %(most)s engines.", path="engines", values=values)
                engine = await self._place(session, row, await self._version(session, row, version_id))
                if turn_id is not None:
                    await rollouts.set_successor(session, turn_id, engine)
            if turn_id is not None:
                self._engines.hold_when_it_comes(engine, Hold.TESTS % {"id": rollout_id, "engine": engine})
            await self._engines.load()
        await self._told(name)
        return self._engines.status(engine)

    async def remove_engine(
        self, name: str, engine: str | None = None, *, rollout_id: int | None = None
    ) -> EngineStatus:
        """Take an engine (the newest without a name) out of service: drained, ended, its host memory given back.

        Raises NotFound, Conflict (the only one, a rollout runs).
        """
        async with self._turn:
            async with self._database.begin() as session:
                row = await _fleet(session, name)
                await _no_rollout(session, row, rollout_id)
                leaving = _one_of(await queries.engines_of(session, row.id), engine, name)
                await queries.retire_engine(session, leaving, time.time())
            status = await self._engines.see_off(leaving)
        await self._told(name)
        return status

    async def _place(self, session: AsyncSession, row: FleetRow, version: Version) -> str:
        plan = await self._plan(session, row, version)
        if plan.refusal is not None:
            raise plan.refusal
        made = FirstEngine(plan.name, plan.port, plan.devices)
        await queries.add_engine(session, row.id, made, version[1].id, time.time())
        return plan.name

    async def _plan(self, session: AsyncSession, row: FleetRow, version: Version) -> NewEngine:
        known = await queries.every_engine(session)
        supervised = {status.name for status in self._engines.statuses()}
        names = {one.name: (one.fleet_id, one.retired_at is None or one.name in supervised) for one in known}
        content = _content(row)
        groups = [tuple(one.devices) for one in known if one.fleet_id == row.id and one.retired_at is None]
        statuses = self._engines.statuses()
        port = await free_port(session, self._settings, statuses, content.port_from, content.port_to)
        engine = EngineRow(
            id=0,
            name=new_name(row.name, row.id, names),
            port=port or 0,
            devices=[*(devices.group_for(content.devices, groups) or ())],
        )
        spec = engine_spec(EngineDefinition(engine, row, *version))
        return await self._judged(session, content, spec)

    async def _judged(self, session: AsyncSession, content: Content, spec: EngineSpec) -> NewEngine:
        need, profile = need_of(spec), spec.profile
        plan = NewEngine(spec.fleet, spec.name, spec.port, spec.devices, profile.name, profile.number, need.host_bytes)
        if not plan.port:
            ports = ports_of(content.port_from, content.port_to, self._settings.engine_port)
            sentence = "No port from %(low)s to %(high)s is free; give the fleet a wider range."
            values = {"low": ports.low, "high": ports.high}
            return replace(plan, refusal=Conflict(sentence, path="port_to", values=values))
        if content.devices and not plan.devices:
            sentence = "Every group of devices has its engine; give the fleet another group."
            return replace(plan, refusal=Conflict(sentence, path="devices"))
        others = [need_of(engine_spec(one)) for one in await engine_queries.all_definitions(session)]
        usable, has_devices = await asyncio.to_thread(lambda: (machine.usable_bytes(), DRIVER.exists()))
        return replace(plan, refusal=shortage(need, others, usable, has_devices=has_devices))

    async def _version(self, session: AsyncSession, row: FleetRow, version_id: int | None) -> Version:
        """The one that is asked for, else the one that most engines of the fleet have, of these the newest."""
        if version_id is None:
            own = await queries.engines_of(session, row.id)
            if not own:
                sentence = "The fleet %(fleet)s has no engine whose profile a new one could have."
                raise Conflict(sentence, path="version", values={"fleet": row.name})
            counts = Counter(engine.profile_version_id for engine in own)
            version_id = max(counts, key=lambda one: (counts[one], one))
        return await profile_queries.known_version(session, version_id)

    async def _check(self, name: str, content: Content, *, is_new: bool = False) -> None:
        """What only the machine and the other fleets tell."""
        async with self._database.session() as session:
            others = [row for row in await queries.all_fleets(session) if is_new or row.name != name]
        if any(row.name == name for row in others):
            sentence = "There is a fleet named %(name)s already; choose another name."
            raise Conflict(sentence, path="name", values={"name": name})
        for row in others:
            if row.served_model_name == content.served_model_name:
                sentence = "The fleet %(fleet)s serves this name already; requests could not tell them apart."
                raise InvalidInput(sentence, path="served_model_name", values={"fleet": row.name})
        await asyncio.to_thread(_check_paths, content)

    async def _store(self, name: str, content: Content) -> None:
        async with self._database.begin() as session:
            row = await _fleet(session, name)
            own = {engine.name: engine for engine in await queries.engines_of(session, row.id)}
            groups = {engine: tuple(one.devices) for engine, one in own.items()}
            for engine, group in devices.dealt_anew(content.devices, groups).items():
                own[engine].devices = [*group]
            if _content(row) != content:
                queries.change(row, **content.as_json(), follows_settings=False)

    async def _told(self, name: str) -> FleetView:
        view = await self.get(name)
        self._events.publish(Event("fleet", name, view.as_json()))
        return view

    def _view(self, row: FleetRow) -> FleetView:
        return FleetView(row.name, _content(row), row.created_at, tuple(self._engines.statuses(row.name)))


async def _fleet(session: AsyncSession, name: str) -> FleetRow:
    row = await queries.by_name(session, name)
    if row is None:
        raise no_fleet(name)
    return row


async def _no_rollout(session: AsyncSession, row: FleetRow, but: int | None) -> None:
    running = await rollouts.running_on(session, row.id)
    if running is not None and running.id != but:
        sentence = "Rollout %(id)s, started by %(author)s, is running on this fleet; wait for its end."
        raise Conflict(sentence, path="fleet", values={"id": running.id, "author": running.author})


def _differs_at_a_start(one: Content, other: Content) -> bool:
    return any(getattr(one, name) != getattr(other, name) for name in FIELDS_OF_A_START)


def _one_of(own: Sequence[EngineRow], engine: str | None, fleet: str) -> str:
    names = [row.name for row in own]
    if engine is not None and engine not in names:
        values = {"fleet": fleet, "name": engine}
        raise NotFound("The fleet %(fleet)s has no engine named %(name)s.", path="engine", values=values)
    if len(names) == 1:
        sentence = "%(name)s is the only engine of %(fleet)s; delete the fleet instead."
        raise Conflict(sentence, path="engine", values={"name": names[0], "fleet": fleet})
    return engine or max(own, key=lambda row: (row.created_at, row.id)).name


def _check_paths(content: Content) -> None:
    """Raises InvalidInput for a path that leads nowhere on this machine (blocking)."""
    if not shutil.which(content.interpreter):
        sentence = "The interpreter %(path)s does not exist or may not be executed."
        raise InvalidInput(sentence, path="interpreter", values={"path": content.interpreter})
    if is_path_like(content.model) and not Path(content.model).expanduser().exists():
        sentence = "There is no model at %(path)s: the path does not exist."
        raise InvalidInput(sentence, path="model", values={"path": content.model})


def _content(row: FleetRow) -> Content:
    settings = settings_of(row)
    return Content(
        model=row.model,
        served_model_name=row.served_model_name,
        interpreter=row.interpreter,
        base_flags=row.base_flags,
        environment=row.environment,
        devices=tuple(tuple(map(str, group)) for group in row.devices),
        port_from=row.port_from,
        port_to=row.port_to,
        routing=settings.routing,
        join_identical=settings.join_identical,
        drain_timeout_seconds=settings.drain_timeout_seconds,
    )
