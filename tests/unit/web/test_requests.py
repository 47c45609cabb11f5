"""The page of requests and its REST counterpart."""

from __future__ import annotations

import re
from pathlib import Path

import httpx
import pytest

from app.services.requests import RequestView
from app.web.i18n import languages
from app.web.request_page import _shares, outcome_badge
from tests.fakes import fake_deck
from tests.unit.web.conftest import BEARER, HTML, running

GETTEXT = languages()["en"].gettext


def view(**changes: object) -> RequestView:
    values = dict.fromkeys(RequestView.__dataclass_fields__)
    return RequestView(**{**values, "id": 1, "at": 0.0, "outcome": "done", "status": 200, **changes})  # type: ignore[arg-type]


def shares(**changes: object) -> list[tuple[str, float]]:
    return [(share.key, share.width) for share in _shares(view(**changes), GETTEXT)]


def test_the_bar_shows_what_the_engine_said_and_no_more() -> None:
    """The sum of what was cached is not given to VRAM or host; without it there is no bar."""
    assert shares(input_tokens=1000, cached_tokens=750) == [("cached", 75.0), ("recomputed", 25.0)]
    split = {"vram_tokens": 500, "host_tokens": 250}
    assert shares(input_tokens=1000, cached_tokens=750, **split) == [
        ("vram", 50.0),
        ("host", 25.0),
        ("recomputed", 25.0),
    ]
    assert shares(input_tokens=1000, cached_tokens=0, vram_tokens=0, host_tokens=0) == [("recomputed", 100.0)]
    assert shares(input_tokens=1000) == shares() == []


@pytest.mark.parametrize(
    ("outcome", "status", "tone"),
    [
        ("done", 200, "good"),
        ("done", 400, "warning"),
        ("refused", 503, "warning"),
        ("client_closed", 200, "off"),
        ("upstream_closed", 502, "failed"),
        ("interrupted", None, "failed"),
    ],
)
def test_an_end_has_a_tone(outcome: str, status: int, tone: str) -> None:
    """A client that left is no fault; an engine that did is."""
    assert outcome_badge(outcome, status, GETTEXT).tone == tone


@pytest.fixture
async def client(tmp_path: Path):
    async with running(fake_deck.build(tmp_path, "busy")) as client:
        yield client


async def test_requests_are_filtered_and_lead_on(client: httpx.AsyncClient) -> None:
    """By session, engine and outcome, on the page and by REST alike."""
    listed = (await client.get("/api/v1/requests", headers=BEARER)).json()
    assert len(listed["requests"]) == 8 and listed["next_before"] is None
    of_session = await client.get("/requests?session=main-agent", headers=BEARER | HTML)
    assert of_session.text.count('title="main-agent"') == 3
    first = (await client.get("/api/v1/requests?limit=3", headers=BEARER)).json()
    rest = (await client.get(f"/api/v1/requests?before={first['next_before']}", headers=BEARER)).json()
    assert first["requests"] + rest["requests"] == listed["requests"]
    left = (await client.get("/api/v1/requests?outcome=client_closed&engine=main-1", headers=BEARER)).json()
    assert [one["session"] for one in left["requests"]] == ["main-agent"]
    assert 'href="/requests?engine=main-1"' in (await client.get("/engines/main-1", headers=BEARER | HTML)).text


async def test_a_missing_number_is_null_and_a_dash(client: httpx.AsyncClient) -> None:
    """A client that left has no counts."""
    (one,) = (await client.get("/api/v1/requests?outcome=client_closed", headers=BEARER)).json()["requests"]
    assert one["input_tokens"] is None and one["first_byte_seconds"] is None
    text = (await client.get("/requests?outcome=client_closed", headers=BEARER | HTML)).text
    row = re.search(r"<tbody>(.*?)</tbody>", text, re.DOTALL)
    assert row is not None and row[1].count("–") == 3


@pytest.mark.parametrize("query", ["outcome=gone", "before=0", "before=x", "limit=0", "limit=501"])
async def test_a_filter_that_makes_no_sense_is_named(client: httpx.AsyncClient, query: str) -> None:
    """The field and what to write."""
    answer = await client.get(f"/api/v1/requests?{query}", headers=BEARER)
    assert answer.status_code == 422 and query.split("=")[0] in answer.json()["error"]["path"]


async def test_what_a_client_calls_its_session_is_only_text(client: httpx.AsyncClient) -> None:
    """In the address, in the field, in the list."""
    text = (await client.get('/requests?session="><script>x</script>', headers=BEARER | HTML)).text
    assert "<script>x" not in text and "&lt;script&gt;x" in text


async def test_the_door_counts_itself(client: httpx.AsyncClient) -> None:
    """In Prometheus' format beside the deck's other numbers."""
    text = (await client.get("/metrics")).text
    for name in ("requests_total", "identical_requests_total", "joined_requests_total", "queue_seconds"):
        assert f"# TYPE tierdeck_door_{name.removesuffix('_total')}" in text or f"# TYPE tierdeck_door_{name}" in text
    assert "tierdeck_door_records_dropped 0.0" in text
