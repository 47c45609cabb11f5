"""Sizes as people write them, and what a size is called. Pure."""

from __future__ import annotations

import json
import math
import re
from typing import Any, Final

from engine.config import parse_bytes

GIB: Final = 1 << 30
#: Below this, a number of bytes was probably meant as a number of GiB.
MEANT_GIB_BELOW: Final = 4096
#: More is no size that somebody means.
MOST_GIB: Final = 1e9
MOST_BYTES: Final = 1 << 62
#: What is longer is no number that somebody means.
MOST_CHARACTERS: Final = 32
_SHORT_UNIT: Final = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kmgt])\s*", re.IGNORECASE)
_SHORT_NUMBER: Final = re.compile(r"\s*(\d+(?:\.\d+)?)([kKmMgGtT])\s*")
_WHOLE: Final = re.compile(r"\s*[+-]?\d+\s*")


def read_size(value: Any) -> int | None:
    """`5 GiB`, `5 GB`, `"5368709120"` or 5368709120 as bytes; None when it is none of these."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    if isinstance(value, float):
        return int(value) if value.is_integer() and abs(value) <= MOST_BYTES else None
    size = parse_bytes(value) if isinstance(value, str) and len(value) <= MOST_CHARACTERS else None
    return size if size is not None and size <= MOST_BYTES else None


def meant_size(text: Any) -> str | None:
    """The size that `2g` probably means, `2 GiB`; None when it is nothing like one."""
    match = _SHORT_UNIT.fullmatch(text) if isinstance(text, str) else None
    return f"{match[1]} {match[2].upper()}iB" if match else None


def read_whole(value: Any) -> int | None:
    """A whole number, in quotes or not; None when it is none."""
    if isinstance(value, bool):
        return None
    if isinstance(value, float):
        return int(value) if value.is_integer() and abs(value) <= MOST_BYTES else None
    if isinstance(value, str) and len(value) <= MOST_CHARACTERS and _WHOLE.fullmatch(value):
        return int(value)
    return value if isinstance(value, int) else None


def read_short(text: Any) -> int | None:
    """`32k` as 32000 and `32K` as 32768, as the engine itself reads them for its flags; None when it is neither."""
    match = _SHORT_NUMBER.fullmatch(text) if isinstance(text, str) and len(text) <= MOST_CHARACTERS else None
    if match is None or (match[2].isupper() and "." in match[1]):
        return None
    factor = (1024 if match[2].isupper() else 1000) ** ("kmgt".index(match[2].lower()) + 1)
    number = int(match[1]) * factor if "." not in match[1] else int(float(match[1]) * factor)
    return number if number <= MOST_BYTES else None


def read_number(value: Any) -> float | None:
    """A number, in quotes or not; None when it is none."""
    if isinstance(value, bool):
        return None
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def size_text(size: float) -> str:
    """Bytes with a unit: 25 GiB, 9.31 GiB, 500 B."""
    for power, unit in ((40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")):
        if abs(size) >= 1 << power:
            return f"{size / (1 << power):.4g} {unit}"
    return f"{size:g} B"


def exact_size(size: int) -> str:
    """The number itself and what it is: 5368709120 bytes (5 GiB)."""
    return f"{size} bytes ({size_text(size)})" if size >= 1024 else f"{size} bytes"


def shown(value: Any, limit: int = 60) -> str:
    """A value as JSON writes it, short."""
    text = f'"{value}"' if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=repr)
    return text if len(text) <= limit else f"{text[: limit - 3]}..."
