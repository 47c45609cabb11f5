"""A port that another program takes in the middle of a rollout, and an operator who stops the engine in work."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from app.derive.profile_text import START_TIMEOUT
from app.rollouts.steps import Step
from app.services.rollout_view import RolloutView
from app.store.models import ProfileVersionRow
from tests.integration.rollout_rig import Rolling, all_ready, decked, prepared_fleet, rolling
from tests.integration.supervisor_rig import STOPPED, free_ports, give_range, taken
from tests.integration.test_rollouts_interrupted import stopping_at


@asynccontextmanager
async def quick_to_move(tmp_path: Path) -> AsyncIterator[Rolling]:
    """A deck that waits for a port only briefly."""
    async with prepared_fleet(tmp_path, 1) as (made, database):
        config = made.model_copy(update={"port_wait_seconds": 0.3})
        async with decked(config, database) as deck:
            await all_ready(deck)
            yield deck


def details(view: RolloutView, way: str) -> list[str]:
    [turn] = view.engines
    return [cell.detail for cell in (turn.forward if way == "forward" else turn.back) if cell.state == "working"]


async def until_it_waits(deck: Rolling, rollout_id: int, way: str) -> RolloutView:
    return await deck.until(
        rollout_id, lambda view: any("It waits for its port." in told for told in details(view, way))
    )


@asynccontextmanager
async def stolen(monkeypatch: pytest.MonkeyPatch, deck: Rolling, *more: int) -> AsyncIterator[int]:
    """A rollout that is about to start the engine when another program takes its port, until the block ends."""
    with stopping_at(monkeypatch, Step.START) as stopper:
        rollout_id = (await deck.start()).id
        await stopper.until_reached()
        with taken(deck.rig.port, *more):
            stopper.let_go.set()
            yield rollout_id


async def test_a_port_that_comes_back_is_waited_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Who has it is told in the step's line; once it is free the rollout goes on to its end."""
    async with rolling(tmp_path) as deck:
        async with stolen(monkeypatch, deck) as rollout_id:
            waiting = await until_it_waits(deck, rollout_id, "forward")
            assert f"pid {os.getpid()}" in waiting.step and waiting.step.startswith("one: start (It waits")
            assert (waiting.state, waiting.reason) == ("running", "")
        ended = await deck.ended(rollout_id)
        assert ended.state == "done", ended.reason
        assert deck.versions() == {"one": 2}


async def test_an_engine_that_moves_to_another_port_comes_up_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The supervisor's own way out of a stolen port is the rollout's too."""
    first, second = free_ports(2)
    async with quick_to_move(tmp_path) as deck:
        await give_range(deck.rig, first, second)
        async with stolen(monkeypatch, deck, first) as rollout_id:
            ended = await deck.ended(rollout_id)
        assert (ended.state, deck.rig.port) == ("done", second), ended.reason


async def test_a_port_that_stays_taken_fails_after_the_limit_of_a_start(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Then it goes back, and waits on that way too."""
    async with rolling(tmp_path) as deck:
        async with deck.rig.database.begin() as session:
            version = await session.get_one(ProfileVersionRow, 2)
            version.environment = {**version.environment, START_TIMEOUT: "1"}
        async with stolen(monkeypatch, deck) as rollout_id:
            await until_it_waits(deck, rollout_id, "back")
        ended = await deck.ended(rollout_id)
        assert ended.state == "rolled_back", ended.reason
        assert "is in use by another program" in ended.reason
        assert deck.versions() == {"one": 1}
        assert deck.serving() == {"one"}


async def test_stopped_by_hand_before_it_was_tested(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The canary's connection error would say less."""
    async with rolling(tmp_path) as deck:
        with stopping_at(monkeypatch, Step.CANARY) as stopper:
            rollout_id = (await deck.start()).id
            await stopper.until_reached()
            await deck.rig.engines.stop("one", now=True)
            await deck.rig.until(STOPPED)
            stopper.let_go.set()
            ended = await deck.ended(rollout_id)
        assert (ended.state, ended.reason) == ("rolled_back", "It was stopped by hand.")


async def test_stopped_by_hand_while_it_waits_for_its_port(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nobody waits for what will not come; the reason says that it was stopped by hand."""
    async with rolling(tmp_path) as deck:
        async with stolen(monkeypatch, deck) as rollout_id:
            await until_it_waits(deck, rollout_id, "forward")
            await deck.rig.engines.stop("one")
        ended = await deck.ended(rollout_id)
        assert ended.state == "rolled_back"
        assert "It was stopped by hand while it started." in ended.reason
