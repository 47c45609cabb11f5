"""Languages of the pages: gettext catalogues, read from the .po files when the deck starts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Protocol

from babel.core import negotiate_locale
from babel.messages.catalog import Catalog
from babel.messages.pofile import read_po

from app.config import PROJECT_ROOT

LOCALE_DIR = PROJECT_ROOT / "locale"
NAMES = {"en": "English", "zh": "中文"}
DEFAULT = "en"
COOKIE_NAME = "tierdeck_language"


class Gettext(Protocol):
    """A translation function; called `_` where it is used, so that messages can be extracted."""

    def __call__(self, message: str, /) -> str:
        """The message in the reader's language."""
        ...


@dataclass(frozen=True)
class Language:
    """One language with its messages. English is the source and has none."""

    code: str
    name: str
    html_lang: str
    messages: dict[str, str] = field(default_factory=dict)
    script_messages: str = "{}"
    """JSON of the messages that static/js uses."""

    def gettext(self, message: str) -> str:
        """The translation of `message`, or `message`."""
        return self.messages.get(message, message)

    def ngettext(self, singular: str, plural: str, number: int) -> str:
        """The translation for `number`; Chinese has one form for all numbers."""
        return self.messages.get(singular) or (singular if number == 1 else plural)


@cache
def languages() -> dict[str, Language]:
    """Every language by its code."""
    return {DEFAULT: Language(DEFAULT, NAMES[DEFAULT], "en"), "zh": _from_catalog("zh", "zh-CN")}


def choose(cookie: str | None, accept_language: str) -> Language:
    """The language the reader picked, else the first of the browser's that we have."""
    if cookie in NAMES:
        return languages()[cookie]
    found = negotiate_locale(_preferred(accept_language), list(NAMES), sep="-")
    return languages()[found or DEFAULT]


def read_catalog(code: str) -> Catalog:
    """The parsed .po file of a language."""
    with (LOCALE_DIR / code / "LC_MESSAGES" / "tierdeck.po").open("rb") as file:
        return read_po(file, locale=code)


def _from_catalog(code: str, html_lang: str) -> Language:
    messages: dict[str, str] = {}
    script: dict[str, str] = {}
    for message in read_catalog(code):
        singular, text = _first(message.id), _first(message.string)
        if not singular or not text or message.fuzzy:
            continue
        messages[singular] = text
        if any(file.startswith("static/js/") for file, _line in message.locations):
            script[singular] = text
    return Language(
        code, NAMES[code], html_lang, messages, json.dumps(script, ensure_ascii=False).replace("<", "\\u003c")
    )


def _first(forms: str | Sequence[str] | None) -> str:
    """The singular of a message, or its only form."""
    return forms if isinstance(forms, str) else forms[0] if forms else ""


def _preferred(accept_language: str) -> list[str]:
    """`zh-CN,zh;q=0.9,en;q=0.8` -> the tags, most wanted first."""
    weighted: list[tuple[float, str]] = []
    for part in accept_language.split(","):
        tag, _, quality = part.strip().partition(";q=")
        try:
            weighted.append((-float(quality or 1), tag))
        except ValueError:
            continue
    return [tag for _weight, tag in sorted(weighted, key=lambda pair: pair[0]) if tag]
