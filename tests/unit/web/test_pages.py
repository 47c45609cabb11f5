"""Pages as they come out: their names are documented, their states tell the truth."""

from __future__ import annotations

import ast
import inspect
import json
import re
from pathlib import Path

import httpx
import pytest
from fastapi.routing import APIRoute
from jinja2 import meta
from sqlalchemy import update

from app.config import PROJECT_ROOT
from app.errors import NotFound
from app.services.fleets import Fleets, NewEngine
from app.store.models import EngineRow
from app.web import contexts, pages
from app.web.contexts import Page
from app.web.render import TEMPLATE_DIR, context_of, environments
from tests.fakes import fake_deck
from tests.unit.web.conftest import BEARER, HTML, running

PAGES = [
    page for _, page in inspect.getmembers(contexts, inspect.isclass) if issubclass(page, Page) and page is not Page
]
ADDRESSES = (
    "/",
    "/engines/main-1",
    "/fleets",
    "/profiles",
    "/profiles/agents",
    "/new-profile",
    "/planner",
    "/requests",
    "/rollouts",
    "/alerts",
    "/docs",
)
FIELDS_OF_EVERY_PAGE = {"shell"}


def names_used_by(template: str) -> set[str]:
    """Every free name of a template and of what it extends or includes."""
    environment = environments()["en"]
    source = (TEMPLATE_DIR / template).read_text()
    tree = environment.parse(source)
    names = meta.find_undeclared_variables(tree)
    for parent in meta.find_referenced_templates(tree):
        names |= names_used_by(str(parent))
    return names - set(environment.globals)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.__name__)
def test_template_uses_exactly_the_documented_context(page: type[Page]) -> None:
    """A name that is not a field would be an error on the page; a field nobody shows is dead."""
    fields = {name for base in page.__mro__ for name in getattr(base, "__annotations__", {})}
    fields -= {"template", "refreshed_with"}
    assert names_used_by(page.template) | FIELDS_OF_EVERY_PAGE == fields


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.__name__)
def test_every_page_says_what_it_is(page: type[Page]) -> None:
    """The dataclass is the page's documentation."""
    assert page.__doc__
    assert not page.__doc__.startswith(page.__name__)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.__name__)
def test_refreshed_blocks_exist(page: type[Page]) -> None:
    """What htmx asks for, and what comes along, are blocks of the template."""
    blocks = environments()["en"].get_template(page.template).blocks
    for block, along in page.refreshed_with.items():
        assert {block, *along} <= blocks.keys()


def test_nothing_is_refreshed_twice_for_one_event() -> None:
    """`deck:changed` gathers these events: what follows it does not follow them one by one as well."""
    gathered = {"sse:engine", "sse:fleet", "sse:rollout"}
    triggers = [
        found for path in TEMPLATE_DIR.iterdir() for found in re.findall(r'hx-trigger="([^"]+)"', path.read_text())
    ]
    events = [{one.split()[0] for one in found.split(", ")} for found in triggers]
    assert sum("deck:changed" in told for told in events) >= 4
    assert [told for told in events if "deck:changed" in told and told & gathered] == []


def test_no_page_is_undocumented() -> None:
    """Each address that answers with a page is named by the dataclass it is rendered from."""
    told = " ".join(page.__doc__ or "" for page in PAGES)
    addresses = {route.path for route in pages.router.routes if isinstance(route, APIRoute) and "GET" in route.methods}
    assert len(addresses) >= 8
    assert sorted(address for address in addresses if not re.search(rf"(^| ){re.escape(address)}[: ]", told)) == []


def test_every_template_belongs_to_a_page() -> None:
    """No template lies around unused."""
    assert {path.name for path in TEMPLATE_DIR.iterdir()} == {page.template for page in PAGES} | {
        "base.html",
        "parts.html",
    }


def test_templates_do_not_compute() -> None:
    """Loops, conditions and filters only: no arithmetic beyond a counter, no set, no scripts, no inline styles."""
    for path in TEMPLATE_DIR.iterdir():
        text = path.read_text()
        assert "{% set" not in text, path.name
        assert not re.search(r"\sstyle=|\son[a-z]+=", text), path.name
        assert not re.search(r"<script(?![^>]*(src=|type=\"application/json\"))", text), path.name
        assert "http://" not in text, path.name
        assert "cdn" not in text.lower(), path.name


@pytest.mark.parametrize("scenario", fake_deck.SCENARIOS)
async def test_every_page_renders_in_every_state(tmp_path: Path, scenario: str) -> None:
    """No state of the deck is an error, and none shows NaN, None or a placeholder."""
    async with running(fake_deck.build(tmp_path, scenario)) as client:
        for address in ADDRESSES:
            if scenario == "none" and address in {"/engines/main-1", "/profiles/agents"}:
                continue
            for language in ("en", "zh-CN"):
                answer = await client.get(address, headers=BEARER | HTML | {"accept-language": language})
                assert answer.status_code == 200, (address, answer.text[-500:])
                visible = re.sub(r"<script.*?</script>|<[^>]+>", " ", answer.text, flags=re.DOTALL)
                assert not re.search(r"\bNaN\b|\bNone\b|\bnull\b|%\(", visible), address


async def test_a_fleet_that_is_deleted_while_it_is_looked_at_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page is refreshed at just that moment, because a deletion is told: it is no page that does not exist."""

    async def deleted(_: Fleets, name: str, version_id: int | None = None) -> NewEngine:
        raise NotFound("There is no fleet %(name)s.", path="fleet", values={"name": name})

    monkeypatch.setattr(Fleets, "new_engine", deleted)
    async with running(fake_deck.build(tmp_path, "busy")) as client:
        answer = await client.get("/fleets", headers=BEARER | HTML)
    assert answer.status_code == 200
    assert "fleet-main" not in answer.text
    assert "Add the first one" in answer.text


async def test_three_kinds_of_nothing_look_different(tmp_path: Path) -> None:
    """No requests yet, idle and no data are not the same, and none of them is 0 % or 100 %."""
    said = {}
    for scenario in ("empty", "idle", "down"):
        async with running(fake_deck.build(tmp_path / scenario, scenario)) as client:
            text = (await client.get("/", headers=BEARER | HTML)).text
        vitals = text[text.index('id="vitals"') : text.index('class="charts"')]
        said[scenario] = re.search(r'class="answer">([^<]*)<', vitals).group(1)  # type: ignore[union-attr]
        assert not re.search(r">(0|100) <span class=\"unit\">%", vitals), scenario
    assert said == {
        "empty": "Ready. No requests yet.",
        "idle": "Idle: no requests in this window.",
        "down": "No engine serves requests.",
    }


async def test_a_fleet_that_is_down_is_told_with_its_next_start(tmp_path: Path) -> None:
    """It runs no version, and has one all the same."""
    application = fake_deck.build(tmp_path, "down")
    async with running(application) as client:
        async with application.state.deck.database.begin() as session:
            await session.execute(update(EngineRow).values(running_version_id=None))
        page = (await client.get("/profiles/agents", headers=BEARER | HTML)).text
    assert "does not run; its next start uses agents v3" in page


@pytest.mark.parametrize(("scenario", "window"), [("empty", "5m"), ("busy", "1h"), ("idle", "1h")])
async def test_a_new_deck_begins_with_the_short_window(tmp_path: Path, scenario: str, window: str) -> None:
    """In its first minutes an hour's chart would be empty; whoever picks a window gets that one."""
    async with running(fake_deck.build(tmp_path, scenario)) as client:
        for address, shown in (("/", window), ("/?window=6h", "6h")):
            text = (await client.get(address, headers=BEARER | HTML)).text
            assert f'data-window="{shown}" aria-current="true"' in text
            assert f'class="charts" data-window="{shown}"' in text


async def test_fragment_is_what_htmx_asked_for(tmp_path: Path) -> None:
    """The block and what comes along, without the page around them."""
    async with running(fake_deck.build(tmp_path)) as client:
        asked = {"hx-request": "true", "hx-target": "vitals"}
        text = (await client.get("/?window=1h", headers=BEARER | HTML | asked)).text
        assert text.lstrip().startswith('<div id="vitals"')
        assert 'id="engines-table"' in text
        assert "<html" not in text
        other = (await client.get("/", headers=BEARER | HTML | {"hx-request": "true", "hx-target": "nothing"})).text
        assert "<html" in other


async def test_unknown_things_are_pages_that_help(tmp_path: Path) -> None:
    """An unknown engine, fleet, version or window says so and leads on."""
    async with running(fake_deck.build(tmp_path)) as client:
        for address, status, said in (
            ("/engines/no-such", 404, "no engine named"),
            ("/?fleet=no-such", 404, "no fleet named"),
            ("/profiles/agents?version=99", 404, "no version 99"),
            ("/?window=sometimes", 422, "is not a window"),
            ("/nothing", 404, "There is nothing at /nothing"),
        ):
            answer = await client.get(address, headers=BEARER | HTML)
            assert answer.status_code == status, address
            assert said in answer.text
            assert 'href="/"' in answer.text


async def test_text_from_outside_is_never_markup(tmp_path: Path) -> None:
    """Names, comments and causes are shown as they are, not run."""
    evil = "<img src=x onerror=alert(1)>"
    application = fake_deck.build(tmp_path)
    async with running(application) as client:
        deck = application.state.deck
        deck.engines.set("main-1", cause=evil)
        body = {"flags": "{}", "comment": evil}
        assert (await client.post("/api/v1/profiles/agents/versions", json=body, headers=BEARER)).status_code == 201
        for address in ("/engines/main-1", "/profiles/agents", "/profiles"):
            text = (await client.get(address, headers=BEARER | HTML)).text
            assert evil not in text
            assert "&lt;img src=x" in text


async def test_webhook_secrets_are_not_in_the_page(tmp_path: Path) -> None:
    """Address and secret go in and never come out."""
    async with running(fake_deck.build(tmp_path)) as client:
        hook = {"name": "ops", "channel": "generic", "url": "https://example.org/hook/TOPSECRET", "secret": "HUSH"}
        assert (await client.post("/api/v1/webhooks", json=hook, headers=BEARER)).status_code == 201
        text = (await client.get("/alerts", headers=BEARER | HTML)).text
        assert "ops" in text
        assert "TOPSECRET" not in text
        assert "HUSH" not in text


async def test_a_firing_alert_stands_on_the_overview(tmp_path: Path) -> None:
    """Whoever opens the deck sees it under the sentence; with none firing there is no such list."""
    async with running(fake_deck.build(tmp_path, "pressed")) as client:
        page = (await client.get("/", headers=BEARER | HTML)).text
        assert "Host hits serve only 0.9 % of the input tokens" in page
    async with running(fake_deck.build(tmp_path / "calm", "idle")) as client:
        assert 'class="firing"' not in (await client.get("/", headers=BEARER | HTML)).text


async def test_static_files_may_be_kept_only_under_their_digest(tmp_path: Path) -> None:
    """A changed file has another address; the plain address is asked for again each time."""
    async with running(fake_deck.build(tmp_path)) as client:
        page = (await client.get("/login", headers=HTML)).text
        addresses = re.findall(r'(?:href|src)="(/static/[^"#]+)', page)
        assert len(addresses) >= 5
        for address in addresses:
            answer = await client.get(address)
            assert answer.status_code == 200, address
            assert "immutable" in answer.headers["cache-control"]
        assert (await client.get("/static/css/deck.css")).headers["cache-control"] == "no-cache"
        assert (await client.get("/static/../app/config.py")).status_code in {303, 401, 404}


def test_vendored_files_have_version_and_licence() -> None:
    """Anyone can see what is shipped and under which terms."""
    for directory in (PROJECT_ROOT / "static" / "vendor").iterdir():
        if directory.is_dir():
            assert (directory / "LICENSE").stat().st_size > 100
            assert directory.name.endswith((directory / "VERSION").read_text().strip())


def test_context_is_the_page_s_fields() -> None:
    """Nothing reaches a template beside the dataclass."""
    page = contexts.DocsPage(shell=None, schema_href="/x")  # type: ignore[arg-type]
    assert context_of(page) == {"shell": None, "schema_href": "/x"}


def test_strings_of_the_page_are_json() -> None:
    """The scripts' words stand in the page as data that cannot end the element."""
    from app.web.i18n import languages

    for language in languages().values():
        assert isinstance(json.loads(language.script_messages), dict)
        assert "<" not in language.script_messages


def test_page_modules_hold_no_html() -> None:
    """Markup is in templates; two helpers in app/web/render.py aside."""
    for path in (PROJECT_ROOT / "app" / "web").glob("*.py"):
        if path.name in {"render.py"}:
            continue
        constants = [node.value for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Constant)]
        assert not [text for text in constants if isinstance(text, str) and re.search(r"</|<(p|div|span|a)\b", text)], (
            path
        )


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({}, 200),
        ({"strategy": "in_place", "drain_timeout_seconds": "12"}, 200),
        ({"drain_timeout_seconds": "soon"}, 422),
        ({"drain_timeout_seconds": "nan"}, 422),
        ({"strategy": "sideways"}, 422),
        ({"fleet": "nobody"}, 404),
        ({"version": "99"}, 404),
    ],
)
async def test_a_rollout_is_told_before_it_is_done(
    client: httpx.AsyncClient, fields: dict[str, str], status: int
) -> None:
    """Which engines, what changes, how long; a field that is wrong is told, and nothing starts."""
    body = {"fleet": "main", "version": "2", **fields}
    headers = {**BEARER, "hx-request": "true", "hx-target": "rollout-preview"}
    answer = await client.post("/profiles/agents/preview", data=body, headers=headers)
    assert answer.status_code == status
    if status == 200:
        assert "<html" not in answer.text
        assert all(part in answer.text for part in ("main-1", "main-2", "65536", "262144"))
