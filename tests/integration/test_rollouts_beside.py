"""New engines beside the old ones: tested before they take over, and the old ones serve until then."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from app.errors import Conflict
from app.rollouts.said import say
from app.rollouts.steps import Step
from app.services.fleets import Fleets
from app.supervisor.status import EngineStatus
from tests.integration.rollout_rig import LIMIT_SECONDS, TIER, Rolling, all_ready, decked, prepared_fleet, rolling
from tests.integration.test_rollouts_interrupted import ended_after, left_at


async def _in_service(deck: Rolling) -> dict[str, int | None]:
    """Engine -> version, once those that leave have left."""
    with deck.rig.events.subscribe() as told:
        while any(one.leaving for one in deck.rig.engines.statuses()):
            await told.next()
    return deck.versions()


async def test_the_new_engine_takes_the_old_one_s_place(tmp_path: Path) -> None:
    """One always serves; the new one has a port of its own; the old one is out of service in the end."""
    async with rolling(tmp_path, 1, TIER, **{"fake-start-seconds": 0.5}) as deck:
        old = deck.rig.engines.status("one")
        with deck.rig.events.subscribe(4096) as told:
            started = await deck.start("blue_green")
            fewest, lines = 1, set[str]()
            while (now := await deck.rollouts.get(started.id)).state == "running":
                lines.add(" ".join(now.step.split()[:2]))
                await told.next()
                fewest = min(fewest, len(deck.serving()))
        ended = await deck.rollouts.get(started.id)
        assert ended.state == "done", ended.reason
        [turn] = ended.engines
        assert await _in_service(deck) == {turn.successor: 2}
        assert deck.serving() == {turn.successor}
        assert deck.rig.engines.status(turn.successor).port != old.port
        assert fewest == 1
        assert f"{turn.successor}: ready" in lines and "one: ready" not in lines, "it names who is worked on"
        assert not ended.can_roll_back


@pytest.mark.parametrize("fault", ["no-hits", "other-tokens"])
async def test_a_new_engine_that_fails_its_test_never_serves(tmp_path: Path, fault: str) -> None:
    """The old one is not touched; the new one is out of service again."""
    async with rolling(tmp_path, 1, TIER, **{"fake-canary-fault": fault}) as deck:
        pid = deck.rig.engines.status("one").pid
        ended = await deck.apply("blue_green")
        assert ended.state == "rolled_back"
        assert await _in_service(deck) == {"one": 1}
        assert deck.rig.engines.status("one").pid == pid
        assert deck.serving() == {"one"}


@pytest.mark.parametrize("step", [Step.START, Step.CANARY, Step.DRAIN])
async def test_roll_back_in_a_step(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, step: Step) -> None:
    """Before and after the new one has taken over: the old one serves again, the new one is gone."""
    async with rolling(tmp_path, 1, TIER) as deck:
        ended = await ended_after(monkeypatch, deck, "blue_green", step, deck.rollouts.roll_back)
        assert (ended.state, ended.reason) == ("rolled_back", "Rolled back by bob.")
        assert await _in_service(deck) == {"one": 1}
        assert deck.serving() == {"one"}


@pytest.mark.parametrize(
    ("step", "behind"),
    [(Step.START, False), (Step.START, True), (Step.CANARY, False), (Step.DRAIN, True), (Step.STOP, True)],
)
async def test_the_next_deck_goes_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, step: Step, behind: bool) -> None:
    """Lost in a step: no second new engine is made, and the untested one gets no request."""
    async with left_at(monkeypatch, tmp_path, step, behind=behind, strategy="blue_green") as (deck, rollout_id):
        if step is Step.CANARY:
            assert deck.serving() <= {"one"}
        ended = await deck.ended(rollout_id)
        assert ended.state == "done", ended.reason
        assert await _in_service(deck) == {ended.engines[0].successor: 2}
        assert deck.serving() == {ended.engines[0].successor}


async def test_two_engines_never_share_a_successor(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The deck is lost when both turns have asked for a new engine, and only the first has got it."""
    add, asked, both_asked, is_there = Fleets.add_engine, 0, asyncio.Event(), asyncio.Event()

    async def held_up(fleets: Fleets, name: str, **given: Any) -> EngineStatus:
        nonlocal asked
        asked += 1
        if asked == 2:
            both_asked.set()
            await asyncio.Event().wait()
        await both_asked.wait()
        added = await add(fleets, name, **given)
        is_there.set()
        return added

    async with prepared_fleet(tmp_path, 2, TIER) as (made, database):
        with monkeypatch.context() as patched:
            patched.setattr(Fleets, "add_engine", held_up)
            async with decked(made, database) as deck:
                await all_ready(deck)
                rollout_id = (await deck.start("blue_green")).id
                await asyncio.wait_for(is_there.wait(), LIMIT_SECONDS)
        async with decked(made, database) as deck:
            ended = await deck.ended(rollout_id)
            assert ended.state == "done", ended.reason
            new = {turn.successor for turn in ended.engines}
            assert len(new) == 2
            assert await _in_service(deck) == dict.fromkeys(new, 2)


async def test_refused_where_there_is_no_room(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Up front, with the numbers, and nothing is begun."""
    async with rolling(tmp_path) as deck:
        previews = deck.rollouts._previews

        async def no_room(*_: object) -> object:
            return say("1 new engines take %(size)s; 2 GiB are free.", size="4 GiB")

        monkeypatch.setattr(previews, "no_room", no_room)
        with pytest.raises(Conflict, match="4 GiB") as raised:
            await deck.start("blue_green")
        assert raised.value.path == "strategy"
        told = await previews.preview("fleet", "demo", 2, "blue_green")
        assert [one.is_open for one in told.strategies] == [False, True, False]
        assert await deck.rollouts.list() == []
