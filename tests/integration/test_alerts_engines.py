"""An engine that serves no more, from its state to the receivers: once for each episode."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from app.supervisor.states import EngineState
from tests.integration.alerts_rig import Rig, opened_rig

S = EngineState


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    async with opened_rig(tmp_path) as opened:
        await opened.webhook("http://127.0.0.1:9/a")
        yield opened


async def look(rig: Rig, *states: tuple[str, EngineState, str]) -> list[str]:
    """Set the engines, look, and tell every flip of the rule so far, oldest first."""
    for name, state, cause in states:
        rig.engines.set(name, state, cause)
    rig.clock.now += 10
    await rig.loop.evaluate_once(rig.clock.now)
    flips = [flip for flip in await rig.alerts.flips() if flip.rule == "Engine down"]
    return [f"{flip.new}: {flip.sentence}" for flip in reversed(flips)]


async def test_given_up_told_once_and_resolved_when_it_serves(rig: Rig) -> None:
    """Tries and starts are no news; the end of the tries is one, and so is the first token after it."""
    assert await look(rig, ("main-1", S.READY, "")) == []
    assert await look(rig, ("main-1", S.BACKOFF, "crashed")) == []
    assert await look(rig, ("main-1", S.STARTING, "")) == []
    told = ["firing: main-1 was given up: It crashed. Given up after 3 equal failures."]
    assert await look(rig, ("main-1", S.FAILED, "It crashed. Given up after 3 equal failures.")) == told
    assert await look(rig) == told
    assert await look(rig, ("main-1", S.STARTING, "Start asked for.")) == told
    told.append("ok: main-1 is ready.")
    assert await look(rig, ("main-1", S.READY, "")) == told
    assert len(await rig.alerts.deliveries()) == 2


async def test_a_stall_through_a_restart_is_one_episode(rig: Rig) -> None:
    """Draining, stopping and starting again do not resolve it; a restart of the deck does not repeat it."""
    await look(rig, ("main-1", S.STALLED, "No token for 120 s."))
    told = ["firing: main-1 is stalled: No token for 120 s."]
    again = rig.restarted()
    for state in (S.STALLED, S.DRAINING, S.STOPPING, S.STOPPED, S.STARTING, S.STALLED):
        assert await look(again, ("main-1", state, "No token for 120 s.")) == told
    assert len(await look(again, ("main-1", S.READY, ""))) == 2
    await again.database.close()


async def test_each_engine_of_a_fleet_is_told_once(rig: Rig) -> None:
    """A second one that goes down is news of its own; resolved is told when every one serves."""
    await look(rig, ("main-1", S.FAILED, "A."), ("main-2", S.READY, ""))
    told = await look(rig, ("main-2", S.STALLED, "B."))
    assert told == ["firing: main-1 was given up: A.", "firing: main-1 was given up: A. main-2 is stalled: B."]
    assert await look(rig, ("main-2", S.READY, "")) == told
    assert len(await look(rig, ("main-2", S.STALLED, "C."))) == 3, "down again after it served"
    told = await look(rig, ("main-1", S.READY, ""), ("main-2", S.READY, ""))
    assert len(told) == 4 and told[-1] == "ok: main-1 is ready, main-2 is ready."


async def test_stopped_by_hand_is_no_alert_and_ends_one(rig: Rig) -> None:
    await look(rig, ("main-1", S.READY, ""))
    rig.engines.set("main-1", S.STOPPED, "Every process of it has ended.", wanted="stopped")
    assert await look(rig) == []
    await look(rig, ("main-1", S.FAILED, "A."))
    rig.engines.set("main-1", S.STOPPED, "Every process of it has ended.", wanted="stopped")
    assert (await look(rig))[-1] == "ok: main-1 is stopped."


async def test_a_hold_time_is_respected(rig: Rig) -> None:
    """Who does not want to hear of short stalls sets one."""
    await rig.alerts.save_rule(2, parameters={"hold_seconds": 30})
    for _ in range(3):
        assert await look(rig, ("main-1", S.STALLED, "x.")) == []
    assert await look(rig) == ["firing: main-1 is stalled: x. This has held for 30 s."]
