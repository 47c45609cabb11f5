"""Applying a profile version: the engine restarts with it, or goes back to the one before and says why."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from app.errors import Conflict, InvalidInput, NotFound
from app.events import Subscription
from app.services.profiles import Profiles
from app.services.rollouts import Rollouts, RolloutView
from app.supervisor.states import EngineState
from tests.integration.supervisor_rig import READY, Engine, Rig, add_version, create_database, settings, supervising

FATAL = {
    "fake-die-with": "ValueError: The model's max seq len (32768) is larger than the maximum number of tokens that can "
    "be stored in KV cache (1024). Try increasing `gpu_memory_utilization` or decreasing `max_model_len`."
}


@dataclass(frozen=True)
class Applying:
    """Profiles and rollouts over a running supervisor."""

    rig: Rig
    rollouts: Rollouts
    profiles: Profiles

    async def apply(self, version: int) -> RolloutView:
        with self.rig.events.subscribe() as told:
            started = await self.rollouts.start("fleet", "demo", version, "in_place", author="test")
            return await self.ended(told, started.id)

    async def ended(self, told: Subscription, rollout_id: int) -> RolloutView:
        while True:
            event = await told.next()
            if event.kind == "rollout" and event.data["state"] != "running":
                return await self.rollouts.get(rollout_id)


@asynccontextmanager
async def applying(tmp_path: Path, **flags: Any) -> AsyncIterator[Applying]:
    config = settings(tmp_path, engines_outlive_deck=False)
    database = await create_database(config, Engine(flags={}, wanted="running"))
    async with supervising(config, database) as rig:
        await rig.until(READY)
        await add_version(database, flags)
        profiles = Profiles(database, rig.events)
        rollouts = Rollouts(database, rig.events, rig.engines, profiles)
        await rollouts.open()
        yield Applying(rig, rollouts, profiles)
        await rollouts.close()
    await database.close()


async def test_the_engine_serves_the_new_version(tmp_path: Path) -> None:
    """A rollout ends as done only when the engine is ready with the version that was asked for."""
    async with applying(tmp_path) as deck:
        before = deck.rig.engines.status("one").pid
        ended = await deck.apply(2)
        now = deck.rig.engines.status("one")
        assert (ended.state, ended.previous_version) == ("done", "demo v1")
        assert (now.state, now.running_version, now.wanted_version) == (EngineState.READY, 2, 2)
        assert now.pid != before
        newest, first = await deck.profiles.history("demo")
        assert (newest.version, newest.engine, newest.ended_at) == (2, "one", None)
        assert first.version == 1 and first.ended_at is not None and first.ended_at <= newest.started_at


async def test_a_version_that_cannot_start_goes_back(tmp_path: Path) -> None:
    """The engine serves the version before, and the rollout names the reason with its numbers."""
    async with applying(tmp_path, **FATAL) as deck:
        ended = await deck.apply(2)
        now = deck.rig.engines.status("one")
        assert ended.state == "rolled_back"
        assert "1024" in ended.reason or "1,024" in ended.reason
        assert (now.state, now.running_version, now.wanted_version) == (EngineState.READY, 1, 1)


async def test_one_rollout_at_a_time(tmp_path: Path) -> None:
    """A second rollout on the fleet is refused, and told who runs the first."""
    async with applying(tmp_path, **{"fake-start-seconds": 1}) as deck:
        with deck.rig.events.subscribe() as told:
            first = await deck.rollouts.start("fleet", "demo", 2, "in_place", author="ann")
            with pytest.raises(Conflict, match="ann"):
                await deck.rollouts.start("fleet", "demo", 1, "in_place", author="bob")
            assert (await deck.ended(told, first.id)).state == "done"


async def test_a_deck_that_stopped_in_the_middle_goes_on(tmp_path: Path) -> None:
    """The next deck finishes the rollout that the last one left running."""
    async with applying(tmp_path, **{"fake-start-seconds": 1}) as deck:
        first = await deck.rollouts.start("fleet", "demo", 2, "in_place", author="ann")
        await deck.rig.until(frozenset({EngineState.STARTING}))
        await deck.rollouts.close()
        again = Rollouts(
            deck.rig.database, deck.rig.events, deck.rig.engines, Profiles(deck.rig.database, deck.rig.events)
        )
        with deck.rig.events.subscribe() as told:
            await again.open()
            assert (await deck.ended(told, first.id)).state == "done"
        assert deck.rig.engines.status("one").running_version == 2
        await again.close()


async def test_what_does_not_exist_is_named(tmp_path: Path) -> None:
    """Unknown fleet, profile, version and strategy are errors at their field, and nothing is started."""
    async with applying(tmp_path) as deck:
        for asked, error, path in (
            (("nowhere", "demo", 1, "in_place"), NotFound, "fleet"),
            (("fleet", "nothing", 1, "in_place"), NotFound, "profile"),
            (("fleet", "demo", 9, "in_place"), NotFound, "version"),
            (("fleet", "demo", 1, "sideways"), InvalidInput, "strategy"),
        ):
            with pytest.raises(error) as raised:
                await deck.rollouts.start(*asked, author="test")
            assert raised.value.path == path
        assert await deck.rollouts.list() == []
