"""What the operator typed into a profile -> values, or findings that name place and remedy. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

Severity = Literal["error", "warning", "note"]

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


@dataclass(frozen=True)
class Finding:
    """One thing to say about a profile. `line` and `column` count from 1, where the text has them."""

    severity: Severity
    path: str
    message: str
    line: int | None = None
    column: int | None = None


@dataclass(frozen=True)
class ParsedText:
    """A JSON object that was read, or the findings that say why it was not."""

    value: dict[str, Any]
    findings: tuple[Finding, ...] = ()

    @property
    def is_valid(self) -> bool:
        """True when nothing stands against using `value`."""
        return not any(finding.severity == "error" for finding in self.findings)


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
        value = json.loads(text, object_pairs_hook=_unique_keys, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        return _failed(Finding("error", path, _syntax_sentence(text, error), error.lineno, error.colno))
    except _DuplicateKey as error:
        return _failed(Finding("error", path, str(error)))
    except RecursionError:
        return _failed(Finding("error", path, "This is nested too deeply to be a configuration."))
    except ValueError as error:
        return _failed(Finding("error", path, str(error)))
    if not isinstance(value, dict):
        return _failed(Finding("error", path, f"Write a JSON object in braces, not {_kind(value)}.", 1, 1))
    return ParsedText(value)


def check_transfer_config(
    config: Mapping[str, Any], check_extra: Callable[[Mapping[str, Any]], list[Finding]]
) -> list[Finding]:
    """Findings on a kv-transfer-config; empty config = no connector, nothing to say.

    `check_extra` is the connector's own reading of `kv_connector_extra_config`.
    """
    if not config:
        return []
    findings = [finding for key in config if (finding := _check_known_key(key, config))]
    findings += [
        Finding("error", f"kv-transfer-config.{key}", f'Add "{key}": "{example}".')
        for key, example in (("kv_connector", "OffloadingConnector"), ("kv_role", "kv_both"))
        if key not in config
    ]
    extra = config.get("kv_connector_extra_config", {})
    extra_path = "kv-transfer-config.kv_connector_extra_config"
    if not isinstance(extra, Mapping):
        findings.append(Finding("error", extra_path, f"Write an object in braces, not {_kind(extra)}."))
    elif extra.get("spec_name") == "TieringOffloadingSpec":
        findings += check_extra(extra)
    return findings


#: Keys of vLLM's KVTransferConfig, 0.32.
TRANSFER_KEYS = frozenset(
    {
        "kv_connector",
        "engine_id",
        "kv_buffer_device",
        "kv_role",
        "kv_port",
        "kv_connector_extra_config",
        "kv_connector_module_path",
        "enable_permute_local_kv",
        "kv_load_failure_policy",
    }
)


def check_flags(flags: Mapping[str, Any]) -> list[Finding]:
    """Findings on engine flags: names without dashes in front, plain values or lists of them."""
    findings: list[Finding] = []
    for name, value in flags.items():
        path = f"flags.{name}"
        if not FLAG_NAME.match(name):
            hint = name.lstrip("-").replace("_", "-").lower() or "max-model-len"
            findings.append(Finding("error", path, f'Write flag names without dashes in front, as in "{hint}".'))
        elif name in DECK_FLAGS:
            findings.append(Finding("error", path, f"Remove it: the deck sets --{name} from {DECK_FLAGS[name]}."))
        elif not _is_flag_value(value):
            findings.append(Finding("error", path, "Write a number, text, true, false, or a list of numbers or texts."))
    return findings


def check_environment(environment: Mapping[str, Any]) -> list[Finding]:
    """Findings on environment variables: names as a shell takes them, texts as values."""
    findings: list[Finding] = []
    for name, value in environment.items():
        path = f"environment.{name}"
        if not VARIABLE_NAME.match(name):
            findings.append(Finding("error", path, "Write a name of letters, digits and underscores."))
        elif name.startswith("TIERDECK_"):
            findings.append(Finding("error", path, "Remove it: names that begin with TIERDECK_ belong to the deck."))
        elif not isinstance(value, str) or "\0" in value:
            findings.append(Finding("error", path, f"Write the value as text in quotes, not {_kind(value)}."))
    return findings


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


def _check_known_key(key: str, config: Mapping[str, Any]) -> Finding | None:
    path = f"kv-transfer-config.{key}"
    if key not in TRANSFER_KEYS:
        inside = "kv_connector_extra_config"
        return Finding("error", path, f'The engine knows no such key here; keys of the connector go inside "{inside}".')
    if key in {"kv_connector", "kv_role"} and not isinstance(config[key], str):
        return Finding("error", path, f"Write text in quotes, not {_kind(config[key])}.")
    return None


def _is_flag_value(value: Any) -> bool:
    plain = (str, int, float, bool, type(None))
    if isinstance(value, list):
        return all(isinstance(item, (str, int, float)) and not isinstance(item, bool) for item in value)
    return isinstance(value, plain) and not (isinstance(value, str) and "\0" in value)


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise _DuplicateKey(f'"{key}" is written twice; keep one.')
        found[key] = value
    return found


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a number in JSON; write a finite number.")


def _syntax_sentence(text: str, error: json.JSONDecodeError) -> str:
    place = f"Line {error.lineno}, column {error.colno}"
    rest = text[error.pos : error.pos + 24].splitlines()
    if re.match(r"\s*(<!doctype|<html)", text, re.IGNORECASE):
        return f"{place}: this is a web page, not JSON."
    if text.lstrip().startswith("<<<<<<<"):
        return f"{place}: this has merge-conflict markers; keep one side."
    if size := _bare_size(text, error.pos):
        return f'{place}: a size with a unit is text; write it in quotes, as in "{size}".'
    if rest and rest[0].startswith(("#", "//", "/*")):
        return f"{place}: JSON has no comments; remove this one."
    return (
        f"{place}: {error.msg[0].lower()}{error.msg[1:]}, found {rest[0]!r}."
        if rest
        else f"{place}: the text ends too early."
    )


def _bare_size(text: str, position: int) -> str | None:
    """The size written without quotes around `position`, such as 2g, or None."""
    digits = re.search(r"[0-9.]*$", text[:position])
    unit = re.match(r"[0-9.]*[kKmMgGtT]i?[bB]?\b", text[position:])
    return f"{digits[0]}{unit[0]}" if digits and unit else None


def _kind(value: Any) -> str:
    names = {str: "text", bool: "true or false", int: "a number", float: "a number", list: "a list", dict: "an object"}
    return names.get(type(value), "null")


def _failed(finding: Finding) -> ParsedText:
    return ParsedText({}, (finding,))
