"""The database is away for a while: each loop begins again by itself and says so; nothing is told twice."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.exc import SQLAlchemyError

from app import background
from app.alerts import delivery
from app.background import Loops
from app.store.database import Database
from tests.databases import away
from tests.fakes import fake_deck
from tests.fakes.receiver import running_receiver
from tests.integration.alerts_rig import opened_rig
from tests.integration.scrape_rig import one_engine, page
from tests.unit.web.conftest import BEARER, HTML, running

LIMIT = 20.0


async def until(is_there: Callable[[], object]) -> None:
    async with asyncio.timeout(LIMIT):
        while not is_there():
            await asyncio.sleep(0.01)


@pytest.fixture
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "RESTART_SECONDS", 0.02)
    monkeypatch.setattr(background, "STEADY_SECONDS", 0.2)


@pytest.mark.usefixtures("_soon")
async def test_a_loop_counts_as_recovering_until_it_runs_again(sqlite_database: Database) -> None:
    """Not only between two tries; and it is forgotten although the loop never returns."""
    loops, rounds = Loops(), 0

    async def run() -> None:
        nonlocal rounds
        while True:
            await asyncio.sleep(0.02)
            async with sqlite_database.session() as session:
                await session.execute(text("SELECT 1"))
            rounds += 1

    loops.start("scrape", run)
    await until(lambda: rounds)
    assert loops.faults == {}
    with away(sqlite_database):
        await until(lambda: loops.faults)
        for _ in range(10):
            await asyncio.sleep(0.01)
            assert "database is locked" in loops.faults["scrape"]
            assert "\n" not in loops.faults["scrape"]
    before = rounds
    await until(lambda: not loops.faults)
    assert rounds > before
    await loops.close()


async def test_the_overview_says_what_the_deck_does_not_get_on_with(tmp_path: Path) -> None:
    """In the reader's language, as long as it lasts."""
    app = fake_deck.build(tmp_path)
    async with running(app) as client:
        app.state.deck.loops._faults["scrape"] = "OperationalError: database is locked"
        english = (await client.get("/", headers={**BEARER, **HTML})).text
        chinese = (await client.get("/", headers={**BEARER, **HTML, "accept-language": "zh"})).text
        assert "reading the engines&#39; numbers" in english and "database is locked" in english
        assert "读取引擎的数据" in chinese
        app.state.deck.loops._faults.clear()
        assert "does not get on with" not in (await client.get("/", headers={**BEARER, **HTML})).text


async def test_what_was_counted_meanwhile_is_not_lost(sqlite_database: Database) -> None:
    """Pages that could not be stored are left out; the next one has all of it, once."""
    async with one_engine(sqlite_database) as rig:
        await rig.scrape(page(computed=100))
        await rig.scrape(page(computed=200))
        with away(rig.database):
            for computed in (300, 400):
                with pytest.raises(SQLAlchemyError):
                    await rig.scrape(page(computed=computed))
        await rig.scrape(page(computed=500))
        origin = await rig.charts.token_origin(60, rig.now)
        assert origin.recomputed_tokens == 500


async def test_an_alert_that_could_not_be_judged_is_judged_later(tmp_path: Path) -> None:
    """One firing, told once."""
    async with opened_rig(tmp_path) as rig:
        await rig.webhook("http://127.0.0.1:9/hook")
        for _ in range(2):
            await rig.look(0.0)
        with away(rig.database), pytest.raises(SQLAlchemyError):
            await rig.loop.evaluate_once(rig.clock.now + 60)
        await rig.look(0.0)
        assert [flip.new for flip in await rig.alerts.flips()] == ["firing"]
        assert len(await rig.alerts.deliveries()) == 1


async def test_what_was_sent_is_recorded_when_the_database_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The receiver hears it once, though it could not be written at once that it did."""
    monkeypatch.setattr(delivery, "RECORD_AGAIN_SECONDS", 0.02)
    with running_receiver() as receiver:
        async with opened_rig(tmp_path) as rig:
            await rig.webhook(receiver.url())
            await rig.fire()
            send, outage = rig.delivery._sender.send, away(rig.database)

            async def send_and_lose(*arguments: object) -> object:
                answer = await send(*arguments)  # type: ignore[arg-type]
                outage.__enter__()
                asyncio.get_running_loop().call_later(0.1, outage.__exit__, None, None, None)
                return answer

            monkeypatch.setattr(rig.delivery._sender, "send", send_and_lose)
            assert await rig.delivery.send_due() == 1
            assert [one.state for one in await rig.alerts.deliveries()] == ["delivered"]
            assert len(receiver.received) == 1
