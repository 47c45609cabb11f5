"""Page objects -> HTML: one Jinja environment per language, whole pages or the block htmx asked for."""

from __future__ import annotations

import re
import time
from dataclasses import fields
from functools import cache
from typing import Any

from fastapi import Request
from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template, select_autoescape
from markupsafe import Markup
from starlette.responses import HTMLResponse

from app.config import PROJECT_ROOT
from app.errors import TierdeckError
from app.web import formats, i18n
from app.web.assets import static_url
from app.web.blocks import Choice, NavItem, Shell
from app.web.contexts import ErrorPage, Page
from app.web.finding_words import told_error
from app.web.formats import Quantity
from app.web.i18n import Language

TEMPLATE_DIR = PROJECT_ROOT / "templates"
THEME_COOKIE = "tierdeck_theme"
HEADERS = {"cache-control": "private, no-cache", "vary": "HX-Request, HX-Target, Cookie, Accept-Language"}


def render(request: Request, page: Page, status: int = 200) -> HTMLResponse:
    """The page, or only the block that htmx wants to replace."""
    template = environments()[page.shell.language].get_template(page.template)
    return HTMLResponse(_html(template, page, _wanted_block(request, template)), status, HEADERS)


def context_of(page: Page) -> dict[str, Any]:
    """A template's names: the fields of the page object."""
    return {field.name: getattr(page, field.name) for field in fields(page)}


@cache
def environments() -> dict[str, Environment]:
    """An environment for each language."""
    return {code: _environment(language) for code, language in i18n.languages().items()}


def language_of(request: Request) -> Language:
    """The language to answer in."""
    return i18n.choose(request.cookies.get(i18n.COOKIE_NAME), request.headers.get("accept-language", ""))


def shell(request: Request, title: str, current: str = "", *, is_signed_in: bool = True) -> Shell:
    """What surrounds a page: navigation with `current` marked, language, theme."""
    language = language_of(request)
    theme = request.cookies.get(THEME_COOKIE, "system")
    query = f"?{request.url.query}" if request.url.query else ""
    return Shell(
        title=title,
        language=language.code,
        language_choices=tuple(
            Choice(code, name, is_current=code == language.code) for code, name in i18n.NAMES.items()
        ),
        theme=theme if theme in {"light", "dark"} else "system",
        theme_choices=_theme_choices(language, theme),
        script_messages=language.script_messages,
        address=f"{request.url.path}{query}",
        now=time.time(),
        nav=_navigation(language, current) if is_signed_in else (),
        is_signed_in=is_signed_in,
    )


def render_error(request: Request, error: TierdeckError) -> HTMLResponse:
    """An error as a page that helps."""
    language = language_of(request)
    heading, advice = _error_words(language, error.status)
    page = ErrorPage(
        shell=shell(request, heading, is_signed_in=error.status not in {401, 403}),
        status=error.status,
        heading=heading,
        sentence=told_error(error, language.gettext),
        advice=advice,
    )
    return render(request, page, error.status)


def _html(template: Template, page: Page, block: str | None) -> str:
    context = context_of(page)
    if block is None:
        return template.render(context)
    blocks = (block, *page.refreshed_with.get(block, ()))
    return "".join("".join(template.blocks[name](template.new_context(context))) for name in blocks)


def _wanted_block(request: Request, template: Template) -> str | None:
    if "hx-request" not in request.headers or "hx-history-restore-request" in request.headers:
        return None
    block = request.headers.get("hx-target", "").replace("-", "_")
    return block if block in template.blocks else None


def _environment(language: Language) -> Environment:
    environment = Environment(
        loader=FileSystemLoader(TEMPLATE_DIR),
        autoescape=select_autoescape(),
        undefined=StrictUndefined,
        extensions=["jinja2.ext.i18n"],
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.install_gettext_callables(language.gettext, language.ngettext, newstyle=True)  # type: ignore[attr-defined]
    environment.globals.update(static=static_url, html_lang=language.html_lang)
    environment.filters.update(
        quantity=quantity_html,
        count=formats.count,
        share=formats.share,
        size=formats.size,
        duration=formats.duration,
        breakable=breakable_html,
        clock=clock_html,
        ago=lambda at, now: time_html(at, now, language.code),
    )
    environment.globals["ui"] = environment.get_template("parts.html").module
    return environment


def quantity_html(quantity: Quantity) -> Markup:
    """A number with its unit lighter and the exact value in the title."""
    unit = Markup('<span class="unit">{}</span>').format(quantity.unit) if quantity.unit else ""
    gap = " " if quantity.unit else ""
    return Markup('<span class="num" title="{}">{}{}{}</span>').format(quantity.exact, quantity.text, gap, unit)


def breakable_html(name: str) -> Markup:
    """A long dotted name that may be broken after its dots and underscores."""
    return Markup("<wbr>").join(re.split(r"(?<=[._])", name))


def time_html(at: float | None, now: float, locale: str) -> Markup:
    """A time, relative; the script in the page keeps it true and puts the viewer's local time in the title."""
    if at is None:
        return Markup('<span class="num">{}</span>').format(formats.MISSING)
    stamp = formats.iso(at)
    return Markup('<time datetime="{}" title="{}" data-relative>{}</time>').format(
        stamp, stamp, formats.relative(at, now, locale)
    )


def clock_html(at: float) -> Markup:
    """A time of day; the script in the page tells it in the viewer's zone, with the date where it is another one."""
    stamp = formats.iso(at)
    return Markup('<time datetime="{}" data-clock>{}</time>').format(stamp, stamp)


def _navigation(language: Language, current: str) -> tuple[NavItem, ...]:
    _ = language.gettext
    items = (
        (_("Overview"), "/", "overview"),
        (_("Requests"), "/requests", "requests"),
        (_("Profiles"), "/profiles", "profiles"),
        (_("Planner"), "/planner", "planner"),
        (_("Alerts"), "/alerts", "alerts"),
    )
    return tuple(NavItem(label, href, icon, icon == current) for label, href, icon in items)


def _theme_choices(language: Language, theme: str) -> tuple[Choice, ...]:
    _ = language.gettext
    labels = (("system", _("System")), ("light", _("Light")), ("dark", _("Dark")))
    return tuple(Choice(value, label, is_current=value == theme) for value, label in labels)


def _error_words(language: Language, status: int) -> tuple[str, str]:
    _ = language.gettext
    if status == 404:
        return _("Nothing here"), _("The address may be old or mistyped. The overview leads everywhere.")
    if status == 429:
        return _("Too many attempts"), _("Wait a moment, then sign in with the token printed when the deck started.")
    if status >= 500:
        return _("The deck made an error"), _("Engines and requests go on. Try again, or read the deck's log.")
    return _("This cannot be done"), _("Go back, or start from the overview.")
