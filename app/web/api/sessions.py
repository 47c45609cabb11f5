"""REST: the sessions in the engines' host memory."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Query

from app.services.resident_sessions import resident_sessions
from app.web.deps import DeckDep

router = APIRouter(prefix="/api/v1", tags=["sessions"])

Name = Annotated[str | None, Query(max_length=200)]
Limit = Annotated[int, Query(ge=1, le=10_000, description="How many, those that go next first.")]


@router.get("/sessions")
async def sessions(deck: DeckDep, fleet: Name = None, engine: Name = None, limit: Limit = 500) -> dict[str, Any]:
    """Which sessions could come back from host memory, to which token, and which goes next.

    `engines` has one entry per engine; its `sessions` is null, with the `reason`, where the engine does not tell.
    An engine lists so many sessions at most; where it has more, `is_cut` is true and `restorable_sessions` counts
    those of the list: there are at least so many.
    """
    if fleet is not None:
        await deck.fleets.get(fleet)  # a name that is wrong is no empty list
    statuses = deck.engines.statuses(fleet)
    if engine is not None:
        statuses = [status for status in [deck.engines.status(engine)] if status in statuses]
    return asdict(await resident_sessions(statuses, deck.settings.data_dir, time.time(), limit))
