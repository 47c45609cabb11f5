"""The fleets of a new deck, from a TOML file: `[profiles.NAME]` and `[fleets.NAME]`. Pure but for `is_free`."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from app.errors import InvalidInput
from app.fleets.content import FIELDS, Content, json_text, read_content, read_count, read_name
from app.fleets.devices import Group, group_for
from app.fleets.placing import new_port, ports_of
from app.profiles.check import Draft, check
from app.profiles.context import Context
from app.profiles.finding import CONFIG
from app.profiles.presets import Preset, presets
from app.store.queries.fleets import FirstEngine, FirstFleet, FirstProfile

_PROFILE_FIELDS: Final = ("comment", "preset", "kv_transfer_config", "flags", "environment", "allow")
_FLEET_FIELDS: Final = (*FIELDS, "profile", "engines")


@dataclass(frozen=True)
class Around:
    """What the file leaves to the deck: `is_free` tells whether nothing listens on a port."""

    interpreter: str
    engine_port: int
    memory_bytes: int
    is_free: Callable[[int], bool]


def read_fleets(text: str, around: Around) -> tuple[FirstFleet, ...]:
    """Every fleet of the file, its engines placed. Raises InvalidInput with the path of the field."""
    document = _parsed(text)
    _check_keys(document, ("profiles", "fleets"), "")
    kinds = {preset.key: preset for preset in presets(around.memory_bytes)}
    profiles = {name: _profile(name, table, kinds) for name, table in _tables(document, "profiles").items()}
    tables = _tables(document, "fleets")
    if not tables:
        raise InvalidInput("Write at least one fleet, under [fleets.NAME].", path="fleets")
    made: list[FirstFleet] = []
    for name, table in tables.items():
        made.append(_fleet(name, table, profiles, made, around))
    return tuple(made)


def _parsed(text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidInput(f"This is not TOML: {error}.", path=None) from error


def _tables(document: Mapping[str, Any], part: str) -> dict[str, dict[str, Any]]:
    tables = document.get(part, {})
    if not isinstance(tables, dict) or not all(isinstance(table, dict) for table in tables.values()):
        raise InvalidInput(f"Write tables, each under [{part}.NAME].", path=part)
    return tables


def _profile(name: str, table: Mapping[str, Any], kinds: Mapping[str, Preset]) -> FirstProfile:
    path = f"profiles.{name}"
    read_name(name, path)
    _check_keys(table, _PROFILE_FIELDS, path)
    preset = _preset(table, kinds, path)
    content = {
        "kv_transfer_config": table.get("kv_transfer_config", preset.kv_transfer_config if preset else {}),
        "flags": {**(preset.flags if preset else {}), **_object(table, "flags", path)},
        "environment": _object(table, "environment", path),
    }
    config, flags, environment = (json_text(value, f"{path}.{part}") for part, value in content.items())
    allow = tuple(map(str, table.get("allow", ())))
    checked = check(Draft(config, flags, environment, allow), Context())
    for finding in checked.findings:
        if finding.severity == "error":
            raise InvalidInput(finding.message, path=f"{path}.{finding.path.replace(CONFIG, 'kv_transfer_config', 1)}")
    comment = str(table.get("comment", "From the fleets file."))
    return FirstProfile(name, comment, checked.kv_transfer_config, checked.flags, checked.environment, checked.allow)


def _preset(table: Mapping[str, Any], kinds: Mapping[str, Preset], path: str) -> Preset | None:
    if "preset" not in table:
        return None
    found = kinds.get(str(table["preset"]))
    if found is None:
        raise InvalidInput(f"Write one of: {', '.join(kinds)}.", path=f"{path}.preset")
    return found


def _object(table: Mapping[str, Any], field: str, path: str) -> dict[str, Any]:
    value = table.get(field, {})
    if not isinstance(value, dict):
        raise InvalidInput("Write a table, such as { max-model-len = 32768 }.", path=f"{path}.{field}")
    return value


def _fleet(
    name: str,
    table: Mapping[str, Any],
    profiles: Mapping[str, FirstProfile],
    before: Sequence[FirstFleet],
    around: Around,
) -> FirstFleet:
    path = f"fleets.{name}"
    read_name(name, path)
    _check_keys(table, _FLEET_FIELDS, path)
    profile = _profile_of(table, profiles, path)
    asked = {field: value for field, value in table.items() if field in FIELDS}
    try:
        content = read_content(asked, profile.flags, interpreter=around.interpreter)
    except InvalidInput as error:
        raise InvalidInput(error.message, path=f"{path}.{error.path}") from error
    if any(fleet.columns["served_model_name"] == content.served_model_name for fleet in before):
        sentence = f"Another fleet serves {content.served_model_name} already; requests could not tell them apart."
        raise InvalidInput(sentence, path=f"{path}.served_model_name")
    taken = {engine.port for fleet in before for engine in fleet.engines}
    engines = _engines(name, read_count(table.get("engines", 1), f"{path}.engines"), content, taken, around)
    return FirstFleet(name, {**content.as_json(), "follows_settings": False}, engines, profile)


def _profile_of(table: Mapping[str, Any], profiles: Mapping[str, FirstProfile], path: str) -> FirstProfile:
    """The one that is named; not needed when the file has one alone."""
    if "profile" not in table and len(profiles) == 1:
        return next(iter(profiles.values()))
    found = profiles.get(str(table.get("profile")))
    if found is None:
        known = f"one of the file's profiles: {', '.join(profiles)}" if profiles else "a profile, under [profiles.NAME]"
        raise InvalidInput(f"Write {known}.", path=f"{path}.profile")
    return found


def _engines(
    name: str, count: int, content: Content, taken: Collection[int], around: Around
) -> tuple[FirstEngine, ...]:
    ports = ports_of(content.port_from, content.port_to, around.engine_port)
    used_ports, used_groups, made = {*taken}, list[Group](), list[FirstEngine]()
    for number in range(1, count + 1):
        port = new_port(ports, used_ports, around.is_free)
        if port is None:
            sentence = f"No port from {ports.low} to {ports.high} is free for engine {number}; write a wider range."
            raise InvalidInput(sentence, path=f"fleets.{name}.port_to")
        group = group_for(content.devices, used_groups)
        if content.devices and group is None:
            sentence = f"There are {len(content.devices)} groups of devices for {count} engines; write one for each."
            raise InvalidInput(sentence, path=f"fleets.{name}.devices")
        used_ports.add(port)
        used_groups.append(group or ())
        made.append(FirstEngine(f"{name}-{number}", port, group or ()))
    return tuple(made)


def _check_keys(table: Mapping[str, Any], known: Sequence[str], path: str) -> None:
    for name in table:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean {near[0]}?" if near else f"write one of {', '.join(known)}."
            raise InvalidInput(f"{name!r} is not known here; {hint}", path=f"{path}.{name}".lstrip("."))
