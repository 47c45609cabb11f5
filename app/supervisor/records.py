"""What the owner of an engine reads and writes in the database."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

from sqlalchemy.ext.asyncio import AsyncSession

from app.store.database import Database
from app.store.models import FleetRow
from app.store.owed import Owed
from app.store.queries import engines as queries
from app.store.queries import profiles, runs
from app.store.queries.engines import EngineDefinition
from app.supervisor.command import ENTRY, EngineSpec, Given, Profile
from app.supervisor.decide import Situation
from app.supervisor.processes import Process
from app.supervisor.states import EngineState
from app.supervisor.status import FleetSettings


@dataclass(frozen=True)
class Recorded:
    """What the last deck wrote about an engine's process."""

    state: EngineState
    since: float
    cause: str
    wanted: str
    process: Process | None
    marker: str | None
    running_version: int | None
    given: Given | None = None
    """What its fleet gave the process; None for one that an earlier release started."""


class EngineRecords:
    """The rows of one engine. `entry` is the program that its interpreter runs.

    What happened is written in time where the database takes it, else later; only a launch has to be written first.
    """

    def __init__(self, database: Database, engine_id: int, entry: tuple[str, ...] = ENTRY) -> None:
        self._database = database
        self._engine_id = engine_id
        self._entry = entry
        self._owed = Owed(database, f"engine {engine_id}")

    async def close(self) -> None:
        """Write what could not be written before, if it can be now."""
        await self._owed.close()

    async def spec(self) -> EngineSpec:
        """What the next start would be."""
        async with self._database.session() as session:
            return engine_spec(await queries.definition(session, self._engine_id), self._entry)

    async def spec_with(self, version_id: int) -> EngineSpec:
        """What a start with another profile version would be. Raises NotFound."""
        async with self._database.session() as session:
            profile, version = await profiles.known_version(session, version_id)
            own = await queries.definition(session, self._engine_id)
            return engine_spec(replace(own, profile=profile, version=version), self._entry)

    async def recorded(self) -> Recorded:
        """What the last deck left."""
        async with self._database.session() as session:
            row = (await queries.definition(session, self._engine_id)).engine
            number = await queries.version_number(session, row.running_version_id)
        known = row.pid is not None and row.pid_started_at is not None
        return Recorded(
            state=EngineState(row.state),
            since=row.state_since,
            cause=row.cause,
            wanted=row.wanted,
            process=Process(int(row.pid or 0), float(row.pid_started_at or 0.0)) if known else None,
            marker=row.marker,
            running_version=number,
            given=Given.from_json(row.running_with) if row.running_with else None,
        )

    async def save(self, old: EngineState, situation: Situation, *, moved: bool) -> None:
        """Write the situation, and the transition if it is a new one."""

        async def write(session: AsyncSession) -> None:
            await queries.change(
                session,
                self._engine_id,
                state=situation.state.value,
                state_since=situation.since,
                cause=situation.cause,
                wanted=situation.wanted,
            )
            if moved:
                await queries.add_transition(
                    session,
                    self._engine_id,
                    at=situation.since,
                    old_state=old.value,
                    new_state=situation.state.value,
                    cause=situation.cause,
                    evidence=situation.evidence,
                )

        await self._owed.write(write)

    async def save_launch(self, marker: str, spec: EngineSpec) -> None:
        """Written before the process exists, so that it is found even if the deck dies at that moment.

        Raises SQLAlchemyError.
        """

        async def write(session: AsyncSession) -> None:
            await queries.change(
                session,
                self._engine_id,
                pid=None,
                pid_started_at=None,
                marker=marker,
                running_version_id=spec.profile.version_id,
                running_with=spec.given.as_json(),
            )
            await runs.begin(session, self._engine_id, spec.profile.version_id, marker, now)

        now = time.time()
        await self._owed.write_now(write)

    async def save_process(self, process: Process, at: float, text: str) -> None:
        """The process of this start, and a mark for the charts."""

        async def write(session: AsyncSession) -> None:
            await queries.change(session, self._engine_id, pid=process.pid, pid_started_at=process.started)
            await queries.add_mark(session, self._engine_id, at, "restart", text)

        await self._owed.write(write)

    async def forget_process(self) -> None:
        """No process of it is left."""

        async def write(session: AsyncSession) -> None:
            await runs.end(session, self._engine_id, now)
            await queries.change(
                session,
                self._engine_id,
                pid=None,
                pid_started_at=None,
                marker=None,
                running_version_id=None,
                running_with=None,
            )

        now = time.time()
        await self._owed.write(write)

    async def set_version(self, version_id: int) -> None:
        """The version that the next start uses."""
        async with self._database.begin() as session:
            await queries.change(session, self._engine_id, profile_version_id=version_id)


def engine_spec(found: EngineDefinition, entry: tuple[str, ...] = ENTRY) -> EngineSpec:
    """What an engine is started as, its wanted version included."""
    version = found.version
    profile = Profile(
        name=found.profile.name,
        number=version.number,
        version_id=version.id,
        kv_transfer_config=version.kv_transfer_config,
        flags=version.flags,
        environment=_texts(version.environment),
    )
    fleet = found.fleet
    return EngineSpec(
        engine_id=found.engine.id,
        name=found.engine.name,
        fleet_id=fleet.id,
        fleet=fleet.name,
        model=fleet.model,
        served_model_name=fleet.served_model_name,
        interpreter=fleet.interpreter,
        host="127.0.0.1",
        port=found.engine.port,
        profile=profile,
        entry=entry,
        base_flags=fleet.base_flags,
        base_environment=_texts(fleet.environment),
        devices=tuple(map(str, found.engine.devices)),
        settings=settings_of(fleet),
        leaving=found.engine.retired_at is not None,
    )


def settings_of(fleet: FleetRow) -> FleetSettings:
    """What is in force at once."""
    return FleetSettings(
        routing="least_busy" if fleet.routing == "least_busy" else "sticky",
        join_identical=fleet.join_identical,
        drain_timeout_seconds=fleet.drain_timeout_seconds,
    )


def _texts(environment: Mapping[str, object]) -> dict[str, str]:
    return {name: str(value) for name, value in environment.items()}
