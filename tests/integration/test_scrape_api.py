"""The REST routes over scraped numbers."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from types import SimpleNamespace

import httpx
import pytest
from fastapi import FastAPI

from app.store.database import Database
from app.web.api import data
from app.web.errors import install_error_handlers
from tests.integration.scrape_rig import Rig, one_engine, page


@pytest.fixture
async def rig(sqlite_database: Database) -> AsyncIterator[Rig]:
    async with one_engine(sqlite_database) as rig:
        rig.now = time.time() - 400
        rig.engines.change("e1", started_at=rig.now - 30)
        await rig.scrape(page(started=rig.now - 30), beats=36, every=10)
        await rig.scrape(page(700, 200, 100, missed=60, started=rig.now - 390), beats=18)
        yield rig


@pytest.fixture
async def client(rig: Rig) -> AsyncIterator[httpx.AsyncClient]:
    app = FastAPI()
    app.include_router(data.router)
    install_error_handlers(app)
    app.state.deck = SimpleNamespace(charts=rig.charts, engines=rig.engines, scrape_loop=rig.loop)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://deck") as client:
        yield client


async def test_token_origin_has_the_documented_fields(client: httpx.AsyncClient) -> None:
    """Field by field what programs outside rely on; the parts add up."""
    answer = (await client.get("/api/v1/token-origin", params={"window": "5m", "fleet": "f-e1"})).json()
    assert list(answer) == [
        "window_seconds",
        "from",
        "to",
        "input_tokens",
        "vram_tokens",
        "host_tokens",
        "recomputed_tokens",
        "avoidable_tokens",
        "complete",
        "reason",
    ]
    assert answer["input_tokens"] == answer["vram_tokens"] + answer["host_tokens"] + answer["recomputed_tokens"] == 1000
    assert (answer["avoidable_tokens"], answer["complete"], answer["reason"]) == (60, True, None)


async def test_series_is_a_chart(client: httpx.AsyncClient) -> None:
    """Times, lines of the same length, null where there is nothing, marks, and a reason when all is empty."""
    chart = (await client.get("/api/v1/series", params={"chart": "slots", "window": "5m"})).json()
    assert {len(line["values"]) for line in chart["lines"]} == {len(chart["at"])}
    assert [line["key"] for line in chart["lines"]] == ["token-slots", "state-slots"]
    assert chart["lines"][0]["values"][-1] == 0.4
    assert chart["empty_reason"] is None
    ttft = (await client.get("/api/v1/series", params={"chart": "ttft"})).json()
    assert ttft["empty_reason"] == "missing_metric"


async def test_slots_and_scrapes(client: httpx.AsyncClient) -> None:
    """Slots now; and how well the page was understood."""
    slots = (await client.get("/api/v1/slots")).json()
    assert (slots["token_used"], slots["state_total"], slots["state_share"], slots["evictions"]) == (40, 30, 1, None)
    coverage = (await client.get("/api/v1/scrapes")).json()["engines"]["e1"]
    assert "ttft_seconds" in coverage["unavailable"]


@pytest.mark.parametrize(
    ("path", "params", "status", "field"),
    [
        ("token-origin", {"window": "soon"}, 422, "window"),
        ("token-origin", {"fleet": "nowhere"}, 404, "fleet"),
        ("series", {"chart": "weather"}, 422, "chart"),
        ("series", {"chart": "load", "window": "20d"}, 422, "window"),
        ("slots", {"fleet": "nowhere"}, 404, "fleet"),
    ],
)
async def test_bad_questions_name_the_field(
    client: httpx.AsyncClient, path: str, params: dict[str, str], status: int, field: str
) -> None:
    """One error shape, with the field that is wrong."""
    answer = await client.get(f"/api/v1/{path}", params=params)
    assert answer.status_code == status
    assert answer.json()["error"]["path"] == field
