"""The engine page and its row on the overview: no number of a process that has ended, and dialogs that are true."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from app.supervisor.states import EngineState
from tests.fakes import fake_deck
from tests.unit.web.conftest import BEARER, HTML, running

#: KV cache used and TTFT, as the busy deck's numbers tell them.
NUMBERS = ("83.2", "5.71")


async def _page(client: httpx.AsyncClient, path: str) -> str:
    answer = await client.get(path, headers={**BEARER, **HTML})
    assert answer.status_code == 200, answer.text
    return answer.text


@pytest.mark.parametrize("path", ["/", "/engines/main-1"])
async def test_numbers_of_an_engine_that_does_not_answer_are_missing(tmp_path: Path, path: str) -> None:
    """A process that is coming up has none, and those of the one before are not its own."""
    application = fake_deck.build(tmp_path, "busy")
    async with running(application) as client:
        before = await _page(client, path)
        assert all(number in before for number in NUMBERS)
        for name in ("main-1", "main-2"):
            application.state.deck.engines.set(name, state=EngineState.STARTING, pid=99)
        after = await _page(client, path)
    assert not [number for number in NUMBERS if number in after]


@pytest.mark.parametrize(
    ("fate", "told"),
    [
        ("kept", "Its cached sessions in VRAM are lost; those in host memory stay for its next start."),
        ("lost", "Its cached sessions in VRAM and host memory are lost."),
        ("none", "Its cached sessions in VRAM are lost."),
    ],
)
async def test_stop_and_restart_say_what_becomes_of_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fate: str, told: str
) -> None:
    """By what the engine's host tier is: kept, lost or not there."""

    async def host_memory(_: object, name: str) -> str:
        return fate

    monkeypatch.setattr(fake_deck.FakeEngines, "host_memory", host_memory)
    async with running(fake_deck.build(tmp_path, "busy")) as client:
        page = await _page(client, "/engines/main-1")
    assert page.count(told) == 2, "one for each of the two dialogs"


async def test_restart_and_drain_say_where_requests_go(tmp_path: Path) -> None:
    """To the other engines where one serves, else to the door."""
    others, door = "New requests go to the other engines of its fleet.", "New requests wait at the door until it serves"
    application = fake_deck.build(tmp_path, "busy")
    async with running(application) as client:
        page = await _page(client, "/engines/main-1")
        assert (page.count(others), page.count(door)) == (2, 0)
        application.state.deck.engines.set("main-2", state=EngineState.STOPPED)
        page = await _page(client, "/engines/main-1")
        assert (page.count(others), page.count(door)) == (0, 2)


@pytest.mark.parametrize("path", ["/", "/engines/main-1", "/fleets"])
async def test_an_engine_that_is_ready_and_kept_out_of_traffic_says_why(tmp_path: Path, path: str) -> None:
    """Wherever its state is shown, so that "1 of 2 ready" never stands over two rows that are."""
    why = "Rollout 7 tests engine main-1."
    application = fake_deck.build(tmp_path, "busy")
    async with running(application) as client:
        assert why not in await _page(client, path)
        application.state.deck.engines.hold("main-1", why)
        page = await _page(client, path)
    assert "held back" in page and why in page
