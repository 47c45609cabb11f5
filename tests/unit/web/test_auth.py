"""Who gets in, by which door, and who is turned away."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
from fastapi.routing import APIRoute
from starlette.routing import Mount

from app.config import Settings
from app.errors import Forbidden, Unauthorized
from app.web.auth import Access, Identity, access_of, check_access, is_same_origin
from tests.fakes import fake_deck
from tests.unit.web.conftest import BEARER, HTML, ORIGIN, sign_in

LOOPBACK = Settings(host="127.0.0.1")
OPEN_TO_THE_NET = Settings(host="0.0.0.0")
OURS = {"host": "127.0.0.1:8700"}

OPEN = {"/healthz", "/readyz", "/metrics", "/login", "/preferences"}


def test_every_other_route_needs_a_sign_in(tmp_path: Path) -> None:
    """A route that nobody thought of is closed."""
    application = fake_deck.build(tmp_path)
    for route in application.routes:
        path = getattr(route, "path", "")
        if isinstance(route, Mount) or path in OPEN:
            continue
        assert access_of(path) is Access.SIGNED_IN, path


@pytest.mark.parametrize(
    "path", ["/staticfoo", "/v1", "/login/", "/healthz/x", "//healthz", "/LOGIN", "/openapi.json", "/docs"]
)
def test_paths_that_look_open_are_not(path: str) -> None:
    """Only the exact paths are open."""
    assert access_of(path) is Access.SIGNED_IN


@pytest.mark.parametrize("path", ["/", "/alerts", "/profiles", "/docs", "/engines/main-1"])
async def test_pages_lead_to_the_sign_in_and_back(client: httpx.AsyncClient, path: str) -> None:
    """Nobody who signs in has to look for the page again."""
    answer = await client.get(f"{path}?window=6h", headers=HTML)
    assert answer.status_code == 303
    assert answer.headers["location"] == f"/login?next={path}%3Fwindow%3D6h"


@pytest.mark.parametrize("path", ["/api/v1/engines", "/events", "/openapi.json", "/api/v1/nothing"])
async def test_programs_get_an_error_they_can_read(client: httpx.AsyncClient, path: str) -> None:
    """401 with the one JSON shape, also for addresses that do not exist."""
    answer = await client.get(path, headers={"accept": "application/json"})
    assert answer.status_code == 401
    assert answer.json()["error"]["code"] == "unauthorized"
    assert answer.headers["www-authenticate"] == "Bearer"


async def test_bearer_token_opens_everything(client: httpx.AsyncClient) -> None:
    """Programs need no cookie."""
    assert (await client.get("/api/v1/engines", headers=BEARER)).status_code == 200
    assert (await client.get("/", headers=BEARER | HTML)).status_code == 200
    wrong = await client.get("/api/v1/engines", headers={"authorization": "Bearer no"})
    assert wrong.status_code == 401


async def test_sign_in_sets_a_cookie_that_scripts_cannot_read(client: httpx.AsyncClient) -> None:
    """HttpOnly and SameSite, thirty days."""
    answer = await client.post("/login", data={"token": fake_deck.TOKEN, "next": "/alerts"}, headers={"origin": ORIGIN})
    assert (answer.status_code, answer.headers["location"]) == (303, "/alerts")
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=lax" in cookie
    assert "Max-Age=2592000" in cookie
    assert fake_deck.TOKEN not in cookie
    assert (await client.get("/alerts", headers=HTML)).status_code == 200


async def test_wrong_token_stays_on_the_form(client: httpx.AsyncClient) -> None:
    """The sentence stands at the field; what was typed is not sent back."""
    answer = await client.post("/login", data={"token": "guess-4711"}, headers=HTML)
    assert answer.status_code == 401
    assert "This is not the deck" in answer.text
    assert "guess-4711" not in answer.text


@pytest.mark.parametrize(
    "address", ["https://evil.example", "//evil.example", "/\\evil.example", "javascript:alert(1)", "/a\nb"]
)
async def test_sign_in_leads_to_no_other_site(client: httpx.AsyncClient, address: str) -> None:
    """A link to the sign-in cannot be made to end elsewhere."""
    answer = await client.post("/login", data={"token": fake_deck.TOKEN, "next": address}, headers={"origin": ORIGIN})
    assert answer.headers["location"] == "/"


async def test_sign_out_forgets_the_cookie(client: httpx.AsyncClient) -> None:
    """After it, pages ask again."""
    await sign_in(client)
    await client.post("/logout", headers={"origin": ORIGIN})
    assert (await client.get("/", headers=HTML)).status_code == 303


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"origin": "https://evil.example"},
        {"origin": "http://127.0.0.1:9999"},
        {"origin": "null"},
        {"sec-fetch-site": "cross-site", "origin": ORIGIN},
        {"sec-fetch-site": "same-site"},
    ],
)
async def test_other_sites_cannot_act_with_a_cookie(client: httpx.AsyncClient, headers: dict[str, str]) -> None:
    """A page elsewhere, or one on another port of this machine, cannot stop an engine."""
    await sign_in(client)
    answer = await client.post("/api/v1/engines/main-1/stop", headers=headers)
    assert answer.status_code == 403
    assert answer.json()["error"]["code"] == "cross_site"


async def test_own_pages_act_with_a_cookie(client: httpx.AsyncClient) -> None:
    """And a bearer token needs no origin: browsers never send it by themselves."""
    await sign_in(client)
    ours = await client.post("/api/v1/engines/main-1/drain", headers={"sec-fetch-site": "same-origin"})
    assert ours.status_code == 202
    client.cookies.clear()
    assert (await client.post("/api/v1/engines/main-1/start", headers=BEARER)).status_code == 202


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8700", "127.0.0.1.evil.example", "10.0.0.5:8700", ""])
async def test_foreign_host_names_are_refused(client: httpx.AsyncClient, host: str) -> None:
    """A name that was rebound to this machine reaches nothing, not even the open paths."""
    for path in ("/healthz", "/", "/v1/models"):
        answer = await client.get(path, headers={"host": host})
        assert answer.status_code == 403, path


@pytest.mark.parametrize("host", ["127.0.0.1:8700", "localhost", "[::1]:8700", "LOCALHOST:1"])
def test_own_names_are_fine(host: str) -> None:
    """By any of this machine's own names."""
    check_access(LOOPBACK, Access.OPEN, Identity.NOBODY, "GET", {"host": host})


def test_host_names_are_free_where_the_deck_listens_to_the_net() -> None:
    """There everything but the open paths needs a token anyway."""
    check_access(OPEN_TO_THE_NET, Access.OPEN, Identity.NOBODY, "GET", {"host": "deck.example.org"})


def test_door_is_open_on_this_machine_alone() -> None:
    """A deck on the net asks for a token at /v1 too."""
    check_access(LOOPBACK, Access.DOOR, Identity.NOBODY, "POST", OURS)
    with pytest.raises(Unauthorized):
        check_access(OPEN_TO_THE_NET, Access.DOOR, Identity.NOBODY, "POST", {"host": "deck"})
    check_access(OPEN_TO_THE_NET, Access.DOOR, Identity.TOKEN, "POST", {"host": "deck"})


def test_foreign_pages_cannot_use_the_engines() -> None:
    """A web page elsewhere gets nothing through its reader's browser; one of this machine may."""
    with pytest.raises(Forbidden):
        check_access(LOOPBACK, Access.DOOR, Identity.NOBODY, "POST", OURS | {"origin": "https://evil.example"})
    check_access(LOOPBACK, Access.DOOR, Identity.NOBODY, "POST", OURS | {"origin": "http://localhost:3000"})


def test_absent_headers_prove_nothing() -> None:
    """Same origin is only what a browser says it is."""
    assert not is_same_origin({"host": "127.0.0.1:8700"})
    assert is_same_origin({"host": "127.0.0.1:8700", "origin": "http://127.0.0.1:8700"})
    assert is_same_origin({"host": "x", "sec-fetch-site": "none"})


async def test_every_answer_is_armoured(client: httpx.AsyncClient) -> None:
    """Pages, errors, static files and REST: no inline script, no framing, no sniffing."""
    for path in ("/login", "/", "/nothing", "/static/css/deck.css", "/api/v1/engines"):
        headers = (await client.get(path, headers=BEARER | HTML)).headers
        assert "'unsafe-inline'" not in headers["content-security-policy"], path
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert "referrer-policy" in headers


def test_documentation_of_the_framework_is_off(tmp_path: Path) -> None:
    """Its pages load scripts from elsewhere; ours does not."""
    paths = [route.path for route in fake_deck.build(tmp_path).routes if isinstance(route, APIRoute)]
    assert paths.count("/docs") == 1
    assert "/redoc" not in paths
