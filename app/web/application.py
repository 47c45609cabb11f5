"""The web layer put together: routes, error pages, sign-in, static files."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from fastapi import Depends, FastAPI

from app.deck import Deck
from app.proxy.routes import DoorFirst
from app.web import own, pages, sse
from app.web.api import alerts, data, engines, fleets, plan, profiles, requests, rollouts, sessions
from app.web.assets import VersionedFiles
from app.web.auth import Guard
from app.web.deps import storable_texts
from app.web.errors import install_error_handlers

Lifespan = Callable[[FastAPI], AbstractAsyncContextManager[None]]


def build_application(deck: Deck, lifespan: Lifespan) -> FastAPI:
    """The ASGI application over an assembled deck."""
    application = DoorFirst(title="Tierdeck", version="1", lifespan=lifespan, docs_url=None, redoc_url=None)
    application.state.deck = deck
    application.mount("/static", VersionedFiles(), name="static")
    for module in (own, pages, sse, fleets, engines, data, profiles, plan, rollouts, alerts, requests, sessions):
        application.include_router(module.router, dependencies=[Depends(storable_texts)])
    application.front = Guard(deck.door)
    application.add_middleware(Guard)
    install_error_handlers(application)
    return application
