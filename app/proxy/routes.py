"""Where the door stands in the deck: everything below /v1, whatever the method, and what vLLM has beside it."""

from __future__ import annotations

from fastapi import FastAPI
from starlette.types import ASGIApp, Receive, Scope, Send

BESIDE_V1 = frozenset({"/tokenize", "/detokenize"})


def is_door(path: str) -> bool:
    """True for the paths that are carried to an engine."""
    return path.startswith("/v1/") or path in BESIDE_V1


class DoorFirst(FastAPI):
    """An application that hands the door's requests to `front` as they are.

    No middleware, request object, router or response object of the framework between: they would cost as much
    as half of what the door itself does.
    """

    front: ASGIApp

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on."""
        if scope["type"] == "http" and is_door(scope["path"]):
            scope["app"] = self
            await self.front(scope, receive, send)
        else:
            await super().__call__(scope, receive, send)
