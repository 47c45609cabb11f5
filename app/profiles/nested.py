"""Connectors inside a MultiConnector: each is a whole config, judged like one and told at its own place. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from app.profiles import keys
from app.profiles.context import Context
from app.profiles.finding import CONFIG, EXTRA, POINTERS, Finding, Fix, Operation

#: How deep connectors are looked at; nobody nests them further.
MOST_DEEP: Final = 4
_ROOT: Final = f"/{POINTERS[CONFIG]}"


def place_of(number: int) -> str:
    """Where the connector with this number stands, seen from the config that holds it."""
    return f"{EXTRA}.connectors.{number}"


def children_of(config: Mapping[str, Any]) -> list[Any]:
    """The connectors that a MultiConnector joins, as written; none for another one."""
    extra = config.get("kv_connector_extra_config")
    if keys.as_meant(config).get("kv_connector") != keys.MULTI or not isinstance(extra, Mapping):
        return []
    children = extra.get("connectors")
    return children if isinstance(children, list) else []


def connectors_of(
    config: Mapping[str, Any], place: str = CONFIG, deep: int = 0
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every connector that does not join others, with the path of its config: one, or those of a MultiConnector."""
    if config.get("kv_connector") != keys.MULTI:
        yield place, dict(config)
        return
    for number, child in enumerate(children_of(config)):
        if isinstance(child, Mapping) and deep < MOST_DEEP:
            yield from connectors_of(child, inside(place, place_of(number)), deep + 1)


def inside(place: str, path: str) -> str:
    """A path as a config tells it of itself -> the path of the same field when the config stands at `place`."""
    return f"{place}{path.removeprefix(CONFIG)}" if path == CONFIG or path.startswith(f"{CONFIG}.") else path


def at_place(finding: Finding, place: str) -> Finding:
    """A finding on a config -> the same on a config that stands at `place`."""
    if place == CONFIG:
        return finding
    return replace(finding, path=inside(place, finding.path), fixes=tuple(_fix(fix, place) for fix in finding.fixes))


def within(context: Context, place: str) -> Context:
    """The context as a config at `place` sees it: paths that are allowed, seen from there."""
    if place == CONFIG:
        return context
    allow = (f"{CONFIG}{path.removeprefix(place)}" for path in context.allow if path.startswith(place))
    return replace(context, allow=tuple(allow))


def _fix(fix: Fix, place: str) -> Fix:
    return replace(fix, operations=tuple(_operation(one, place) for one in fix.operations))


def _operation(one: Operation, place: str) -> Operation:
    if one.path.startswith("/allow"):
        return replace(one, value=inside(place, one.value))
    root = _ROOT + place.removeprefix(CONFIG).replace(".", "/")
    return replace(one, path=_moved(one.path, root), from_=_moved(one.from_, root))


def _moved(pointer: str, root: str) -> str:
    return root + pointer.removeprefix(_ROOT) if pointer.startswith(_ROOT) else pointer
