"""REST: where tokens came from, chart series, slots, and how well each engine's page was understood."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Query

from app.services.charts import parse_window
from app.web.deps import DeckDep

router = APIRouter(prefix="/api/v1", tags=["data"])

Window = Annotated[str, Query(description="5m, 1h, 24h, 7d or seconds; at most 15d.")]
FleetName = Annotated[str | None, Query(description="One fleet; all when left out.")]
ChartName = Annotated[str, Query(description="token-origin, slots, ttft, load or memory.")]


@router.get("/token-origin")
async def token_origin(deck: DeckDep, window: Window = "1h", fleet: FleetName = None) -> dict[str, Any]:
    """Input tokens by where they came from. A number that is not known is null, with a reason."""
    answer = await deck.charts.token_origin(parse_window(window), time.time(), fleet)
    return answer.as_json()


@router.get("/series")
async def series(deck: DeckDep, chart: ChartName, window: Window = "1h", fleet: FleetName = None) -> dict[str, Any]:
    """One chart: times, lines and marks. Null where there is nothing to draw."""
    answer = await deck.charts.chart(chart, parse_window(window), time.time(), fleet)
    return answer.as_json()


@router.get("/slots")
async def slots(deck: DeckDep, fleet: FleetName = None) -> dict[str, Any]:
    """Slots of the host tier now, by pool, and what was evicted in the last minutes, by reason."""
    answer = await deck.charts.slots(time.time(), fleet)
    return {**asdict(answer), "token_share": answer.token_share, "state_share": answer.state_share}


@router.get("/scrapes")
async def scrapes(deck: DeckDep) -> dict[str, Any]:
    """For each engine: logical metrics its last page lacked, and names on it that the deck does not read."""
    found = {status.name: deck.scrape_loop.coverage(status.name) for status in deck.engines.statuses()}
    return {"engines": {name: None if one is None else asdict(one) for name, one in found.items()}}
