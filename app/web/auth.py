"""Who gets in: one middleware in front of every route. What is not named as open needs a sign-in.

Three more doors are watched here: a request under a foreign host name (DNS rebinding), a change
asked for by another site (CSRF), and a web page of another site using the engines.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from enum import Enum
from functools import lru_cache
from urllib.parse import quote, urlsplit

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.config import Settings
from app.errors import Forbidden, TierdeckError, Unauthorized
from app.proxy.routes import is_door
from app.services.signin import COOKIE_NAME, SignIn
from app.web.deps import get_deck
from app.web.errors import error_response, is_page
from app.web.headers import SECURITY_HEADERS

OPEN_PATHS = frozenset({"/healthz", "/readyz", "/metrics", "/login", "/preferences", "/favicon.ico"})
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
LOOPBACK_NAMES = frozenset({"127.0.0.1", "localhost", "::1"})


class Access(Enum):
    """What a path asks of its caller."""

    OPEN = "open"
    DOOR = "door"
    SIGNED_IN = "signed_in"


class Identity(Enum):
    """What a caller showed."""

    NOBODY = "nobody"
    TOKEN = "token"  # noqa: S105 - a kind of proof, not a secret
    COOKIE = "cookie"


def access_of(path: str) -> Access:
    """The rule for a path; everything that is not listed needs a sign-in."""
    if path in OPEN_PATHS or path.startswith("/static/"):
        return Access.OPEN
    return Access.DOOR if is_door(path) else Access.SIGNED_IN


@lru_cache(maxsize=64)
def is_loopback_host(host: str) -> bool:
    """True when a Host header names this machine."""
    return (urlsplit(f"//{host}").hostname or "") in LOOPBACK_NAMES


def is_same_origin(headers: Mapping[str, str]) -> bool:
    """True when a browser says that our own page asked. Absent headers prove nothing."""
    site = headers.get("sec-fetch-site")
    if site is not None:
        return site in {"same-origin", "none"}
    origin = headers.get("origin")
    return origin is not None and urlsplit(origin).netloc == headers.get("host", "")


def comes_from_foreign_page(headers: Mapping[str, str]) -> bool:
    """True when a page that is not of this machine makes its reader's browser call the door."""
    origin = headers.get("origin")
    return origin is not None and (urlsplit(origin).hostname or "") not in LOOPBACK_NAMES


def check_access(
    settings: Settings, access: Access, identity: Identity, method: str, headers: Mapping[str, str]
) -> None:
    """Raise Unauthorized or Forbidden unless the request may go on."""
    if settings.is_loopback and not is_loopback_host(headers.get("host", "")):
        raise Forbidden("The deck answers to this machine's own names only.", code="host_not_allowed")
    if access is Access.DOOR:
        _check_door(settings, identity, headers)
    elif access is Access.SIGNED_IN:
        _check_signed_in(identity, method, headers)


def _check_door(settings: Settings, identity: Identity, headers: Mapping[str, str]) -> None:
    if identity is Identity.TOKEN:
        return
    if not settings.is_loopback:
        raise Unauthorized("Send the deck's token: 'Authorization: Bearer ...'.")
    if comes_from_foreign_page(headers):
        raise Forbidden("A page of another site may not use the engines without a token.", code="foreign_origin")


def _check_signed_in(identity: Identity, method: str, headers: Mapping[str, str]) -> None:
    if identity is Identity.NOBODY:
        raise Unauthorized("Sign in, or send the deck's token: 'Authorization: Bearer ...'.")
    if identity is Identity.COOKIE and method not in SAFE_METHODS and not is_same_origin(headers):
        raise Forbidden("This change was not asked for by a page of the deck.", code="cross_site")


class Guard:
    """The middleware. Adds the security headers too, to everything but the door's answers."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let the request through, or answer it."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":  # there are no WebSockets
            await send({"type": "websocket.close", "code": 1008})
            return
        request = Request(scope)
        refusal = self._refusal(request)
        target = self._app if refusal is None else refusal
        await target(scope, receive, send if access_of(scope["path"]) is Access.DOOR else _secured(send))

    def _refusal(self, request: Request) -> Response | None:
        access = access_of(request.scope["path"])
        deck = get_deck(request)
        try:
            identity = _identify(deck.signin, deck.settings, request, access)
            check_access(deck.settings, access, identity, request.method, request.headers)
        except Unauthorized as error:
            return _sign_in_first(request, error)
        except TierdeckError as error:
            return error_response(request, error)
        return None


def _identify(signin: SignIn, settings: Settings, request: Request, access: Access) -> Identity:
    """Who asks. A wrong token counts as an attempt, but not at the open door: clients send placeholders."""
    if access is Access.OPEN:
        return Identity.NOBODY
    if token := _presented_token(request):
        if access is Access.DOOR and settings.is_loopback:
            known = signin.check(token)
        else:
            known = signin.attempt(token, request.client.host if request.client else "", time.time())
        return Identity.TOKEN if known else Identity.NOBODY
    cookie = request.cookies.get(COOKIE_NAME, "")
    if cookie and access is Access.SIGNED_IN and signin.read_cookie(cookie, time.time()):
        return Identity.COOKIE
    return Identity.NOBODY


def _presented_token(request: Request) -> str:
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        return token.strip()
    return request.headers.get("x-api-key", "") if is_door(request.scope["path"]) else ""


def _sign_in_first(request: Request, error: Unauthorized) -> Response:
    """Pages lead to the sign-in and back; programs get an error."""
    if not is_page(request):
        return error_response(request, error)
    if "hx-request" in request.headers:
        current = urlsplit(request.headers.get("hx-current-url", "/"))
        back = f"{current.path}?{current.query}" if current.query else current.path
        return Response(status_code=401, headers={"hx-redirect": f"/login?next={quote(back)}"})
    back = f"{request.url.path}?{request.url.query}" if request.url.query else request.url.path
    return RedirectResponse(f"/login?next={quote(back)}", status_code=303)


def _secured(send: Send) -> Send:
    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in SECURITY_HEADERS.items():
                headers.setdefault(name, value)
        await send(message)

    return send_with_headers
