"""How much of a draft is looked at: nobody writes more, and what is typed is judged between two strokes. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from app.profiles.finding import Finding, error
from app.profiles.nested import MOST_DEEP, children_of

#: Characters of one text; the longest profiles that people keep have some thousands.
MOST_TEXT: Final = 32_768
#: Keys and list items of one text, those inside others too.
MOST_ENTRIES: Final = 500
#: Connectors, all levels together.
MOST_CONNECTORS: Final = 16
#: Unknown keys that are told one by one, with the nearest known one, over all connectors.
MOST_TOLD: Final = 16


def too_long(text: str, path: str) -> Finding | None:
    """A text that is not even read."""
    if len(text) <= MOST_TEXT:
        return None
    sentence = "This text has %(count)s characters; a profile has at most %(most)s."
    return error(path, sentence, count=len(text), most=MOST_TEXT)


def too_many(value: Mapping[str, Any], path: str) -> Finding | None:
    """A text that was read and is not judged."""
    if (count := entries_in(value)) > MOST_ENTRIES:
        sentence = "This has %(count)s keys and list items; a profile has at most %(most)s."
        return error(path, sentence, count=count, most=MOST_ENTRIES)
    if (count := connectors_in(value)) > MOST_CONNECTORS:
        sentence = "This joins %(count)s connectors; a profile has at most %(most)s."
        return error(path, sentence, count=count, most=MOST_CONNECTORS)
    return None


def entries_in(value: Any) -> int:
    """Keys and list items at every level; walked without recursion."""
    count, left = 0, [value]
    while left:
        one = left.pop()
        inner = list(one.values()) if isinstance(one, Mapping) else one if isinstance(one, list) else ()
        count += len(inner)
        left.extend(inner)
    return count


def connectors_in(config: Mapping[str, Any]) -> int:
    """Connectors of a config, itself and those that it joins, as deep as they are looked at."""
    level, count = [config], 0
    for _ in range(MOST_DEEP + 1):
        count += len(level)
        level = [child for one in level for child in children_of(one) if isinstance(child, Mapping)]
    return count


def first_told(findings: Iterable[Finding], unknown: Iterable[str], path: str, most: int) -> list[Finding]:
    """The findings with one at the end for the unknown keys that are not told one by one."""
    more = len(tuple(unknown)) - most
    if more <= 0:
        return list(findings)
    sentence = "%(count)s more keys here are unknown; correct the first ones, and these are told."
    return [*findings, error(path, sentence, count=more)]
