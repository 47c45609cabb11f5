"""Routes of the pages: ask the services, build the page object, render."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, Form, Query, Request
from starlette.responses import Response

from app.rollouts.strategy import Strategy
from app.services.charts import parse_window
from app.services.surroundings import no_fleet
from app.web import account, fleets, planner, requests, rollout_routes
from app.web.alert_page import AlertFacts, alerts_page
from app.web.contexts import DocsPage
from app.web.deps import DeckDep
from app.web.engine_page import EngineNow, engine_page
from app.web.overview import DEFAULT_WINDOW, OverviewFacts, default_window, overview_page
from app.web.profile_facts import Wanted, box_of, preset_named, profile_facts
from app.web.profile_page import new_profile_page, profile_page, profiles_page
from app.web.render import language_of, render, shell
from app.web.rollout_preview import rollout_preview_page, seconds_or_none

if TYPE_CHECKING:
    from app.deck import Deck

router = APIRouter(include_in_schema=False)
router.include_router(account.router)
router.include_router(planner.router)
router.include_router(rollout_routes.router)
router.include_router(fleets.router)
router.include_router(requests.router)

TRANSITIONS_SHOWN = 30
FLIPS_SHOWN = 20
DELIVERIES_SHOWN = 20


@router.get("/")
async def overview(request: Request, deck: DeckDep, window: str = "", fleet: str = "") -> Response:
    """Is the cache working?"""
    language = language_of(request)
    if not window:
        over_default = await deck.charts.token_origin(parse_window(DEFAULT_WINDOW), time.time(), fleet or None)
        window = default_window(over_default)
    facts = await _overview_facts(deck, window, fleet, time.time())
    return render(request, overview_page(shell(request, language.gettext("Overview"), "overview"), language, facts))


@router.get("/engines/{name}")
async def engine(request: Request, deck: DeckDep, name: str) -> Response:
    """One engine: its state, what can be done, what it was, its log."""
    status = deck.engines.status(name)
    others = [one for one in deck.engines.statuses(status.fleet) if one.name != name]
    page = engine_page(
        shell(request, name, "overview"),
        language_of(request),
        EngineNow(
            status, await deck.engines.host_memory(name), any(one.serves for one in others), deck.door.in_flight(name)
        ),
        await deck.engines.transitions(name, TRANSITIONS_SHOWN),
        await deck.charts.latest(name, time.time()),
        deck.settings.log_dir,
    )
    return render(request, page)


@router.get("/profiles")
async def profiles(request: Request, deck: DeckDep) -> Response:
    """Every profile and where it runs."""
    language = language_of(request)
    summaries, engines = await deck.profiles.list(), deck.engines.statuses()
    page = profiles_page(shell(request, language.gettext("Profiles"), "profiles"), language, summaries, engines)
    return render(request, page)


@router.get("/new-profile")
async def new_profile(request: Request, deck: DeckDep, preset: str = "") -> Response:
    """The editor on an empty sheet, or on a preset. Raises NotFound."""
    language, box = language_of(request), await box_of(deck)
    begun = preset_named(preset, box)
    title = language.gettext("New profile")
    fleets = sorted({status.fleet for status in deck.engines.statuses()})
    page = new_profile_page(shell(request, title, "profiles"), language, box, fleets, begun)
    return render(request, page)


@router.get("/profiles/{name}")
async def profile(
    request: Request,
    deck: DeckDep,
    name: str,
    version: Annotated[int | None, Query(ge=1)] = None,
    compare: Annotated[int | None, Query(ge=1)] = None,
    other: Annotated[str, Query(alias="with")] = "",
) -> Response:
    """One profile: editor, versions, comparison, applying."""
    wanted = Wanted(name, version, compare, other)
    facts = await profile_facts(deck, wanted, time.time())
    return render(request, profile_page(shell(request, name, "profiles"), language_of(request), facts))


@router.post("/profiles/{name}/preview")
async def rollout_preview(
    request: Request,
    deck: DeckDep,
    name: str,
    fleet: Annotated[str, Form()],
    version: Annotated[int, Form(ge=1)],
    strategy: Annotated[Strategy | None, Form()] = None,
    drain_timeout_seconds: Annotated[str, Form()] = "",
) -> Response:
    """What applying a version would do: a part of the profile's page."""
    told = await deck.previews.preview(fleet, name, version, strategy, seconds_or_none(drain_timeout_seconds))
    return render(request, rollout_preview_page(shell(request, name), language_of(request), told))


@router.get("/alerts")
async def alerts(request: Request, deck: DeckDep) -> Response:
    """Rules, what flipped, and who is told."""
    facts = AlertFacts(
        rules=await deck.alerts.rules(),
        alerts=await deck.alerts.alerts(),
        flips=await deck.alerts.flips(FLIPS_SHOWN),
        webhooks=await deck.alerts.webhooks(),
        deliveries=await deck.alerts.deliveries(DELIVERIES_SHOWN),
    )
    language = language_of(request)
    return render(request, alerts_page(shell(request, language.gettext("Alerts"), "alerts"), language, facts))


@router.get("/docs")
async def docs(request: Request) -> Response:
    """The REST interface, readable and to be tried."""
    title = language_of(request).gettext("API")
    return render(request, DocsPage(shell(request, title, "docs"), "/openapi.json"))


async def _overview_facts(deck: Deck, window: str, fleet: str, now: float) -> OverviewFacts:
    seconds = parse_window(window)
    known = deck.engines.statuses()
    if fleet and fleet not in {status.fleet for status in known}:
        raise no_fleet(fleet)
    wanted = fleet or None
    headline, origin, before, alerts, numbers = await asyncio.gather(
        deck.charts.headline(seconds, now, wanted),
        deck.charts.token_origin(seconds, now, wanted),
        deck.charts.token_origin(seconds, now - seconds, wanted),
        deck.alerts.alerts(wanted),
        asyncio.gather(*(deck.charts.latest(status.name, now) for status in known)),
    )
    by_engine = {status.name: number for status, number in zip(known, numbers, strict=True)}
    return OverviewFacts(window, fleet, headline, origin, before, known, by_engine, alerts, deck.loops.faults)
