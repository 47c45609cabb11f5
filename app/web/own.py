"""The deck's own health and numbers, for probes and Prometheus."""

from __future__ import annotations

from fastapi import APIRouter, Response
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Gauge, generate_latest

from app.deck import Deck
from app.supervisor.states import EngineState
from app.web.deps import DeckDep

router = APIRouter(tags=["deck"])


@router.get("/healthz")
async def healthz(deck: DeckDep) -> JSONResponse:
    """200 while the deck lives; names the loops that are recovering from a fault."""
    return JSONResponse({"status": "ok", "loops_recovering": dict(deck.loops.faults)})


@router.get("/readyz")
async def readyz(deck: DeckDep) -> JSONResponse:
    """200 when an engine takes requests, else 503. An engine that is ready may be held: a rollout tests it first."""
    statuses = deck.engines.statuses()
    ready = any(status.serves for status in statuses)
    states = {status.name: status.state.value for status in statuses}
    held = {status.name: status.held for status in statuses if status.held}
    body = {"ready": ready, "engines": states, "held": held}
    return JSONResponse(body, status_code=200 if ready else 503)


@router.get("/metrics")
async def metrics(deck: DeckDep) -> Response:
    """The deck's own metrics in Prometheus' text format; the engines' are at their own /metrics."""
    written = generate_latest(_registry(deck)) + generate_latest(deck.door.metrics.registry)
    return Response(written, media_type=CONTENT_TYPE_LATEST)


def _registry(deck: Deck) -> CollectorRegistry:
    registry = CollectorRegistry()
    state = Gauge("tierdeck_engine_state", "1 for the state an engine is in.", ("engine", "state"), registry=registry)
    in_flight = Gauge("tierdeck_door_requests_in_flight", "Requests open on an engine.", ("engine",), registry=registry)
    waiting = Gauge("tierdeck_door_requests_waiting", "Requests waiting for an engine.", registry=registry)
    dropped = Gauge("tierdeck_door_records_dropped", "Records of requests that could not be kept.", registry=registry)
    waiting.set(deck.door.waiting)
    dropped.set(deck.requests.dropped)
    for status in deck.engines.statuses():
        in_flight.labels(status.name).set(deck.door.in_flight(status.name))
        for name in EngineState:
            state.labels(status.name, name.value).set(1 if status.state is name else 0)
    return registry
