"""Live updates: the deck's events, and an engine's log as it grows, as server-sent events."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import asdict
from typing import Any

from fastapi import APIRouter, Query
from fastapi.sse import KEEPALIVE_COMMENT, EventSourceResponse, format_sse_event

from app.events import Event, Events
from app.web.deps import DeckDep

router = APIRouter()

KEEPALIVE_SECONDS = 15.0
RETRY_MILLISECONDS = 2000
HEADERS = {"cache-control": "no-store", "x-accel-buffering": "no"}


@router.get("/events", include_in_schema=False)
async def events(deck: DeckDep) -> EventSourceResponse:
    """Everything that changes, by kind. Pages read what they show again; an event is only the hint."""
    return EventSourceResponse(event_stream(deck.events), headers=HEADERS)


@router.get("/events/engines/{name}/log", include_in_schema=False)
async def engine_log(deck: DeckDep, name: str, after: int = Query(0, ge=0)) -> EventSourceResponse:
    """Lines of an engine's log after line number `after`, as they come."""
    deck.engines.status(name)  # NotFound before the stream starts, not inside it
    return EventSourceResponse(log_stream(deck.engines.follow_log(name, after)), headers=HEADERS)


async def event_stream(events: Events, keepalive_seconds: float = KEEPALIVE_SECONDS) -> AsyncIterator[bytes]:
    """One subscription written out, until the client leaves."""
    with events.subscribe() as subscription:
        yield format_sse_event(event="open", data_str="{}", retry=RETRY_MILLISECONDS)
        skipped = 0
        while True:
            try:
                event = await asyncio.wait_for(subscription.next(), keepalive_seconds)
            except TimeoutError:
                yield KEEPALIVE_COMMENT
                continue
            if subscription.skipped > skipped:  # the page reads everything again
                skipped = subscription.skipped
                yield format_sse_event(event="skipped", data_str=json.dumps({"count": skipped}))
            yield written(event)


async def log_stream(batches: AsyncIterator[Any]) -> AsyncIterator[bytes]:
    """Batches of log lines, each with the number of lines that were left out."""
    async for batch in batches:
        lines = [asdict(line) for line in batch.lines]
        yield format_sse_event(event="lines", data_str=json.dumps({"lines": lines, "skipped": batch.skipped}))


def written(event: Event) -> bytes:
    """An event in wire format: its kind as the event's name, key and data as JSON."""
    return format_sse_event(event=event.kind, data_str=json.dumps({"key": event.key, "data": event.data}))
