"""Routes of the fleets' page."""

from __future__ import annotations

from contextlib import suppress

from fastapi import APIRouter, Request
from starlette.responses import Response

from app.errors import NotFound
from app.services.fleets import FleetView, NewEngine
from app.web.deps import DeckDep
from app.web.fleet_page import HREF, FleetFacts, fleets_page
from app.web.render import language_of, render, shell

router = APIRouter(include_in_schema=False)


@router.get(HREF)
async def fleets(request: Request, deck: DeckDep) -> Response:
    """Each fleet with its engines, and what can be done."""
    facts = FleetFacts(
        fleets=await _fleets(deck),
        profiles=[profile.name for profile in await deck.profiles.list()],
        in_flight=deck.door.in_flight,
        interpreter=str(deck.settings.engine_python),
        engine_port=deck.settings.engine_port,
    )
    language = language_of(request)
    page = fleets_page(shell(request, language.gettext("Fleets"), "overview"), language, facts)
    return render(request, page)


async def _fleets(deck: DeckDep) -> list[tuple[FleetView, NewEngine]]:
    """Without those that are deleted while they are looked at."""
    found = []
    for view in await deck.fleets.list():
        with suppress(NotFound):
            found.append((view, await deck.fleets.new_engine(view.name)))
    return found
