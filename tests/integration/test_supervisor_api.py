"""Engines over REST."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest
from fastapi import FastAPI

from app.supervisor.states import EngineState
from app.web.api.engines import router
from app.web.api.fleets import router as fleets_router
from app.web.errors import install_error_handlers
from tests.integration.supervisor_rig import READY, SETTLED, STOPPED, Engine, Rig, deck


def client_of(rig: Rig) -> httpx.AsyncClient:
    """The routes alone, on a deck that has nothing but engines."""
    app = FastAPI()
    app.include_router(router)
    app.include_router(fleets_router)
    install_error_handlers(app)
    app.state.deck = SimpleNamespace(engines=rig.engines, fleets=rig.fleets, rollouts=rig.rollouts)
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://deck")


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    async with deck(tmp_path, Engine({})) as running:
        yield running


async def test_life_over_rest(rig: Rig) -> None:
    """Commands are taken up at once (202) and answer with the engine's status; the rest can be read."""
    async with client_of(rig) as client:
        started = await client.post("/api/v1/engines/one/start")
        assert started.status_code == 202 and started.json()["state"] == "starting"
        await rig.until(READY)
        shown = (await client.get("/api/v1/engines/one")).json()
        assert shown["serves"] and shown["base_url"].endswith(str(shown["port"]))
        assert "--port" in shown["command"] and shown["running_version"] == 1
        logs = (await client.get("/api/v1/engines/one/logs", params={"search": "startup", "lines": 3})).json()
        assert [line["level"] for line in logs["lines"]] == ["info"]
        first = (await client.get("/api/v1/engines/one/logs", params={"lines": 5000})).json()["lines"][0]
        assert "Starting one with demo v1" in first["text"] and first["at"] is not None
        [fleet] = (await client.get("/api/v1/fleets")).json()
        told = {name: fleet[name] for name in ("name", "model", "engines", "ready")}
        assert told == {"name": "fleet", "model": "fake/model", "engines": ["one"], "ready": 1}
        of_fleet = (await client.get("/api/v1/engines", params={"fleet": "fleet"})).json()
        assert [one["name"] for one in of_fleet] == ["one"]
        assert (await client.post("/api/v1/engines/one/drain")).json()["state"] == "draining"
        assert (await client.post("/api/v1/engines/one/stop", params={"now": True})).status_code == 202
        await rig.until(STOPPED)
        moves = (await client.get("/api/v1/engines/one/transitions", params={"limit": 1})).json()
        assert moves[0]["new_state"] == "stopped" and moves[0]["cause"]


@pytest.mark.parametrize(
    ("method", "path", "status", "field"),
    [
        ("GET", "/api/v1/engines/two", 404, "name"),
        ("GET", "/api/v1/engines?fleet=other", 404, "fleet"),
        ("POST", "/api/v1/engines/two/start", 404, "name"),
        ("GET", "/api/v1/engines/two/logs", 404, "name"),
        ("GET", "/api/v1/engines/one/logs?level=loud", 422, "level"),
        ("POST", "/api/v1/engines/one/drain", 409, None),
    ],
)
async def test_refusals(rig: Rig, method: str, path: str, status: int, field: str | None) -> None:
    """A refusal is a sentence with a code, and the path of the offending field."""
    async with client_of(rig) as client:
        answer = await client.request(method, path)
        assert answer.status_code == status
        error = answer.json()["error"]
        assert error["message"].endswith(".") and error["code"] and error["path"] == field


async def test_failed_start_is_told(tmp_path: Path) -> None:
    """What is wrong with a start stands in the status, as a code and one sentence."""
    async with deck(tmp_path, Engine({}, model="/no/such")) as rig, client_of(rig) as client:
        await client.post("/api/v1/engines/one/start")
        await rig.until(SETTLED)
        shown = (await client.get("/api/v1/engines/one")).json()
        assert shown["state"] == EngineState.FAILED and shown["error_code"] == "model_not_found"
        assert "/no/such" in shown["cause"] and shown["pid"] is None
