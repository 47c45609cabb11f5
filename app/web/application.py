"""The web layer put together: routes, error pages, sign-in, static files."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from fastapi import FastAPI

from app.deck import Deck
from app.proxy.routes import router as door_router
from app.web import own, pages, sse
from app.web.api import alerts, data, engines, plan, profiles, rollouts
from app.web.assets import VersionedFiles
from app.web.auth import install_sign_in
from app.web.errors import install_error_handlers

Lifespan = Callable[[FastAPI], AbstractAsyncContextManager[None]]


def build_application(deck: Deck, lifespan: Lifespan) -> FastAPI:
    """The ASGI application over an assembled deck."""
    application = FastAPI(title="Tierdeck", version="1", lifespan=lifespan, docs_url=None, redoc_url=None)
    application.state.deck = deck
    application.mount("/static", VersionedFiles(), name="static")
    application.include_router(door_router)  # first: not matched against fifty other routes
    for module in (own, pages, sse, engines, data, profiles, plan, rollouts, alerts):
        application.include_router(module.router)
    install_sign_in(application)
    install_error_handlers(application)
    return application
