"""REST: records of the requests at the door."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Query

from app.store.queries.requests import Filter
from app.web.deps import DeckDep

router = APIRouter(prefix="/api/v1", tags=["requests"])

Name = Annotated[str | None, Query(max_length=200)]
Session = Annotated[str | None, Query(max_length=200, description="As the client named it, or as a record shows it.")]
Outcome = Annotated[
    str | None,
    Query(description="done, refused, client_closed, upstream_closed, upstream_error or interrupted."),
]
Before = Annotated[int | None, Query(ge=1, le=2**31 - 1, description="Only records before this id: `next_before`.")]
Limit = Annotated[int, Query(ge=1, le=500, description="How many, newest first.")]


@router.get("/requests")
async def requests(
    deck: DeckDep,
    fleet: Name = None,
    engine: Name = None,
    outcome: Outcome = None,
    session: Session = None,
    before: Before = None,
    limit: Limit = 100,
) -> dict[str, Any]:
    """Requests that ended, newest first. A time or a count that is not known is null."""
    views = await deck.requests.newest(Filter(fleet, engine, outcome, session, before), limit)
    following = views[-1].id if len(views) == limit else None
    return {"requests": [asdict(view) for view in views], "next_before": following}
