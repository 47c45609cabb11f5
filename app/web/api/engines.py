"""REST: engines."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Query

from app.web.deps import DeckDep

router = APIRouter(prefix="/api/v1", tags=["engines"])

Lines = Annotated[int, Query(ge=1, le=5000, description="How many lines, counted from the end.")]
Search = Annotated[str, Query(max_length=200, description="Only lines that hold this text, in any case.")]
Force = Annotated[bool, Query(description="Also while a rollout runs and no other engine of the fleet serves.")]
Level = Annotated[str, Query(description="Only lines at least this severe: debug, info, warning, error, critical.")]


@router.get("/engines")
async def list_engines(deck: DeckDep, fleet: str | None = None) -> list[dict[str, Any]]:
    """Every engine, or those of one fleet."""
    if fleet is not None:
        await deck.fleets.get(fleet)  # a name that is wrong is no empty list
    return [status.as_json() for status in deck.engines.statuses(fleet)]


@router.get("/engines/{name}")
async def get_engine(deck: DeckDep, name: str) -> dict[str, Any]:
    """One engine, and the command that starts it."""
    return {**deck.engines.status(name).as_json(), "command": deck.engines.shell_command(name)}


@router.post("/engines/{name}/start", status_code=202)
async def start_engine(deck: DeckDep, name: str) -> dict[str, Any]:
    """Have the engine run; calls off a drain."""
    return (await deck.engines.start(name)).as_json()


@router.post("/engines/{name}/stop", status_code=202)
async def stop_engine(deck: DeckDep, name: str, now: bool = False, forget: bool = False) -> dict[str, Any]:
    """Wait for the requests in flight (not with `now=true`), then end every process of the engine.

    Its host memory stays for the next start, unless `forget=true` gives it back.
    """
    return (await deck.engines.stop(name, now=now, forget=forget)).as_json()


@router.post("/engines/{name}/restart", status_code=202)
async def restart_engine(deck: DeckDep, name: str, force: Force = False) -> dict[str, Any]:
    """Drain, stop, and start with the wanted profile version."""
    if not force:
        await deck.rollouts.refuse_to_empty(name)
    return (await deck.engines.restart(name)).as_json()


@router.post("/engines/{name}/drain", status_code=202)
async def drain_engine(deck: DeckDep, name: str, force: Force = False) -> dict[str, Any]:
    """Send the engine no new requests until it is started again."""
    if not force:
        await deck.rollouts.refuse_to_empty(name)
    return (await deck.engines.drain(name)).as_json()


@router.get("/engines/{name}/logs")
async def get_logs(
    deck: DeckDep, name: str, lines: Lines = 500, search: Search = "", level: Level = ""
) -> dict[str, Any]:
    """The end of the engine's log."""
    found = await asyncio.to_thread(deck.engines.log_tail, name, lines, search, level)
    return {"engine": name, "lines": [asdict(line) for line in found]}


@router.get("/engines/{name}/transitions")
async def get_transitions(
    deck: DeckDep, name: str, limit: Annotated[int, Query(ge=1, le=500)] = 50
) -> list[dict[str, Any]]:
    """The last changes of state, newest first, each with its cause."""
    return [asdict(transition) for transition in await deck.engines.transitions(name, limit)]
