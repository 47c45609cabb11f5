"""Where in a JSON text something stands that its reader refuses without saying where. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

#: Deeper than any configuration; where it is passed is where "nested too deeply" is said.
MOST_DEEP: Final = 100
_TOKEN: Final = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\]:,]|[^\s{}\[\]:,"]+')
_SURROGATE: Final = re.compile(r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(\\u[dD][89a-fA-F])")


@dataclass(frozen=True)
class Place:
    """An offset into the text, and the path of the object around it, from the text's own."""

    position: int
    path: str

    def line_and_column(self, text: str) -> tuple[int, int]:
        """Counted from 1."""
        before = text[: self.position]
        return before.count("\n") + 1, self.position - before.rfind("\n")


@dataclass
class _Level:
    """An object or list that is open."""

    path: str
    is_object: bool
    names: set[str] = field(default_factory=set)
    name: str = "0"
    is_name_next: bool = True


def literal(text: str, path: str, start: str) -> Place | None:
    """The first bare word or number that begins so: NaN, or a number's first digits."""
    return next((place for piece, place, _ in _walk(text, path) if piece.startswith(start)), None)


def doubled(text: str, path: str, key: str) -> Place | None:
    """The key where an object names it for the second time."""
    return next((place for piece, place, twice in _walk(text, path) if twice and json.loads(piece) == key), None)


def too_deep(text: str, path: str) -> Place | None:
    """The bracket that is one too many."""
    deep = 0
    for piece, place, _ in _walk(text, path):
        deep += (piece in ("{", "[")) - (piece in ("}", "]"))
        if deep > MOST_DEEP:
            return place
    return None


def half_character(text: str, path: str) -> Place | None:
    """A lone surrogate, written as an escape or as itself."""
    for piece, place, _ in _walk(text, path):
        for match in _SURROGATE.finditer(piece):
            if match[1]:
                return Place(place.position + match.start(), place.path)
        for offset, letter in enumerate(piece):
            if "\ud800" <= letter <= "\udfff":
                return Place(place.position + offset, place.path)
    return None


def _walk(text: str, path: str) -> Iterator[tuple[str, Place, bool]]:
    """Every piece with its place, and whether it is a key for the second time."""
    levels: list[_Level] = []
    for match in _TOKEN.finditer(text):
        piece, level = match[0], levels[-1] if levels else None
        is_key = level is not None and level.is_object and level.is_name_next and piece.startswith('"')
        name = _unquoted(piece) if is_key else ""
        yield (
            piece,
            Place(match.start(), level.path if level else path),
            is_key and level is not None and name in level.names,
        )
        if is_key and level is not None:
            level.name, level.is_name_next = name, False
            level.names.add(name)
        _step(levels, piece, path)


def _step(levels: list[_Level], piece: str, path: str) -> None:
    level = levels[-1] if levels else None
    if piece in ("{", "["):
        inner = path if level is None else f"{level.path}.{level.name}"
        levels.append(_Level(inner, piece == "{"))
    elif piece in ("}", "]") and levels:
        levels.pop()
    elif piece == "," and level is not None:
        level.is_name_next = True
        level.name = level.name if level.is_object else str(int(level.name) + 1)


def _unquoted(piece: str) -> str:
    try:
        return str(json.loads(piece))
    except ValueError:
        return piece
