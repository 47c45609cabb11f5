"""The route of the page of requests."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from app.store.queries.requests import Filter
from app.web.deps import DeckDep
from app.web.render import language_of, render, shell
from app.web.request_page import RequestFacts, requests_page

router = APIRouter(include_in_schema=False)

SHOWN = 50

Text = Annotated[str, Query(max_length=200)]


@router.get("/requests")
async def requests(
    request: Request,
    deck: DeckDep,
    fleet: Text = "",
    engine: Text = "",
    outcome: Text = "",
    session: Text = "",
    before: Annotated[int | None, Query(ge=1, le=2**31 - 1)] = None,
) -> Response:
    """What was asked, who served it, where its input came from, how it ended."""
    language = language_of(request)
    wanted = Filter(fleet or None, engine or None, outcome or None, session.strip() or None, before)
    views = await deck.requests.newest(wanted, SHOWN)
    facts = RequestFacts(
        wanted=wanted,
        views=views,
        is_full=len(views) == SHOWN,
        engines=deck.engines.statuses(),
        in_flight=sum(deck.door.in_flight(status.name) for status in deck.engines.statuses()),
        waiting=deck.door.waiting,
    )
    page = requests_page(shell(request, language.gettext("Requests"), "requests"), language, facts)
    return render(request, page)
