"""Names in a profile, and how two versions differ. Pure. Texts are read by `app.profiles.text`."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from app.profiles.text import ParsedText, parse_object

__all__ = [
    "DECK_FLAGS",
    "FLAG_NAME",
    "START_TIMEOUT",
    "VARIABLE_NAME",
    "Change",
    "ParsedText",
    "as_text",
    "changes",
    "parse_object",
    "read_seconds",
]

FLAG_NAME = re.compile(r"^[a-z][a-z0-9]*(-[a-z0-9]+)*$")
VARIABLE_NAME = re.compile(r"^[A-Za-z_][A-Za-z0-9_]*$")

#: Flags that the deck sets itself; in a profile they would contradict it.
DECK_FLAGS = {
    "model": "the fleet's model",
    "served-model-name": "the fleet's model name",
    "host": "the engine's address",
    "port": "the engine's port",
    "kv-transfer-config": "the kv-transfer-config field above",
}

#: What limits an engine to some devices of the machine.
DEVICES_VARIABLE = "CUDA_VISIBLE_DEVICES"
#: In a profile's environment, for the deck: the longest silence of its starts, in seconds; 0 = no limit.
START_TIMEOUT = "TIERDECK_START_TIMEOUT_SECONDS"


@dataclass(frozen=True)
class Change:
    """A field that differs between two versions; `None` on a side = absent there."""

    path: str
    old: Any
    new: Any


def changes(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> list[Change]:
    """Fields that differ, by path, objects compared field by field."""
    found: list[Change] = []
    for key in sorted({*old, *new}):
        path = f"{prefix}{key}"
        before, after = old.get(key), new.get(key)
        if isinstance(before, Mapping) or isinstance(after, Mapping):
            found += changes(_mapping(before), _mapping(after), f"{path}.")
        elif before != after or (key in old) != (key in new):
            found.append(Change(path, before, after))
    return found


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def read_seconds(text: str) -> float | None:
    """A length of time that is not negative; None for anything else."""
    try:
        seconds = float(text)
    except ValueError:
        return None
    return seconds if 0 <= seconds < math.inf else None


def as_text(value: Mapping[str, Any]) -> str:
    """An object as it stands in the editor; nothing for an empty one."""
    return json.dumps(value, ensure_ascii=False, indent=2) if value else ""
