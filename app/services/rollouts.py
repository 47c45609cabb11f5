"""Rollouts: a profile version applied to a fleet, with the way back when it does not start.

One task per running rollout. Each step is written before it is taken, so a deck that was stopped in
the middle picks the rollout up where it was.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import structlog

from app.errors import Conflict, InvalidInput, NotFound
from app.events import Event, Events
from app.services.engines import Engines
from app.services.profiles import Profiles
from app.store.database import Database
from app.store.models import RolloutRow
from app.store.queries import fleets
from app.store.queries import rollouts as queries
from app.supervisor.states import EngineState
from app.supervisor.status import EngineStatus

log = structlog.get_logger(__name__)

STRATEGIES = ("in_place",)
SETTLED = frozenset({EngineState.READY, EngineState.FAILED, EngineState.BACKOFF})


@dataclass(frozen=True)
class RolloutView:
    """One rollout as shown. `step` names the engine and what is being done to it."""

    id: int
    fleet: str
    profile: str
    version: int
    previous_version: str | None
    """`profile v3` that ran before, when there was one."""
    strategy: str
    state: str
    step: str
    reason: str
    author: str
    started_at: float
    ended_at: float | None


class Rollouts:
    """Starts rollouts and sees them through."""

    def __init__(self, database: Database, events: Events, engines: Engines, profiles: Profiles) -> None:
        self._database = database
        self._events = events
        self._engines = engines
        self._profiles = profiles
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        """Go on with the rollouts that a stopped deck left running."""
        async with self._database.session() as session:
            running = [row.id for row in await queries.running(session)]
        for rollout_id in running:
            self._begin(rollout_id)

    async def close(self) -> None:
        """Leave running rollouts as they are; the next deck goes on with them."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def list(self, limit: int = 50) -> Sequence[RolloutView]:
        """Rollouts, newest first."""
        async with self._database.session() as session:
            ids = await queries.newest_ids(session, limit)
        return [await self.get(rollout_id) for rollout_id in ids]

    async def get(self, rollout_id: int) -> RolloutView:
        """One rollout. Raises NotFound."""
        async with self._database.session() as session:
            row = await session.get(RolloutRow, rollout_id)
            if row is None:
                raise NotFound(f"There is no rollout {rollout_id}.", path="id")
            fleet = await queries.fleet_name(session, row.fleet_id)
        version = await self._profiles.by_version_id(row.version_id)
        return RolloutView(
            id=row.id,
            fleet=fleet,
            profile=version.profile,
            version=version.number,
            previous_version=await self._version_label(row.previous_version_id),
            strategy=row.strategy,
            state=row.state,
            step=row.step,
            reason=row.reason,
            author=row.author,
            started_at=row.started_at,
            ended_at=row.ended_at,
        )

    async def start(self, fleet: str, profile: str, version: int, strategy: str, author: str) -> RolloutView:
        """Begin applying a version to a fleet; returns at once, progress comes as `rollout` events.

        Raises NotFound (fleet, profile, version), InvalidInput (strategy), Conflict (one runs already).
        """
        if strategy not in STRATEGIES:
            raise InvalidInput(f"Write one of: {', '.join(STRATEGIES)}.", path="strategy")
        wanted = await self._profiles.version(profile, version)
        async with self._database.begin() as session:
            row = await fleets.by_name(session, fleet)
            if row is None:
                raise NotFound(f"There is no fleet named {fleet!r}.", path="fleet")
            if (running := await queries.running_on(session, row.id)) is not None:
                raise Conflict(
                    f"Rollout {running.id}, started by {running.author}, is still running on this fleet.", path="fleet"
                )
            rollout = await queries.add(
                session, fleet_id=row.id, version_id=wanted.id, strategy=strategy, author=author, now=time.time()
            )
        self._begin(rollout.id)
        return await self.get(rollout.id)

    def _begin(self, rollout_id: int) -> None:
        task = asyncio.create_task(self._run(rollout_id), name=f"rollout-{rollout_id}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, rollout_id: int) -> None:
        try:
            await self._apply(rollout_id)
        except asyncio.CancelledError:
            raise
        except Exception as error:  # the task's edge: whatever went wrong is the rollout's end
            log.exception("rollout failed", rollout=rollout_id)
            await self._end(rollout_id, "failed", f"The deck could not go on: {error}")

    async def _apply(self, rollout_id: int) -> None:
        row = await self._row(rollout_id)
        for name in await self._engine_names(row.fleet_id):
            reached = await self._move(rollout_id, name, row.version_id, "restarting")
            if reached.state is not EngineState.READY:
                await self._go_back(rollout_id, name, row.previous_version_id, reached)
                return
        await self._end(rollout_id, "done", "")

    async def _go_back(self, rollout_id: int, name: str, previous_id: int | None, reached: EngineStatus) -> None:
        reason = reached.cause or f"{name} did not become ready."
        if previous_id is None:
            await self._end(rollout_id, "failed", reason)
            return
        again = await self._move(rollout_id, name, previous_id, "going back")
        if again.state is EngineState.READY:
            await self._end(rollout_id, "rolled_back", reason)
        else:
            await self._end(rollout_id, "failed", f"{reason} The version before did not start either: {again.cause}")

    async def _move(self, rollout_id: int, name: str, version_id: int, doing: str) -> EngineStatus:
        """Put one engine on a version and wait until it serves or is known not to."""
        version = await self._profiles.by_version_id(version_id)
        await self._step(rollout_id, f"{name}: {doing} with {version.profile} v{version.number}")
        await self._engines.apply_version(name, version_id)
        if not self._runs_already(name, version.number):
            await self._engines.restart(name)
        while not _is_settled(status := self._engines.status(name)):
            await self._engines.changed()
        return status

    def _runs_already(self, name: str, number: int) -> bool:
        """After a restart of the deck the engine may be on its way to the version already."""
        status = self._engines.status(name)
        return status.running_version == number and status.state in {EngineState.STARTING}

    async def _row(self, rollout_id: int) -> RolloutRow:
        async with self._database.session() as session:
            row = await session.get(RolloutRow, rollout_id)
        if row is None:
            raise NotFound(f"There is no rollout {rollout_id}.", path="id")
        return row

    async def _engine_names(self, fleet_id: int) -> Sequence[str]:
        async with self._database.session() as session:
            return await fleets.engine_names(session, fleet_id)

    async def _step(self, rollout_id: int, step: str) -> None:
        async with self._database.begin() as session:
            await queries.set_step(session, rollout_id, step)
        await self._tell(rollout_id)

    async def _end(self, rollout_id: int, state: str, reason: str) -> None:
        async with self._database.begin() as session:
            await queries.finish(session, rollout_id, state, reason, time.time())
        await self._tell(rollout_id)

    async def _tell(self, rollout_id: int) -> None:
        view = await self.get(rollout_id)
        self._events.publish(Event("rollout", str(rollout_id), asdict(view)))

    async def _version_label(self, version_id: int | None) -> str | None:
        if version_id is None:
            return None
        version = await self._profiles.by_version_id(version_id)
        return f"{version.profile} v{version.number}"


def _is_settled(status: EngineStatus) -> bool:
    """It serves, or it is known that it will not: a crash, a failure, or an operator who stopped it."""
    return status.state in SETTLED or (status.state is EngineState.STOPPED and status.wanted == "stopped")
