"""A model's config.json, read field by field: what is wrong or missing ends in an error that names it. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from app.derive.profile_text import parse_object
from app.errors import InvalidInput

Severity = Literal["warning", "note"]

#: Where wrappers (vision, audio) keep the language model's own fields.
TEXT_SECTIONS = ("text_config", "llm_config", "language_config")
#: No model has dimensions beyond this; what is larger is a slip of the keyboard.
LARGEST = 100_000_000


@dataclass(frozen=True)
class Finding:
    """Something to know about a plan. `code` and `values` let a page say it in its own words."""

    severity: Severity
    code: str
    path: str
    message: str
    values: Mapping[str, Any] = field(default_factory=dict)


def read_config(text: str) -> dict[str, Any]:
    """The JSON object in `text`, or InvalidInput with line and column."""
    if not text.strip():
        raise InvalidInput("Paste the model's config.json.", path="config", code="invalid_config")
    parsed = parse_object(text, "config")
    if parsed.is_valid:
        return parsed.value
    message = parsed.findings[0].message
    if "integer string conversion" in message:
        message = "This holds a number of more than 4300 digits; no field of a model is that long."
    raise InvalidInput(message, path="config", code="invalid_config")


class Fields:
    """The language model's fields. Decoys outside its section are not seen, the wrapper's names apart."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._outer = config
        self._values, self._prefix = _section(config)

    @property
    def names(self) -> frozenset[str]:
        """The model type and the architectures, of the wrapper too, in lower case."""
        found = [self._values.get("model_type"), self._outer.get("model_type")]
        for place in (self._values, self._outer):
            architectures = place.get("architectures")
            found += architectures if isinstance(architectures, list) else []
        return frozenset(name.lower() for name in found if isinstance(name, str))

    def is_family(self, *starts: str) -> bool:
        """True when the model type begins with one of these, or an architecture with their plain letters."""
        plain = tuple(start.replace("_", "") for start in starts)
        return any(name.startswith(starts) or name.replace("_", "").startswith(plain) for name in self.names)

    def has(self, *names: str) -> bool:
        """True when one of these is there and not null."""
        return any(self._values.get(name) is not None for name in names)

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def raw(self, name: str) -> Any:
        """The value as it stands; None when absent."""
        return self._values.get(name)

    def outer(self, name: str) -> Any:
        """The value here or in the wrapper around; None when absent."""
        return self._values.get(name) or self._outer.get(name)

    def path(self, name: str) -> str:
        """Where a field is, as the config writes it."""
        return f"{self._prefix}{name}"

    def first(self, *names: str) -> str:
        """The name among these that is used; the first when none is."""
        return next((name for name in names if self.has(name)), names[0])

    def number(self, *names: str, least: int = 1, most: int = LARGEST) -> int | None:
        """A whole number under the first name that is used; None when all are absent or null."""
        name = self.first(*names)
        value = self._values.get(name)
        return None if value is None else self._whole(name, value, least, most)

    def need(self, *names: str, least: int = 1, most: int = LARGEST, why: str = "") -> int:
        """As `number`, but missing is an error."""
        found = self.number(*names, least=least, most=most)
        if found is None:
            raise self.fault(names[0], f"is missing{why}: the KV layout cannot be told without it")
        return found

    def items(self, name: str, kind: type, words: str) -> list[Any]:
        """A list of one kind of value."""
        value = self._values.get(name)
        if not isinstance(value, list) or not all(type(item) is kind for item in value):
            raise self.fault(name, f"must be a list of {words}, not {_shown(value)}")
        return value

    def fault(self, name: str, what: str) -> InvalidInput:
        """The error to raise when a field makes the config useless."""
        path = self.path(name)
        return InvalidInput(f"{path} {what}.", path=path, code="invalid_config")

    def note(self, code: str, name: str, what: str, severity: Severity = "note", **values: Any) -> Finding:
        """A finding at a field."""
        path = self.path(name)
        return Finding(severity, code, path, what, {"path": path, **values})

    def _whole(self, name: str, value: Any, least: int, most: int) -> int:
        if isinstance(value, float) and math.isfinite(value) and value.is_integer():
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool):
            raise self.fault(name, f"must be a whole number, not {_shown(value)}")
        if not least <= value <= most:
            raise self.fault(name, f"is {_shown(value)}; a number from {least} to {most} is meant")
        return value


def _section(config: Mapping[str, Any]) -> tuple[Mapping[str, Any], str]:
    for name in TEXT_SECTIONS:
        inner = config.get(name)
        if inner is None:
            continue
        if not isinstance(inner, Mapping):
            raise InvalidInput(
                f"{name} must be an object in braces, not {_shown(inner)}.", path=name, code="invalid_config"
            )
        return inner, f"{name}."
    return config, ""


def _shown(value: Any) -> str:
    if isinstance(value, Mapping):
        return "an object"
    if isinstance(value, list):
        return "a list"
    text = {True: "true", False: "false"}.get(value) if isinstance(value, bool) else None
    if value is None:
        return "null"
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > 10**24:
        return "a number of more than 24 digits"
    shown = text or repr(value)
    return shown if len(shown) <= 60 else f"{shown[:57]}..."
