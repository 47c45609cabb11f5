"""Routes of the planner's page: the form filled from what runs here, and what comes of it."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from app.derive.strict_json import without_mark
from app.errors import InvalidInput, NotFound
from app.planner.wish import NAMES
from app.profiles.check import Draft
from app.services.planning import FleetModel
from app.web.api.plan import LONGEST_TEXT
from app.web.deps import DeckDep
from app.web.draft_plan import DraftPlanFacts, draft_plan_page, usual_session
from app.web.finding_words import told_error
from app.web.i18n import Gettext
from app.web.plan_form import FIRST
from app.web.planner_page import HREF, PlannerFacts, planner_page
from app.web.render import language_of, render, shell

if TYPE_CHECKING:
    from app.deck import Deck

router = APIRouter(include_in_schema=False)


@router.get(HREF)
async def planner(
    request: Request,
    deck: DeckDep,
    fleet: str = "",
    profile: str = "",
    version: Annotated[int | None, Query(ge=1)] = None,
) -> Response:
    """The form, filled from a profile version or from a fleet as it runs, and its plan."""
    _ = language_of(request).gettext
    found = await _found(deck, fleet, profile, version)
    if found is None:
        return _answer(request, PlannerFacts("", FIRST))
    asked = {**FIRST, **found.asked}
    if found.files is None:
        why = "" if found.why_not is None else told_error(found.why_not, _)
        return _answer(request, PlannerFacts("", asked, origin=f"{_origin(found, _)} {why}"))
    config = json.dumps(found.files.config, ensure_ascii=False, indent=2)
    is_running = not profile
    return _answer(request, await _planned(deck, config, asked, _origin(found, _), found if is_running else None))


@router.post(HREF)
async def plan(request: Request, deck: DeckDep) -> Response:
    """What was typed, planned; nothing is kept."""
    form = await request.form(max_part_size=4 * LONGEST_TEXT)
    asked = {name: value for name, value in form.items() if name in NAMES and isinstance(value, str) and value.strip()}
    config = form.get("config", "")
    text = config if isinstance(config, str) else ""
    if not text.strip():
        return _answer(request, PlannerFacts(text, asked))
    return _answer(request, await _planned(deck, text, asked))


@router.post(f"{HREF}/draft")
async def draft_plan(request: Request, deck: DeckDep) -> Response:
    """What a profile buys as it is typed: a part of the editor's page."""
    language = language_of(request)
    form = await request.form(max_part_size=LONGEST_TEXT)
    texts = {name: without_mark(value) for name, value in form.items() if isinstance(value, str)}
    page = draft_plan_page(shell(request, language.gettext("Profiles")), language, await _draft_facts(deck, texts))
    return render(request, page)


async def _draft_facts(deck: Deck, texts: Mapping[str, str]) -> DraftPlanFacts:
    draft = Draft(texts.get("kv_transfer_config", ""), texts.get("flags", ""))
    try:
        found = await deck.planning.of_draft(draft, texts.get("fleet") or None)
        asked = found.asked | {"session_tokens": texts.get("session_tokens") or usual_session(found.asked)}
        return DraftPlanFacts(found, await deck.planning.of_running(found, asked, time.time()))
    except (InvalidInput, NotFound) as error:
        return DraftPlanFacts(fault=error)


async def _found(deck: Deck, fleet: str, profile: str, version: int | None) -> FleetModel | None:
    if profile:
        return await deck.planning.of_profile(profile, version)
    try:
        return await deck.planning.fleet_model(fleet or None)
    except NotFound:
        if fleet:
            raise
        return None


async def _planned(
    deck: Deck, config: str, asked: dict[str, Any], origin: str = "", running: FleetModel | None = None
) -> PlannerFacts:
    try:
        if len(config) > LONGEST_TEXT:
            raise InvalidInput("This is too long to be a config.json.", path="config")
        if running is not None:
            plan = await deck.planning.of_running(running, asked, time.time())
        else:
            plan = await deck.planning.plan(asked, config, None)
    except InvalidInput as error:
        return PlannerFacts(config, asked, fault=error, origin=origin)
    return PlannerFacts(config, asked, plan, origin=origin)


def _answer(request: Request, facts: PlannerFacts) -> Response:
    language = language_of(request)
    return render(request, planner_page(shell(request, language.gettext("Planner"), "planner"), language, facts))


def _origin(found: FleetModel, _: Gettext) -> str:
    names = {"fleet": found.fleet, "profile": found.profile, "version": found.version}
    return _("Filled from fleet %(fleet)s with profile %(profile)s v%(version)s.") % names
