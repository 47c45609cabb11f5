"""Signing in and out, and what the reader prefers: language and theme."""

from __future__ import annotations

import time
from typing import Annotated

from fastapi import APIRouter, Form, Request
from starlette.responses import RedirectResponse, Response

from app.config import Settings
from app.errors import Forbidden, TooManyAttempts
from app.services.signin import COOKIE_NAME, COOKIE_SECONDS, admin_token_path
from app.web import i18n
from app.web.auth import is_same_origin
from app.web.contexts import SignInPage
from app.web.deps import DeckDep
from app.web.render import THEME_COOKIE, language_of, render, shell

router = APIRouter(include_in_schema=False)

PREFERENCE_SECONDS = 365 * 24 * 3600


@router.get("/login")
async def sign_in_page(request: Request, deck: DeckDep, next: str = "/") -> Response:
    """The form."""
    return _form(request, deck.settings, next)


@router.post("/login")
async def sign_in(
    request: Request, deck: DeckDep, token: Annotated[str, Form()] = "", next: Annotated[str, Form()] = "/"
) -> Response:
    """Check the token; lead back to where the reader came from."""
    _ = language_of(request).gettext
    _refuse_other_sites(request)
    address = request.client.host if request.client else ""
    try:
        is_right = deck.signin.attempt(token.strip(), address, time.time())
    except TooManyAttempts as error:
        wait = error.retry_after_seconds
        sentence = _("Too many wrong tokens. Try again in %(seconds)s s.") % {"seconds": wait}
        return _form(request, deck.settings, next, sentence, 429)
    if not is_right:
        return _form(request, deck.settings, next, _("This is not the deck's token."), 401)
    response = RedirectResponse(local_path(next), status_code=303)
    response.set_cookie(
        COOKIE_NAME,
        deck.signin.issue_cookie(time.time()),
        max_age=COOKIE_SECONDS,
        httponly=True,
        samesite="lax",
        secure=request.url.scheme == "https",
    )
    return response


@router.post("/logout")
async def sign_out() -> Response:
    """Forget the cookie in this browser."""
    response = RedirectResponse("/login", status_code=303)
    response.delete_cookie(COOKIE_NAME, httponly=True, samesite="lax")
    return response


@router.post("/preferences")
async def set_preferences(
    request: Request,
    language: Annotated[str, Form()] = "",
    theme: Annotated[str, Form()] = "",
    next: Annotated[str, Form()] = "/",
) -> Response:
    """Keep language and theme in cookies, then show the same page again."""
    response = RedirectResponse(local_path(next), status_code=303)
    if language in i18n.NAMES:
        response.set_cookie(i18n.COOKIE_NAME, language, max_age=PREFERENCE_SECONDS, samesite="lax")
    if theme in {"system", "light", "dark"}:
        response.set_cookie(THEME_COOKIE, theme, max_age=PREFERENCE_SECONDS, samesite="lax")
    return response


def local_path(address: str) -> str:
    """`address` if it is a path of this deck, else the overview: no way out to another site."""
    is_local = address.startswith("/") and not address.startswith(("//", "/\\"))
    return address if is_local and not any(character < " " for character in address) else "/"


def _refuse_other_sites(request: Request) -> None:
    """A browser tells where a form came from; programs send neither header and may go on."""
    told = "sec-fetch-site" in request.headers or "origin" in request.headers
    if told and not is_same_origin(request.headers):
        raise Forbidden("This sign-in was not sent by a page of the deck.", code="cross_site")


def _form(request: Request, settings: Settings, next: str, error: str = "", status: int = 200) -> Response:
    _ = language_of(request).gettext
    if settings.admin_token is not None:
        hint = _("The value of TIERDECK_ADMIN_TOKEN.")
    elif not settings.is_loopback:  # where files are is nobody's business out there
        hint = _("Printed when the deck started; “tierdeck token” prints it again.")
    else:
        hint = _("Printed when the deck started, and kept in %(file)s.") % {"file": admin_token_path(settings)}
    page = SignInPage(
        shell=shell(request, _("Sign in"), is_signed_in=False), next=local_path(next), token_hint=hint, error=error
    )
    return render(request, page, status)
