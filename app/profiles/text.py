"""What was typed -> a JSON object, or the finding that says where and why it is none. Pure."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, replace
from typing import Any

from app.derive.strict_json import HALF_CHARACTER, NO_NUMBER, TOO_DEEP, TOO_MANY_DIGITS, WRITTEN_TWICE
from app.profiles import places
from app.profiles.finding import Finding, Fix, TextEdit, has_errors
from app.profiles.sizes import meant_size, read_size

#: No size, length or count of a profile has more.
MOST_DIGITS = 19
#: Parts of a profile by the path that findings use -> the field of the form.
FIELDS = {"kv-transfer-config": "kv_transfer_config"}


_KIND_WORDS = {
    str: "text",
    bool: "true or false",
    int: "a number",
    float: "a number",
    list: "a list",
    dict: "an object",
}


@dataclass(frozen=True)
class ParsedText:
    """A JSON object that was read, or the findings that say why it was not."""

    value: dict[str, Any]
    findings: tuple[Finding, ...] = ()

    @property
    def is_valid(self) -> bool:
        """True when nothing stands against using `value`."""
        return not has_errors(self.findings)


class _DuplicateKey(ValueError):
    """An object names a key twice; JSON readers would silently keep the last."""


def parse_object(text: str, path: str) -> ParsedText:
    """Read `text` as one JSON object; empty text is an empty object.

    Refused with a finding: what is not JSON (with line and column), anything but an object, NaN and
    infinities, and a key that appears twice.
    """
    if not text.strip():
        return ParsedText({})
    try:
        value = json.loads(
            text,
            object_pairs_hook=_unique_keys,
            parse_constant=_refuse_constant,
            parse_int=_whole,
            parse_float=_finite,
        )
        json.dumps(value, ensure_ascii=False).encode()
    except json.JSONDecodeError as error:
        return _failed(_syntax(text, error, path))
    except _DuplicateKey as error:
        place = places.doubled(text, path, str(error))
        values = {"key": f'"{place.path if place else path}.{error}"'}
        return _failed(_at(text, place, Finding("error", path, WRITTEN_TWICE, values=values)))
    except UnicodeEncodeError:
        return _failed(_at(text, places.half_character(text, path), Finding("error", path, HALF_CHARACTER)))
    except RecursionError:
        return _failed(_at(text, places.too_deep(text, path), Finding("error", path, TOO_DEEP)))
    except ValueError as error:
        return _failed(_at(text, places.literal(text, path, str(error)), _number(path, str(error))))
    if not isinstance(value, dict):
        sentence = "Write a JSON object in braces, not %(kind)s."
        return _failed(Finding("error", path, sentence, 1, 1, {"kind": kind_of(value)}))
    return ParsedText(value)


def _at(text: str, place: places.Place | None, finding: Finding) -> Finding:
    """The finding with line and column, where the place is known."""
    if place is None:
        return finding
    line, column = place.line_and_column(text)
    return replace(finding, line=line, column=column)


def kind_of(value: Any) -> str:
    """What a JSON value is, in words."""
    return _KIND_WORDS.get(type(value), "null")


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise _DuplicateKey(key)
        found[key] = value
    return found


class _Constant(ValueError):
    """NaN or an infinity."""


def _refuse_constant(name: str) -> Any:
    raise _Constant(name)


def _whole(digits: str) -> int:
    if len(digits.lstrip("-")) > MOST_DIGITS:
        raise ValueError(digits[:MOST_DIGITS])
    return int(digits)


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise ValueError(digits[:MOST_DIGITS])
    return number


def _number(path: str, told: str) -> Finding:
    if told in {"NaN", "Infinity", "-Infinity"}:
        return Finding("error", path, NO_NUMBER, values={"name": told})
    return Finding("error", path, TOO_MANY_DIGITS)


def _syntax(text: str, error: json.JSONDecodeError, path: str) -> Finding:
    sentence, values, remedy = _reason(text, error, FIELDS.get(path, path))
    values = {"line": error.lineno, "column": error.colno, **values}
    fixes = () if remedy is None else (remedy,)
    return Finding("error", path, sentence, error.lineno, error.colno, values, fixes)


def _reason(text: str, error: json.JSONDecodeError, field: str) -> tuple[str, dict[str, Any], Fix | None]:
    rest = text[error.pos : error.pos + 24].splitlines()
    if re.match(r"\s*(<!doctype|<html)", text, re.IGNORECASE):
        sentence = "Line %(line)s, column %(column)s: this is a web page, not JSON."
        return sentence, {}, None
    if re.search(r"^(<<<<<<<|=======|>>>>>>>)", text, re.MULTILINE):
        sentence = "Line %(line)s, column %(column)s: this has merge-conflict markers; keep one side."
        return sentence, {}, None
    if size := _bare_size(text, error.pos):
        return _size_reason(text, error.pos, size, field)
    if rest and rest[0].startswith(("#", "//", "/*")):
        sentence = "Line %(line)s, column %(column)s: JSON has no comments; remove this one."
        return sentence, {}, _without_comment(text, error.pos, field)
    if not rest:
        sentence = "Line %(line)s, column %(column)s: the text ends too early."
        return sentence, {}, None
    if (comma := _trailing_comma(text, error.pos)) is not None:
        sentence = "Line %(line)s, column %(column)s: nothing follows the comma before this; remove the comma."
        return sentence, {}, Fix("Remove the comma", edit=TextEdit(field, comma, comma + 1, ""))
    sentence = "Line %(line)s, column %(column)s: %(said)s, found %(rest)s."
    return sentence, {"said": f"{error.msg[0].lower()}{error.msg[1:]}", "rest": repr(rest[0])}, None


def _size_reason(text: str, position: int, size: str, field: str) -> tuple[str, dict[str, Any], Fix | None]:
    meant = meant_size(size) or size
    number = read_size(meant)
    sentence = 'Line %(line)s, column %(column)s: a size with a unit is text; write it in quotes, as in "%(size)s".'
    start = position - len(re.search(r"[0-9.]*$", text[:position])[0])  # type: ignore[index] # always matches
    if number is None:
        return sentence, {"size": meant}, None
    edit = TextEdit(field, start, start + len(size), str(number))
    return sentence, {"size": meant}, Fix("Write %(near)s", edit=edit, values={"near": f"{number} ({meant})"})


def _bare_size(text: str, position: int) -> str | None:
    """The size written without quotes around `position`, such as 2g, or None."""
    digits = re.search(r"[0-9.]*$", text[:position])
    unit = re.match(r"[0-9.]*[kKmMgGtT]i?[bB]?\b", text[position:])
    return f"{digits[0]}{unit[0]}" if digits and digits[0] and unit else None


def _without_comment(text: str, position: int, field: str) -> Fix | None:
    if text.startswith("/*", position):
        end = text.find("*/", position)
        if end < 0:
            return None
        return Fix("Remove the comment", edit=TextEdit(field, position, end + 2, ""))
    end = text.find("\n", position)
    return Fix("Remove the comment", edit=TextEdit(field, position, len(text) if end < 0 else end, ""))


def _trailing_comma(text: str, position: int) -> int | None:
    """Where the comma is that stands alone before a closing bracket, or None."""
    if text[position : position + 1] == ",":
        after = text[position + 1 :].lstrip()
        return position if after[:1] in {"}", "]"} else None
    before = text[:position].rstrip()
    return len(before) - 1 if text[position] in "}]" and before.endswith(",") else None


def _failed(finding: Finding) -> ParsedText:
    return ParsedText({}, (finding,))
