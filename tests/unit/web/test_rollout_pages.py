"""The pages of rollouts: step by step while one runs, and what came of it."""

from __future__ import annotations

import asyncio
import re
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx

from app.supervisor.states import EngineState
from tests.fakes import fake_deck
from tests.unit.web.conftest import BEARER, HTML, running

LIMIT_SECONDS = 60.0
ASKED = {"fleet": "main", "profile": "agents", "version": 3}


async def _page(client: httpx.AsyncClient, path: str, **headers: str) -> str:
    answer = await client.get(path, headers={**BEARER, **HTML, **headers})
    assert answer.status_code == 200, answer.text
    return answer.text


async def _begun(client: httpx.AsyncClient) -> dict[str, Any]:
    answer = await client.post("/api/v1/rollouts", json=ASKED, headers=BEARER)
    assert answer.status_code == 202, answer.text
    told: dict[str, Any] = answer.json()
    return told


async def _ended(client: httpx.AsyncClient, rollout_id: int) -> dict[str, Any]:
    async with asyncio.timeout(LIMIT_SECONDS):
        while True:
            now: dict[str, Any] = (await client.get(f"/api/v1/rollouts/{rollout_id}", headers=BEARER)).json()
            if now["state"] != "running":
                return now
            await asyncio.sleep(0.02)


async def test_the_page_shows_steps_clients_and_log(tmp_path: Path) -> None:
    """Engines as rows, steps as columns, what came of each, what clients feel; then it can be rolled back."""
    async with running(fake_deck.build(tmp_path)) as client:
        begun = await _begun(client)
        ended = await _ended(client, begun["id"])
        page = await _page(client, f"/rollouts/{begun['id']}")
    assert ended["state"] == "done", ended["reason"]
    for text in (
        "main-1",
        "main-2",
        "canary",
        "came back from host memory",
        "Failed since it began",
        'id="do-rollback"',
    ):
        assert text in page, text
    assert 'id="do-cancel"' not in page
    [at, *_] = re.findall(r'<span class="when"><time datetime="(\S+)" data-clock>', page)
    assert abs(datetime.fromisoformat(at).timestamp() - ended["ended_at"]) < 2, "the time, and how long ago that is"
    assert page.index("It ended: done.") < page.index("check begins.")


async def test_the_list_says_what_came_of_each(tmp_path: Path) -> None:
    """Empty it says how one is begun; then each rollout with its state, linked."""
    async with running(fake_deck.build(tmp_path)) as client:
        assert "Begin one from" in await _page(client, "/rollouts")
        begun = await _begun(client)
        await _ended(client, begun["id"])
        page = await _page(client, "/rollouts")
    assert f'href="/rollouts/{begun["id"]}"' in page
    assert "agents v3" in page
    assert "done" in page


async def test_sentences_are_told_in_chinese(tmp_path: Path) -> None:
    """What was written by the deck while it worked is kept so that it can be."""
    async with running(fake_deck.build(tmp_path)) as client:
        begun = await _begun(client)
        await _ended(client, begun["id"])
        page = await _page(client, f"/rollouts/{begun['id']}", **{"accept-language": "zh"})
    for english in ("begins.", "came back from host memory", "Nothing speaks against", "It takes requests again"):
        assert english not in page, english


async def test_the_last_engine_that_serves_is_left_to_the_rollout(tmp_path: Path) -> None:
    """A drain or restart by hand would leave nobody: refused with who runs the rollout, unless it is forced."""
    application = fake_deck.build(tmp_path)
    engines = application.state.deck.engines
    async with running(application) as client:
        engines.hold_at(EngineState.STOPPED)
        begun = await _begun(client)
        async with asyncio.timeout(LIMIT_SECONDS):
            while len([one for one in engines.statuses() if one.serves]) > 1:
                await engines.changed()
        [last] = [one.name for one in engines.statuses() if one.serves]
        for verb in ("drain", "restart"):
            answer = await client.post(f"/api/v1/engines/{last}/{verb}", headers=BEARER)
            assert answer.status_code == 409, answer.text
            assert f"Rollout {begun['id']}, started by admin" in answer.text
        assert engines.status(last).serves
        forced = await client.post(f"/api/v1/engines/{last}/drain?force=true", headers=BEARER)
        assert (forced.status_code, engines.status(last).serves) == (202, False)


async def test_a_rollout_that_is_not_there(tmp_path: Path) -> None:
    """404, as a page that helps."""
    async with running(fake_deck.build(tmp_path)) as client:
        answer = await client.get("/rollouts/99", headers={**BEARER, **HTML})
    assert answer.status_code == 404
