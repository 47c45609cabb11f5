"""What a fleet is, as it is written in a form, a request or a file. Pure."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Final, cast

from app.errors import InvalidInput
from app.fleets.devices import read_devices
from app.profiles.finding import Finding
from app.profiles.flags import check_environment, check_flags
from app.profiles.memory import ranks_of
from app.profiles.normal import normal_flags
from app.profiles.sizes import read_number, read_whole
from app.profiles.text import parse_object
from app.supervisor.status import Routing

NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,39}")
ROUTINGS: Final[tuple[Routing, ...]] = ("sticky", "least_busy")
MOST_PORT: Final = 65535
MOST_ENGINES: Final = 64
MOST_DRAIN_SECONDS: Final = 7 * 86400.0
TEXT_LIMIT: Final = 4096


@dataclass(frozen=True)
class Content:
    """Everything about a fleet but its name and its engines, in the form in which it is stored."""

    model: str
    """Path or hub name handed to the engines."""
    served_model_name: str
    interpreter: str
    base_flags: Mapping[str, Any]
    environment: Mapping[str, str]
    devices: tuple[tuple[str, ...], ...]
    """A group for each engine; empty = each sees all."""
    port_from: int | None
    port_to: int | None
    """Both ends are included; None = from the engine port of the settings upwards."""
    routing: Routing
    join_identical: bool
    drain_timeout_seconds: float | None
    """None = that of the deck's settings."""

    def as_json(self) -> dict[str, Any]:
        """For REST, and the columns of its row; what `read_content` reads."""
        return {**asdict(self), "devices": [[*group] for group in self.devices]}


#: Fields that an engine takes up with its next start; the others are in force at once.
FIELDS_OF_A_START: Final = ("model", "served_model_name", "interpreter", "base_flags", "environment", "devices")
FIELDS: Final = tuple(field.name for field in fields(Content))
_TEXT_WORDS: Final[Mapping[str, str]] = {
    "model": "Write the path of a model, or its name on a hub.",
    "interpreter": "Write the path of the Python that starts the engines.",
}
_DEFAULTS: Final[Mapping[str, Any]] = {
    "model": "",
    "served_model_name": "",
    "interpreter": "",
    "base_flags": {},
    "environment": {},
    "devices": (),
    "port_from": None,
    "port_to": None,
    "routing": "sticky",
    "join_identical": False,
    "drain_timeout_seconds": None,
}


def read_content(
    asked: Mapping[str, Any], profile_flags: Mapping[str, Any], present: Content | None = None, interpreter: str = ""
) -> Content:
    """The content that `asked` describes; fields that are left out stay as at `present`.

    `profile_flags` tell how many devices an engine takes, where devices are dealt out. Numbers may be texts and
    objects may be JSON, as a form sends them. Raises InvalidInput with the field.
    """
    for name in asked:
        _check_known(name)
    kept = {**_DEFAULTS, "interpreter": interpreter} if present is None else present.as_json()
    wanted = {**kept, **asked}
    base_flags = _flags(wanted["base_flags"])
    model = _text(wanted, "model")
    each = ranks_of({**base_flags, **profile_flags}).every
    port_from, port_to = _ports(wanted)
    return Content(
        model=model,
        served_model_name=_served_name(wanted["served_model_name"], model),
        interpreter=_text(wanted, "interpreter"),
        base_flags=base_flags,
        environment=_environment(wanted["environment"]),
        devices=read_devices(wanted["devices"], each),
        port_from=port_from,
        port_to=port_to,
        routing=_routing(wanted["routing"]),
        join_identical=_yes(wanted["join_identical"], "join_identical"),
        drain_timeout_seconds=_seconds(wanted["drain_timeout_seconds"], "drain_timeout_seconds"),
    )


def read_name(name: Any, path: str = "name") -> str:
    """A fleet's name: it becomes part of its engines' names, of addresses and files."""
    if isinstance(name, str) and NAME.fullmatch(name):
        return name
    raise InvalidInput("Name the fleet with letters, digits, '-', '_' and '.', at most 40 of them.", path=path)


def read_count(value: Any, path: str = "engines") -> int:
    """How many engines a fleet has."""
    count = read_whole(value)
    if count is None or not 1 <= count <= MOST_ENGINES:
        raise InvalidInput("Write a number of engines from 1 to %(most)s.", path=path, values={"most": MOST_ENGINES})
    return count


def _check_known(name: str) -> None:
    if name in FIELDS:
        return
    near = difflib.get_close_matches(name, FIELDS, 1)
    sentence = "A fleet has no field %(name)s; write one of %(known)s."
    if near:
        sentence = "A fleet has no field %(name)s; did you mean %(near)s?"
    values = {"name": name, "near": "".join(near), "known": ", ".join(FIELDS)}
    raise InvalidInput(sentence, path=name, values=values)


def _text(wanted: Mapping[str, Any], name: str) -> str:
    value = str(wanted[name]).strip() if isinstance(wanted[name], str) else ""
    if not value or len(value) > TEXT_LIMIT or value.startswith("-") or not value.isprintable():
        raise InvalidInput(_TEXT_WORDS[name], path=name)
    return value


def _served_name(value: Any, model: str) -> str:
    """Without one, the last part of the model's path."""
    name = (value.strip() if isinstance(value, str) else value) or Path(model).name or model
    if isinstance(name, str) and len(name) <= 200 and name.isprintable() and not name.startswith("-"):
        return name
    raise InvalidInput("Write the name that requests ask for, at most 200 characters.", path="served_model_name")


def _flags(value: Any) -> dict[str, Any]:
    flags = normal_flags(_object(value, "base_flags")).value
    _raise_first(check_flags(flags), "flags", "base_flags")
    return flags


def _environment(value: Any) -> dict[str, str]:
    environment = _object(value, "environment")
    _raise_first(check_environment(environment), "environment", "environment")
    return cast("dict[str, str]", environment)


def _object(value: Any, path: str) -> dict[str, Any]:
    """An object, or JSON that is one; nothing is an empty one. What JSON cannot hold is refused."""
    parsed = parse_object("" if value is None else json_text(value, path), path)
    _raise_first(parsed.findings, path, path)
    return parsed.value


def json_text(value: Any, path: str) -> str:
    """A value as JSON; a text is JSON already. Raises InvalidInput."""
    if isinstance(value, str):
        return value
    try:
        return json.dumps(value, ensure_ascii=False)
    except TypeError as error:  # TOML has dates and times
        raise InvalidInput("Write texts, numbers, lists and tables; no dates.", path=path) from error


def _raise_first(findings: list[Finding] | tuple[Finding, ...], part: str, path: str) -> None:
    for finding in findings:
        if finding.severity == "error":
            raise InvalidInput(finding.sentence, path=finding.path.replace(part, path, 1), values=finding.values)


def _ports(wanted: Mapping[str, Any]) -> tuple[int | None, int | None]:
    low, high = (_port(wanted[name], name) for name in ("port_from", "port_to"))
    if (low is None) != (high is None):
        missing = "port_from" if low is None else "port_to"
        raise InvalidInput("Write both ends of the ports, or neither.", path=missing)
    if low is not None and high is not None and high < low:
        raise InvalidInput("Write a port from %(low)s upwards.", path="port_to", values={"low": low})
    return low, high


def _port(value: Any, path: str) -> int | None:
    if value is None or value == "":
        return None
    port = read_whole(value)
    if port is None or not 1 <= port <= MOST_PORT:
        raise InvalidInput("Write a port from 1 to %(most)s.", path=path, values={"most": MOST_PORT})
    return port


def _routing(value: Any) -> Routing:
    found = next((routing for routing in ROUTINGS if routing == value), None)
    if found is None:
        raise InvalidInput("Write one of: %(choices)s.", path="routing", values={"choices": ", ".join(ROUTINGS)})
    return found


def _yes(value: Any, path: str) -> bool:
    if isinstance(value, bool):
        return value
    raise InvalidInput("Write true or false.", path=path)


def _seconds(value: Any, path: str) -> float | None:
    if value is None or value == "":
        return None
    seconds = read_number(value)
    if seconds is None or not 0 <= seconds <= MOST_DRAIN_SECONDS:
        raise InvalidInput("Write seconds from 0 to 604800, or leave it empty for the deck's setting.", path=path)
    return seconds
