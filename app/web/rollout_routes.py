"""Routes of the rollouts' pages."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from app.web.deps import DeckDep, Id
from app.web.render import language_of, render, shell
from app.web.rollout_page import HREF, ClientsNow, rollout_page, rollouts_page

router = APIRouter(include_in_schema=False)


@router.get(HREF)
async def rollouts(request: Request, deck: DeckDep) -> Response:
    """Every rollout, newest first."""
    language = language_of(request)
    page = rollouts_page(shell(request, language.gettext("Rollouts"), "rollouts"), language, await deck.rollouts.list())
    return render(request, page)


@router.get(HREF + "/{rollout_id}")
async def rollout(request: Request, deck: DeckDep, rollout_id: Id) -> Response:
    """One rollout: engines as rows, steps as columns, what clients feel, the log."""
    language = language_of(request)
    view = await deck.rollouts.get(rollout_id)
    clients = ClientsNow(
        in_flight=sum(turn.in_flight for turn in view.engines),
        waiting=deck.door.waiting,
        failed=await deck.rollouts.failed_requests(rollout_id),
    )
    title = language.gettext("Rollout %(number)s") % {"number": rollout_id}
    page = rollout_page(shell(request, title, "rollouts"), language, view, await deck.rollouts.log(rollout_id), clients)
    return render(request, page)
