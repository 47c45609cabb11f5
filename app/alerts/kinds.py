"""Every kind of rule there is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from app.alerts.engine_rule import EngineDown
from app.alerts.rules import HostHitsLow, Rule
from app.errors import InvalidInput


@dataclass(frozen=True)
class Kind:
    """A kind of rule: what it is called and how its parameters become a rule."""

    name: str
    title: str
    rule: Callable[[Mapping[str, Any]], Rule]
    """Checks and completes parameters. Raises InvalidInput that names the field."""
    first_name: str
    """What the rule is called that a deck makes of it."""


KINDS: Mapping[str, Kind] = {
    kind.name: kind
    for kind in (
        Kind("host_hits_low", "Host hits near 0 while recompute is high", HostHitsLow.parse, "Host hits near 0"),
        Kind("engine_down", "An engine was given up, or is stalled", EngineDown.parse, "Engine down"),
    )
}


def kind_named(name: str) -> Kind:
    """The kind called `name`. Raises InvalidInput."""
    if name not in KINDS:
        raise InvalidInput(f"There is no rule kind {name!r}; write one of: {', '.join(KINDS)}.", path="kind")
    return KINDS[name]
