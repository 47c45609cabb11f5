"""Sentences about a rollout, as template and values, so that they are kept once and told in any language. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from app.profiles.finding import filled


@dataclass(frozen=True)
class Said:
    """An English template with `%(name)s` in it, and what belongs there: texts, numbers, other sentences."""

    sentence: str = ""
    values: Mapping[str, Any] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """In English, as the API and the command line tell it."""
        return filled(self.sentence, {name: _text(value) for name, value in self.values.items()})


NOTHING = Said()


def say(sentence: str, **values: Any) -> Said:
    """A sentence with its values."""
    return Said(sentence, values)


def as_json(said: Said) -> dict[str, Any]:
    """A sentence as it is kept."""
    values = {name: as_json(value) if isinstance(value, Said) else value for name, value in said.values.items()}
    return {"sentence": said.sentence, "values": values}


def said_of(kept: Any) -> Said:
    """A sentence that was kept; NOTHING where there is none."""
    if not kept:
        return NOTHING
    values = {name: said_of(value) if isinstance(value, dict) else value for name, value in kept["values"].items()}
    return Said(str(kept["sentence"]), values)


def _text(value: Any) -> Any:
    return value.text if isinstance(value, Said) else value
