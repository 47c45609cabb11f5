"""A deck's supervisor and rollouts over several fake engines of one fleet, and decks that come after it."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import select

from app.config import Settings
from app.services.fleets import Fleets
from app.services.planning import Planning
from app.services.preview import Previews
from app.services.profiles import Profiles
from app.services.rollouts import Rollouts, RolloutView
from app.services.surroundings import Surroundings
from app.store.database import Database
from app.store.models import EngineRow
from app.supervisor.states import EngineState
from tests.integration.supervisor_rig import (
    READY,
    Engine,
    Rig,
    add_version,
    create_database,
    free_port,
    marked,
    settings,
    supervising,
)

LIMIT_SECONDS = 120.0
#: Any connector: the fake engine takes it without a word, and the canary asks for host hits.
TIER = {"kv_connector": "OffloadingConnector", "kv_role": "kv_both"}


@dataclass(frozen=True)
class Rolling:
    """Profiles and rollouts over a running supervisor."""

    rig: Rig
    rollouts: Rollouts
    profiles: Profiles
    previews: Previews

    async def start(self, strategy: str | None = None, version: int = 2) -> RolloutView:
        return await self.rollouts.start("fleet", "demo", version, strategy, author="ann")

    async def ended(self, rollout_id: int) -> RolloutView:
        return await self.until(rollout_id, lambda view: view.state != "running")

    async def apply(self, strategy: str | None = None, version: int = 2) -> RolloutView:
        return await self.ended((await self.start(strategy, version)).id)

    async def until(self, rollout_id: int, is_there: Callable[[RolloutView], bool]) -> RolloutView:
        """Wait for a rollout to come so far; looked at after each event of any kind."""
        with self.rig.events.subscribe() as told:
            async with asyncio.timeout(LIMIT_SECONDS):
                while not is_there(view := await self.rollouts.get(rollout_id)):
                    await told.next()
        return view

    async def until_in(self, rollout_id: int, engine: str, step: str) -> RolloutView:
        """Wait for an engine to be in this step, on either way."""

        def is_there(view: RolloutView) -> bool:
            cells = [cell for turn in view.engines if turn.engine == engine for cell in (*turn.forward, *turn.back)]
            return any(cell.step == step and cell.state == "working" for cell in cells)

        return await self.until(rollout_id, is_there)

    def versions(self) -> dict[str, int | None]:
        """Engine -> version of its process."""
        return {one.name: one.running_version for one in self.rig.engines.statuses()}

    def serving(self) -> set[str]:
        return {one.name for one in self.rig.engines.statuses() if one.serves}


@asynccontextmanager
async def decked(config: Settings, database: Database) -> AsyncIterator[Rolling]:
    """A deck; left without a word to its rollouts, as one that is killed."""
    async with supervising(config, database) as rig:
        profiles = Profiles(database, rig.events, Surroundings(database))
        fleets = Fleets(config, database, rig.events, rig.engines, profiles)
        planning = Planning(database, profiles, rig.engines)
        previews = Previews(config, database, rig.engines, profiles, planning, fleets)
        rollouts = Rollouts(database, rig.events, rig.engines, profiles, previews, fleets)
        await rollouts.open()
        try:
            yield Rolling(rig, rollouts, profiles, previews)
        finally:
            await rollouts.close()


@asynccontextmanager
async def prepared_fleet(
    tmp_path: Path, engines: int, config: dict[str, Any] | None = None, **flags: Any
) -> AsyncIterator[tuple[Settings, Database]]:
    """Engines `one`, `two`, ... on version 1 and a version 2 with `flags`; no process outlives the test."""
    made = settings(tmp_path)
    database = await create_database(made, Engine(flags={}, wanted="running", kv_transfer_config=config))
    await add_version(database, flags, config)
    async with database.begin() as session:
        first = await session.get_one(EngineRow, 1)
        for name in ("two", "three")[: engines - 1]:
            session.add(
                EngineRow(
                    fleet_id=first.fleet_id,
                    name=name,
                    port=free_port(),
                    profile_version_id=first.profile_version_id,
                    wanted="running",
                    created_at=1.0,
                )
            )
    try:
        yield made, database
    finally:
        async with database.session() as session:
            markers = [row.marker for row in await session.scalars(select(EngineRow)) if row.marker]
        await database.close()
        for pid in (pid for marker in markers for pid in marked(marker)):
            os.kill(pid, signal.SIGKILL)


@asynccontextmanager
async def rolling(
    tmp_path: Path, engines: int = 1, config: dict[str, Any] | None = None, **flags: Any
) -> AsyncIterator[Rolling]:
    """A deck whose engines are all ready."""
    async with prepared_fleet(tmp_path, engines, config, **flags) as (made, database), decked(made, database) as deck:
        await all_ready(deck)
        yield deck


async def all_ready(deck: Rolling) -> None:
    for one in deck.rig.engines.statuses():
        await deck.rig.engines.wait_for(one.name, READY, LIMIT_SECONDS)


__all__ = ["TIER", "EngineState", "Rolling", "all_ready", "decked", "prepared_fleet", "rolling"]
