"""A model's config.json, read field by field: what is wrong or missing ends in an error that names it. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from app.derive.profile_text import parse_object
from app.derive.strict_json import without_mark
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
    text = without_mark(text)
    if not text.strip():
        raise InvalidInput("Paste the model's config.json.", path="config", code="invalid_config")
    parsed = parse_object(text, "config")
    if parsed.is_valid:
        return parsed.value
    found = parsed.findings[0]
    raise InvalidInput(found.sentence, path="config", code="invalid_config", values=found.values)


MISSING: Final = "%(path)s is missing: the KV layout cannot be told without it."


class Fields:
    """The language model's fields. Decoys outside its section are not seen, the wrapper's names apart."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._outer = config
        self._values, self._prefix = _section(config)
        others = [name for name in TEXT_SECTIONS if config.get(name) not in (None, self._values)]
        self._other_section = others[0] if self._prefix and others else None

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

    def need(self, *names: str, least: int = 1, most: int = LARGEST, missing: str = MISSING) -> int:
        """As `number`, but missing is an error, told by this sentence."""
        found = self.number(*names, least=least, most=most)
        if found is None:
            raise self.fault(names[0], missing)
        return found

    def items(self, name: str, kind: type, wanted: str) -> list[Any]:
        """A list of one kind of value."""
        value = self._values.get(name)
        if not isinstance(value, list):
            sentence = "%(path)s must be a list of %(wanted)s, not %(value)s."
            raise self.fault(name, sentence, wanted=wanted, value=_shown(value))
        for place, item in enumerate(value):
            if type(item) is not kind:
                sentence = "%(path)s must be a list of %(wanted)s; entry %(place)s is %(value)s."
                raise self.fault(name, sentence, wanted=wanted, place=place, value=_shown(item))
        return value

    def contradictions(self, twins: Sequence[tuple[str, ...]]) -> list[Finding]:
        """A warning for each group of names for one thing of which two are there with different values."""
        found = [] if self._other_section is None else [_beside(self._prefix[:-1], self._other_section)]
        for names in twins:
            used = [name for name in names if self.has(name)]
            others = [name for name in used[1:] if self._values[name] != self._values[used[0]]]
            found += [contradiction(self, used[0], name) for name in others]
        return found

    def fault(self, name: str, sentence: str, **values: Any) -> InvalidInput:
        """The error to raise when a field makes the config useless; `%(path)s` in the sentence is the field."""
        path = self.path(name)
        return InvalidInput(sentence, path=path, code="invalid_config", values={"path": path, **values})

    def note(self, code: str, name: str, what: str, severity: Severity = "note", **values: Any) -> Finding:
        """A finding at a field."""
        path = self.path(name)
        return Finding(severity, code, path, what, {"path": path, **values})

    def _whole(self, name: str, value: Any, least: int, most: int) -> int:
        if isinstance(value, float) and math.isfinite(value) and value.is_integer():
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool):
            raise self.fault(name, "%(path)s must be a whole number, not %(value)s.", value=_shown(value))
        if not least <= value <= most:
            sentence = "%(path)s is %(value)s; a number from %(least)s to %(most)s is meant."
            raise self.fault(name, sentence, value=_shown(value), least=least, most=most)
        return value


def contradiction(fields: Fields, winner: str, loser: str) -> Finding:
    """The warning on two fields that say different things, of which the first is read."""
    return _beside(fields.path(winner), fields.path(loser))


def _beside(winner: str, loser: str) -> Finding:
    message = f"{winner} and {loser} contradict each other; {winner} is used."
    return Finding("warning", "fields_contradict", loser, message, {"path": loser, "winner": winner, "loser": loser})


def _section(config: Mapping[str, Any]) -> tuple[Mapping[str, Any], str]:
    for name in TEXT_SECTIONS:
        inner = config.get(name)
        if inner is None:
            continue
        if not isinstance(inner, Mapping):
            sentence = "%(part)s must be an object in braces, not %(value)s."
            values = {"part": name, "value": _shown(inner)}
            raise InvalidInput(sentence, path=name, code="invalid_config", values=values)
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
