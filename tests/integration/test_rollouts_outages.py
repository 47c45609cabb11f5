"""The database is away while a rollout runs: it waits, goes on, and leaves no engine held."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from sqlalchemy import event
from sqlalchemy.exc import OperationalError, SQLAlchemyError

from app.rollouts.steps import STEPS, Step, Way
from app.services import rollout_run
from app.store import owed
from app.store.database import Database
from tests.databases import away
from tests.integration.rollout_rig import TIER, Rolling, rolling
from tests.integration.test_rollouts_interrupted import stopping_at

AWAY = "The database did not answer for a while; the rollout went on."


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollout_run, "AGAIN_SECONDS", 0.05)
    monkeypatch.setattr(owed, "AGAIN_SECONDS", 0.05)


@asynccontextmanager
async def losing(database: Database, statement: str) -> AsyncIterator[asyncio.Event]:
    """The database goes away with the first statement that begins so, for a fifth of a second; set when it has."""
    gone, loop, outage = asyncio.Event(), asyncio.get_running_loop(), away(database)

    def lose(_connection: object, _cursor: object, text: str, *_: object) -> None:
        if text.startswith(statement) and not gone.is_set():
            gone.set()
            outage.__enter__()
            loop.call_later(0.2, outage.__exit__, None, None, None)
            raise OperationalError(text, None, Exception("database is locked"))

    event.listen(database.engine.sync_engine, "before_cursor_execute", lose)
    yield gone
    event.remove(database.engine.sync_engine, "before_cursor_execute", lose)


async def done_with_everything(deck: Rolling, rollout_id: int) -> list[str]:
    """Wait for its end; the log."""
    ended = await deck.ended(rollout_id)
    assert ended.state == "done", ended.reason
    assert deck.versions() == dict.fromkeys(deck.versions(), 2)
    assert deck.serving() == set(deck.versions())
    return [line.text for line in await deck.rollouts.log(rollout_id)]


@pytest.mark.parametrize(
    "statement",
    [
        pytest.param("INSERT INTO rollout_steps", id="before a step"),
        pytest.param("UPDATE rollout_steps", id="behind a step"),
        pytest.param("UPDATE rollouts SET state", id="at the end"),
        pytest.param("UPDATE engines SET profile_version_id", id="in a step"),
    ],
)
async def test_the_database_goes_away(tmp_path: Path, statement: str) -> None:
    """Wherever that is, the rollout comes to its end, with every engine in service."""
    async with rolling(tmp_path, 2, TIER) as deck, losing(deck.rig.database, statement) as gone:
        with suppress(SQLAlchemyError):  # it may go away while the answer to this is made
            await deck.start("rolling")
        async with asyncio.timeout(60):
            await gone.wait()
            await asyncio.sleep(0.4)
        [begun] = await deck.rollouts.list()
        await done_with_everything(deck, begun.id)


@pytest.mark.parametrize("step", STEPS[Way.FORWARD])
async def test_the_database_is_away_in_each_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: Step) -> None:
    """The step is taken again where it needs the database, the log says what there was."""
    async with rolling(tmp_path, 1, TIER) as deck:
        with stopping_at(monkeypatch, step) as stopper:
            begun = await deck.start("in_place")
            await stopper.until_reached()
            with away(deck.rig.database):
                stopper.let_go.set()
                await asyncio.sleep(0.3)
        log = await done_with_everything(deck, begun.id)
        assert not any("failed" in line for line in log), log


async def test_a_rollout_that_could_not_be_told_of_is_seen_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was written, then the database went away: who asked is told of an error, and it runs nevertheless."""
    async with rolling(tmp_path, 1, TIER) as deck:
        add = deck.rollouts._add

        async def add_and_lose(*arguments: object, **content: object) -> object:
            row = await add(*arguments, **content)  # type: ignore[arg-type]
            outage = away(deck.rig.database)
            outage.__enter__()
            asyncio.get_running_loop().call_later(0.3, outage.__exit__, None, None, None)
            return row

        monkeypatch.setattr(deck.rollouts, "_add", add_and_lose)
        with pytest.raises(SQLAlchemyError):
            await deck.start("in_place")
        await asyncio.sleep(0.4)
        [running] = await deck.rollouts.list()
        log = await done_with_everything(deck, running.id)
        assert AWAY in log
