"""Where the door stands in the deck: everything below /v1, whatever the method."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.routing import Route
from starlette.types import Receive, Scope, Send


class DoorRoute:
    """Hands the exchange to the deck's door as it is: no request object, no response object between."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass through."""
        await scope["app"].state.deck.door(scope, receive, send)


#: Only an endpoint that is an object, not a function, stays a plain ASGI application.
router = APIRouter(routes=[Route("/v1/{path:path}", endpoint=DoorRoute(), include_in_schema=False)])
