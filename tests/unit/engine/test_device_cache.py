"""The one answer that the deck adds to an engine's server."""

from __future__ import annotations

import httpx
import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from app.services import canary
from app.supervisor import command
from engine.device_cache import HEADER, MARKER_VARIABLE, PATH, DeviceCache


class Client:
    """In the place of vLLM's engine client."""

    def __init__(self) -> None:
        self.asked = 0

    async def reset_prefix_cache(self) -> bool:
        self.asked += 1
        return self.asked > 1


def server() -> Starlette:
    app = Starlette(
        routes=[Route("/health", lambda _: PlainTextResponse("fine"))], middleware=[Middleware(DeviceCache)]
    )
    app.state.engine_client = Client()
    return app


async def ask(app: Starlette, method: str = "POST", path: str = PATH, marker: str | None = "secret") -> httpx.Response:
    headers = {} if marker is None else {"x-tierdeck-marker": marker}
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://engine") as client:
        return await client.request(method, path, headers=headers)


async def test_the_deck_empties_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is told whether that was possible; blocks in use keep it from being so."""
    monkeypatch.setenv(MARKER_VARIABLE, "secret")
    app = server()
    assert [(await ask(app)).json() for _ in range(2)] == [{"success": False}, {"success": True}]


@pytest.mark.parametrize(("method", "marker"), [("POST", None), ("POST", "guess"), ("POST", ""), ("GET", "secret")])
async def test_nobody_else_finds_the_path(monkeypatch: pytest.MonkeyPatch, method: str, marker: str | None) -> None:
    """Without the marker of this start it does not exist."""
    monkeypatch.setenv(MARKER_VARIABLE, "secret")
    app = server()
    assert (await ask(app, method, marker=marker)).status_code == 404
    assert app.state.engine_client.asked == 0


async def test_an_engine_without_a_marker_has_no_such_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Started by hand, an empty marker opens nothing."""
    monkeypatch.delenv(MARKER_VARIABLE, raising=False)
    assert (await ask(server(), marker="")).status_code == 404


async def test_all_else_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine's own answers are its own."""
    monkeypatch.setenv(MARKER_VARIABLE, "secret")
    assert (await ask(server(), "GET", "/health")).text == "fine"


def test_deck_and_engine_call_it_by_the_same_names() -> None:
    """Neither half imports the other's module for it."""
    assert (canary.FORGET_PATH, canary.HEADER.encode(), command.MARKER_VARIABLE) == (PATH, HEADER, MARKER_VARIABLE)
    assert f"{DeviceCache.__module__}.{DeviceCache.__qualname__}" == command.DEVICE_CACHE
