"""JSON as an object, without what readers let pass in silence: keys written twice, NaN, endless depth. Pure."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from typing import Any, Final

from app.errors import InvalidInput

#: No configuration goes deeper; what does would end in the interpreter's own limit somewhere.
MOST_DEPTH: Final = 200
TOO_DEEP: Final = "This is nested too deeply to be a configuration."
TOO_MANY_DIGITS: Final = "A number here has too many digits to be meant."
NO_NUMBER: Final = "%(name)s is not a number in JSON; write a finite number."
WRITTEN_TWICE: Final = "%(key)s is written twice; keep one."
HALF_CHARACTER: Final = "A text here ends in half a character (a lone surrogate); write the whole one."

_MARK: Final = "\ufeff"

Path = tuple[str | int, ...]


def without_mark(text: str) -> str:
    """A byte order mark, with which some editors begin a file, becomes a blank: so every place stays what it is."""
    return f" {text[1:]}" if text.startswith(_MARK) else text


class _Twice(dict[str, Any]):
    """An object that was written with a key twice."""

    key = ""


def read_strict(text: str | bytes) -> Any:
    """The value in `text`. Raises InvalidInput with the path, and ValueError for what is no JSON at all."""
    seen: list[_Twice] = []
    try:
        found = json.loads(
            text,
            object_pairs_hook=lambda pairs: _object(pairs, seen),
            parse_constant=_refuse,
            parse_float=_finite,
        )
    except (json.JSONDecodeError, UnicodeDecodeError):
        raise
    except RecursionError as error:
        raise InvalidInput(TOO_DEEP) from error
    except ValueError as error:  # the interpreter's limit of digits
        raise InvalidInput(TOO_MANY_DIGITS) from error
    if seen or _brackets(text) > MOST_DEPTH:
        _check(found)
    return found


def _object(pairs: list[tuple[str, Any]], seen: list[_Twice]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) == len(pairs):
        return found
    twice = _Twice(found)
    names = [name for name, _ in pairs]
    twice.key = next(name for place, name in enumerate(names) if name in names[:place])
    seen.append(twice)
    return twice


def _refuse(name: str) -> Any:
    raise InvalidInput(NO_NUMBER, values={"name": name})


def _finite(digits: str) -> float:
    if not math.isfinite(number := float(digits)):
        raise InvalidInput(TOO_MANY_DIGITS)
    return number


def _brackets(text: str | bytes) -> int:
    raw = text.encode(errors="replace") if isinstance(text, str) else text
    return raw.count(b"{") + raw.count(b"[")


def _check(value: Any) -> None:
    for path, one in _walk(value):
        if isinstance(one, _Twice):
            where = ".".join(map(str, (*path, one.key)))
            raise InvalidInput(WRITTEN_TWICE, path=where, values={"key": f'"{where}"'})
        if len(path) > MOST_DEPTH:
            raise InvalidInput(TOO_DEEP, path=str(path[0]))


def _walk(value: Any) -> Iterator[tuple[Path, Any]]:
    """Every value with its path, without recursion: an object that hides another with a key twice comes first."""
    waiting: list[tuple[Path, Any]] = [((), value)]
    while waiting:
        path, one = waiting.pop()
        yield path, one
        waiting += [((*path, key), inner) for key, inner in _inside(one)]


def _inside(value: Any) -> Iterable[tuple[str | int, Any]]:
    if isinstance(value, dict):
        return value.items()
    return enumerate(value) if isinstance(value, list) else ()
