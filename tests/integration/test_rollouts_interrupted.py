"""Rollouts that are cancelled, rolled back, or lose their deck, in each of their steps."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.errors import Conflict
from app.rollouts.decide import Do
from app.rollouts.steps import STEPS, Step, Turn, Way
from app.services.rollout_view import RolloutView
from app.services.rollout_work import Outcome, StepWork
from app.store.models import RolloutRow
from tests.integration import cli_rig
from tests.integration.rollout_rig import (
    LIMIT_SECONDS,
    TIER,
    EngineState,
    Rolling,
    all_ready,
    decked,
    prepared_fleet,
    rolling,
)

FORWARD = STEPS[Way.FORWARD]
#: A deck is lost before a step has had its effect, and behind those whose effect is not there a second time.
LOST = [(step, False) for step in FORWARD] + [(step, True) for step in (Step.STOP, Step.START, Step.RELEASE)]


@dataclass
class Stopper:
    """Stands before or behind one step of the first engine, until it is let go."""

    step: Step
    behind: bool = False
    reached: asyncio.Event = field(default_factory=asyncio.Event)
    let_go: asyncio.Event = field(default_factory=asyncio.Event)

    async def stand(self, do: Do, here: bool) -> None:
        if (do.engine, do.way, do.step) == ("one", Way.FORWARD, self.step) and here:
            self.reached.set()
            await self.let_go.wait()

    async def until_reached(self) -> None:
        await asyncio.wait_for(self.reached.wait(), LIMIT_SECONDS)


@contextmanager
def stopping_at(monkeypatch: pytest.MonkeyPatch, step: Step, *, behind: bool = False) -> Iterator[Stopper]:
    """Steps are really taken; only time stands still before (or behind) one of them."""
    stopper, take = Stopper(step, behind), StepWork.take

    async def stopped(work: StepWork, turn: Turn, do: Do) -> Outcome:
        await stopper.stand(do, not stopper.behind)
        outcome = await take(work, turn, do)
        await stopper.stand(do, stopper.behind)
        return outcome

    with monkeypatch.context() as patched:
        patched.setattr(StepWork, "take", stopped)
        yield stopper


@asynccontextmanager
async def left_at(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    step: Step,
    *,
    behind: bool,
    strategy: str = "rolling",
    between: Callable[[int | None], None] = lambda _: None,
) -> AsyncIterator[tuple[Rolling, int]]:
    """A second deck, which comes up after the first was lost in this step; and the rollout. `between` the two
    something is done to the process of the first engine.
    """
    async with prepared_fleet(tmp_path, 2 if strategy == "rolling" else 1, TIER) as (made, database):
        with stopping_at(monkeypatch, step, behind=behind) as stopper:
            async with decked(made, database) as deck:
                await all_ready(deck)
                rollout_id = (await deck.start(strategy)).id
                await stopper.until_reached()
                pid = deck.rig.engines.status("one").pid
        between(pid)
        async with decked(made, database) as deck:
            yield deck, rollout_id


async def ended_after(
    monkeypatch: pytest.MonkeyPatch,
    deck: Rolling,
    strategy: str,
    step: Step,
    wish: Callable[[int, str], Awaitable[Any]],
) -> RolloutView:
    """A rollout of which bob has wished something (`deck.rollouts.cancel`, ...) while it was in this step."""
    with stopping_at(monkeypatch, step) as stopper:
        rollout_id = (await deck.start(strategy)).id
        await stopper.until_reached()
        await wish(rollout_id, "bob")
        stopper.let_go.set()
        return await deck.ended(rollout_id)


@pytest.mark.parametrize(("step", "behind"), LOST)
async def test_the_next_deck_goes_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, step: Step, behind: bool) -> None:
    """Lost in any step, before or after its effect: the next deck finishes, and lets nobody in too early."""
    async with left_at(monkeypatch, tmp_path, step, behind=behind) as (deck, rollout_id):
        if step not in {Step.CHECK, Step.DRAIN, Step.RELEASE}:
            assert "one" not in deck.serving()
            assert deck.rig.engines.status("one").held
        ended = await deck.ended(rollout_id)
        assert ended.state == "done", ended.reason
        assert deck.versions() == {"one": 2, "two": 2}
        assert deck.serving() == {"one", "two"}


@pytest.mark.parametrize("step", [Step.CANARY, Step.RELEASE])
async def test_the_next_deck_waits_until_an_engine_found_running_serves(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, step: Step
) -> None:
    """It knows of none at first whether it does, and a busy one takes its time to say so."""
    frozen: list[int] = []

    def freeze(pid: int | None) -> None:
        assert pid
        os.kill(pid, signal.SIGSTOP)
        frozen.append(pid)

    async with left_at(monkeypatch, tmp_path, step, behind=False, between=freeze) as (deck, rollout_id):
        try:
            await deck.until_in(rollout_id, "one", step)
            assert deck.rig.engines.status("one").state is EngineState.STARTING
        finally:
            os.kill(frozen[0], signal.SIGCONT)
        ended = await deck.ended(rollout_id)
        assert ended.state == "done", ended.reason
        assert deck.versions() == {"one": 2, "two": 2}
        assert deck.serving() == {"one", "two"}


async def test_a_rollout_of_an_earlier_release_goes_on(tmp_path: Path) -> None:
    """It was left running without steps: it is given them, with the version before that it had noted."""
    async with prepared_fleet(tmp_path, 1) as (made, database):
        async with database.begin() as session:
            left = {"fleet_id": 1, "version_id": 2, "previous_version_id": 1, "strategy": "in_place"}
            session.add(RolloutRow(**left, state="running", author="ann", started_at=1.0))
        async with decked(made, database) as deck:
            ended = await deck.ended(1)
            assert (ended.state, ended.engines[0].before) == ("done", "demo v1"), ended.reason
            assert deck.versions() == {"one": 2}


@pytest.mark.parametrize("step", FORWARD)
async def test_cancel_in_every_step(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, step: Step) -> None:
    """The engine in work goes back, the other is never begun; at its last step it has passed and is let go on."""
    async with rolling(tmp_path, 2, TIER) as deck:
        pids = {one.name: one.pid for one in deck.rig.engines.statuses()}
        ended = await ended_after(monkeypatch, deck, "rolling", step, deck.rollouts.cancel)
        assert ended.state == "cancelled", ended.reason
        assert "Cancelled by bob." in ended.reason
        assert "one: demo v" in ended.reason
        assert deck.versions() == {"one": 2 if step is Step.RELEASE else 1, "two": 1}
        assert deck.serving() == {"one", "two"}
        now = {one.name: one.pid for one in deck.rig.engines.statuses()}
        assert now["two"] == pids["two"]
        if step in {Step.CHECK, Step.DRAIN}:
            assert now["one"] == pids["one"]


@pytest.mark.parametrize("step", [Step.DRAIN, Step.START, Step.CANARY, Step.RELEASE])
async def test_roll_back_in_a_step(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, step: Step) -> None:
    """Whatever was begun has the version before again."""
    async with rolling(tmp_path, 2, TIER) as deck:
        ended = await ended_after(monkeypatch, deck, "rolling", step, deck.rollouts.roll_back)
        assert (ended.state, ended.reason) == ("rolled_back", "Rolled back by bob.")
        assert deck.versions() == {"one": 1, "two": 1}
        assert deck.serving() == {"one", "two"}
        with pytest.raises(Conflict):
            await deck.rollouts.cancel(ended.id, "bob")


async def test_roll_back_what_was_done(tmp_path: Path) -> None:
    """The last rollout can be taken back after its end, one engine at a time; then it cannot be again."""
    async with rolling(tmp_path, 2) as deck:
        done = await deck.apply()
        assert done.can_roll_back
        await deck.rollouts.roll_back(done.id, "bob")
        ended = await deck.ended(done.id)
        assert ended.state == "rolled_back"
        assert deck.versions() == {"one": 1, "two": 1}
        assert deck.rig.engines.status("one").wanted_version == 1
        with pytest.raises(Conflict):
            await deck.rollouts.roll_back(done.id, "bob")


async def test_only_the_last_rollout_can_be_rolled_back(tmp_path: Path) -> None:
    """An earlier one would undo what came after it."""
    async with rolling(tmp_path) as deck:
        first = await deck.apply(version=2)
        await deck.apply(version=1)
        with pytest.raises(Conflict, match="followed by another"):
            await deck.rollouts.roll_back(first.id, "bob")


async def test_open_requests_end_before_the_engine_does(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The drain waits for them; past its limit they are told of and end with the engine."""
    async with rolling(tmp_path) as deck:
        idle = asyncio.Event()
        monkeypatch.setattr(deck.rig.engines, "in_flight", lambda _: 0 if idle.is_set() else 2)
        monkeypatch.setattr(deck.rig.engines, "idle", lambda _: idle.wait())
        first = await deck.start()
        view = await deck.until_in(first.id, "one", "drain")
        assert view.step == "one: drain"
        idle.set()
        ended = await deck.ended(first.id)
        assert "2 open requests ended" in _detail(ended, "drain")
        idle.clear()
        again = await deck.rollouts.start("fleet", "demo", 1, "in_place", "ann", drain_timeout_seconds=0.2)
        ended = await deck.ended(again.id)
        assert "2 requests are still open after 0.2 s" in _detail(ended, "drain")
        assert ended.drain_timeout_why == "As asked for."


#: Slow in every step that can be slow: it ignores SIGTERM, loads for a while, and thinks over each token.
SLOW = "--fake-ignore-sigterm --fake-start-seconds 2 --fake-token-seconds 0.15"


@pytest.mark.parametrize("step", ["stop", "ready", "canary"])
def test_a_deck_that_is_killed_in_a_step(tmp_path: Path, step: str) -> None:
    """SIGKILL to the deck's process; the engine lives on, and the next deck takes the rollout to its end."""
    at = cli_rig.home(tmp_path, SLOW)
    with cli_rig.deck(at) as first, first.client() as client:
        _until(lambda: _get(client, "/readyz").get("ready"))
        asked = {"fleet": "main", "profile": _get(client, "/api/v1/profiles")["profiles"][0]["name"], "version": 1}
        rollout = client.post("/api/v1/rollouts", json=asked).raise_for_status().json()
        _until(lambda: step in _get(client, f"/api/v1/rollouts/{rollout['id']}")["step"])
        first.send(signal.SIGKILL)
        first.wait()
    with cli_rig.deck(at) as second, second.client() as client:
        _until(lambda: _get(client, f"/api/v1/rollouts/{rollout['id']}")["ended_at"])
        ended = _get(client, f"/api/v1/rollouts/{rollout['id']}")
        engine = _get(client, "/api/v1/engines/main-1")
        assert ended["state"] == "done", ended["reason"]
        assert "A deck was started and goes on with it." in [line["text"] for line in ended["log"]]
        assert (engine["state"], engine["serves"], engine["held"]) == ("ready", True, "")


def _detail(view: Any, step: str) -> str:
    return next(cell.detail for cell in view.engines[0].forward if cell.step == step)


def _get(client: httpx.Client, path: str) -> dict[str, Any]:
    answer: dict[str, Any] = client.get(path).json()
    return answer


def _until(is_there: Any) -> None:
    """Another process tells over REST alone."""
    limit = time.monotonic() + LIMIT_SECONDS
    while not is_there():
        assert time.monotonic() < limit
        time.sleep(0.05)
