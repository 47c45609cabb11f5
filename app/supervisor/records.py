"""What the owner of an engine reads and writes in the database."""

from __future__ import annotations

import time
from dataclasses import dataclass

from app.store.database import Database
from app.store.queries import engines as queries
from app.store.queries import runs
from app.store.queries.engines import EngineDefinition
from app.supervisor.command import ENTRY, EngineSpec, Profile
from app.supervisor.decide import Situation
from app.supervisor.processes import Process
from app.supervisor.states import EngineState


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


class EngineRecords:
    """The rows of one engine. `entry` is the program that its interpreter runs."""

    def __init__(self, database: Database, engine_id: int, entry: tuple[str, ...] = ENTRY) -> None:
        self._database = database
        self._engine_id = engine_id
        self._entry = entry

    async def spec(self) -> EngineSpec:
        """What the next start would be."""
        async with self._database.session() as session:
            return engine_spec(await queries.definition(session, self._engine_id), self._entry)

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
        )

    async def save(self, old: EngineState, situation: Situation, *, moved: bool) -> None:
        """Write the situation, and the transition if it is a new one."""
        async with self._database.begin() as session:
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

    async def save_launch(self, marker: str, version_id: int) -> None:
        """Written before the process exists, so that it is found even if the deck dies at that moment."""
        async with self._database.begin() as session:
            await queries.change(
                session,
                self._engine_id,
                pid=None,
                pid_started_at=None,
                marker=marker,
                running_version_id=version_id,
            )
            await runs.begin(session, self._engine_id, version_id, marker, time.time())

    async def save_process(self, process: Process, at: float, text: str) -> None:
        """The process of this start, and a mark for the charts."""
        async with self._database.begin() as session:
            await queries.change(session, self._engine_id, pid=process.pid, pid_started_at=process.started)
            await queries.add_mark(session, self._engine_id, at, "restart", text)

    async def forget_process(self) -> None:
        """No process of it is left."""
        async with self._database.begin() as session:
            await runs.end(session, self._engine_id, time.time())
            await queries.change(
                session, self._engine_id, pid=None, pid_started_at=None, marker=None, running_version_id=None
            )

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
        environment={name: str(value) for name, value in version.environment.items()},
    )
    return EngineSpec(
        engine_id=found.engine.id,
        name=found.engine.name,
        fleet_id=found.fleet.id,
        fleet=found.fleet.name,
        model=found.fleet.model,
        served_model_name=found.fleet.served_model_name,
        interpreter=found.fleet.interpreter,
        host="127.0.0.1",
        port=found.engine.port,
        profile=profile,
        entry=entry,
    )
