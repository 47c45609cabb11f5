"""What applying a version would do, told by a deck with a running engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from app.errors import InvalidInput, NotFound
from app.services.fleets import Fleets
from app.services.planning import Planning
from app.services.preview import Previews
from app.services.profiles import Draft, Profiles
from app.services.surroundings import Surroundings
from app.store.models import EngineRow, FleetRow
from tests.integration.rollout_rig import rolling
from tests.integration.supervisor_rig import READY, Engine, Rig, add_version, create_database, settings, supervising

SIZE = {"fake-start-seconds": 0.1}


@asynccontextmanager
async def previewing(tmp_path: Path, **flags: Any) -> AsyncIterator[tuple[Rig, Previews]]:
    config = settings(tmp_path, engines_outlive_deck=False)
    database = await create_database(config, Engine(flags={}, wanted="running"))
    async with supervising(config, database) as rig:
        await rig.until(READY)
        await add_version(database, flags)
        profiles = Profiles(database, rig.events, Surroundings(database))
        planning = Planning(database, profiles, rig.engines)
        fleets = Fleets(config, database, rig.events, rig.engines, profiles)
        yield rig, Previews(config, database, rig.engines, profiles, planning, fleets)
    await database.close()


async def test_what_would_happen(tmp_path: Path) -> None:
    """Field by field what changes, who restarts, and what is not known as not known."""
    async with previewing(tmp_path, **SIZE) as (_, previews):
        told = await previews.preview("fleet", "demo", 2)
    assert (told.replaces, told.profile, told.version, told.strategy) == ("demo v1", "demo", 2, "in_place")
    assert [(change.path, change.old, change.new) for change in told.changes] == [
        ("flags.fake-start-seconds", None, 0.1)
    ]
    assert [(one.name, one.runs, one.restarts) for one in told.engines] == [("one", "demo v1", True)]
    assert [(one.name, one.is_open) for one in told.strategies][:2] == [("rolling", False), ("in_place", True)]
    assert (told.tokens_at_risk, told.sessions_at_risk) == (None, None)
    assert told.at_risk_reason
    assert told.memory.asked_bytes == 0
    assert told.memory.fits


async def test_times_are_those_observed(tmp_path: Path) -> None:
    """The start that was seen is what the next one is expected to take; a drain was never seen."""
    async with previewing(tmp_path) as (rig, previews):
        started = (await rig.engines.transitions("one"))[0]
        told = await previews.preview("fleet", "demo", 2)
    assert started.new_state.value == "ready"
    assert told.expected_start_seconds is not None
    assert told.expected_total_seconds == pytest.approx(told.expected_start_seconds)
    assert told.expected_drain_seconds is None
    assert "at least" in told.expected_reason
    assert told.drain_timeout_seconds == 5.0
    assert "as set for the deck" in told.drain_timeout_why


async def test_what_does_not_exist_is_named(tmp_path: Path) -> None:
    """Fleet, profile, version, and a wait that is none."""
    async with previewing(tmp_path) as (_, previews):
        for asked, error, path in (
            (("nowhere", "demo", 1), NotFound, "fleet"),
            (("fleet", "nothing", 1), NotFound, "profile"),
            (("fleet", "demo", 9), NotFound, "version"),
            (("fleet", "demo", 2, "in_place", -1.0), InvalidInput, "drain_timeout_seconds"),
        ):
            with pytest.raises(error) as raised:
                await previews.preview(*asked)
            assert raised.value.path == path


async def test_memory_of_one_engine_is_told_for_one(tmp_path: Path) -> None:
    """The total, and what the machine has."""
    async with previewing(tmp_path, **SIZE, **{"kv-offloading-size": 1}) as (_, previews):
        told = await previews.preview("fleet", "demo", 2)
    assert told.memory.asked_bytes == 1 << 30
    assert told.sentences["memory"].text.startswith(
        "The host tier asks for 1073741824 bytes (1 GiB); the machine or its group has "
    )


async def test_memory_that_other_fleets_ask_for_counts_too(tmp_path: Path) -> None:
    """As in a check of the same version: what fits alone does not fit beside them, and they are named."""
    async with previewing(tmp_path, **SIZE, **{"kv-offloading-size": 1}) as (rig, previews):
        before = (await previews.preview("fleet", "demo", 2)).memory
        gib = before.usable_bytes >> 30
        async with rig.database.begin() as session:
            other = FleetRow(name="other", model="m", served_model_name="m", interpreter="python", created_at=1.0)
            other.base_flags = {"kv-offloading-size": gib}
            session.add(other)
            await session.flush()
            session.add(EngineRow(name="two", fleet_id=other.id, port=1, profile_version_id=1, created_at=1.0))
        told = await previews.preview("fleet", "demo", 2)
        found = await Profiles(rig.database, rig.events, Surroundings(rig.database)).validate(
            Draft("", '{"kv-offloading-size": 1}'), "fleet"
        )
    assert before.fits and before.others_bytes == 0
    assert not told.memory.fits
    assert (told.memory.asked_bytes, told.memory.others_bytes) == (1 << 30, gib << 30)
    assert "beside other (demo v1)" in told.memory.sentence
    assert any("other (demo v1)" in str(finding.values.get("others")) for finding in found.findings)


async def test_memory_of_an_engine_that_leaves_is_not_counted(tmp_path: Path) -> None:
    """It is going, and no start of the version asks for memory on its behalf."""
    async with rolling(tmp_path, 2, **{"kv-offloading-size": 1}) as deck:
        gone = asyncio.Event()

        async def until_gone(_name: str) -> None:
            await gone.wait()

        deck.rig.engines.idle = until_gone
        leaving = await deck.rig.fleets.remove_engine("fleet", "two")
        told = await deck.previews.preview("fleet", "demo", 2)
        gone.set()
    assert leaving.leaving
    assert [one.name for one in told.engines] == ["one"]
    assert told.memory.asked_bytes == 1 << 30
