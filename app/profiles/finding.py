"""What there is to say about a profile, and the change that one click makes of it. Pure.

A sentence is an English template with `%(name)s` in it, so that the pages can say it in their reader's
language; `message` is the sentence as the API and the command line tell it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Severity = Literal["error", "warning", "note"]

CONFIG = "kv-transfer-config"
EXTRA = f"{CONFIG}.kv_connector_extra_config"
#: Where the parts of a profile are in the document that a fix is about.
POINTERS = {CONFIG: "kv_transfer_config", "flags": "flags", "environment": "environment", "allow": "allow"}


@dataclass(frozen=True)
class Operation:
    """One step of a JSON patch (RFC 6902) on `{kv_transfer_config, flags, environment, allow}`."""

    op: Literal["add", "replace", "remove", "move"]
    path: str
    value: Any = None
    from_: str = ""

    def as_json(self) -> dict[str, Any]:
        """As the RFC writes it."""
        told: dict[str, Any] = {"op": self.op, "path": self.path}
        if self.op == "move":
            told["from"] = self.from_
        elif self.op != "remove":
            told["value"] = self.value
        return told


@dataclass(frozen=True)
class TextEdit:
    """For a text that is not JSON yet: put `text` in the place of what is between two offsets."""

    field: str
    start: int
    end: int
    text: str


@dataclass(frozen=True)
class Fix:
    """A change, with what its button says."""

    label: str
    operations: tuple[Operation, ...] = ()
    edit: TextEdit | None = None
    values: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Finding:
    """One thing to say about a profile. `line` and `column` count from 1, where the text has them."""

    severity: Severity
    path: str
    sentence: str
    line: int | None = None
    column: int | None = None
    values: Mapping[str, Any] = field(default_factory=dict)
    fixes: tuple[Fix, ...] = ()
    """The one to take first."""

    @property
    def message(self) -> str:
        """The sentence in English."""
        return filled(self.sentence, self.values)


def filled(sentence: str, values: Mapping[str, Any]) -> str:
    """A template with its values; without values it is a sentence as it stands."""
    return sentence % values if values else sentence


def error(path: str, sentence: str, *fixes: Fix | None, **values: Any) -> Finding:
    """What forbids saving."""
    return Finding("error", path, sentence, values=values, fixes=_some(fixes))


def warning(path: str, sentence: str, *fixes: Fix | None, **values: Any) -> Finding:
    """What will probably not do what was meant."""
    return Finding("warning", path, sentence, values=values, fixes=_some(fixes))


def note(path: str, sentence: str, *fixes: Fix | None, **values: Any) -> Finding:
    """What is worth knowing."""
    return Finding("note", path, sentence, values=values, fixes=_some(fixes))


def fix(label: str, *operations: Operation, **values: Any) -> Fix:
    """A fix that is a patch."""
    return Fix(label, operations, values=values)


def put(path: str, value: Any) -> Operation:
    """Set the field at a finding's path, whether it is there or not."""
    return Operation("add", pointer(path), value)


def drop(path: str) -> Operation:
    """Take the field away."""
    return Operation("remove", pointer(path))


def rename(path: str, to: str) -> Operation:
    """Move a field to another path."""
    return Operation("move", pointer(to), from_=pointer(path))


def allow(path: str) -> Fix:
    """Let the profile have a key that nobody knows."""
    return fix("Allow this key", put("allow.-", path))


def as_boolean(path: str, value: Any) -> Fix | None:
    """The switch that is meant by a text or number; None where that is not clear."""
    meant = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}.get(str(value).lower())
    return None if meant is None else fix("Write %(near)s", put(path, meant), near="true" if meant else "false")


def pointer(path: str) -> str:
    """`flags.block-size` -> `/flags/block-size`; a key may hold anything but a dot behind the known parts."""
    for part in (EXTRA, *POINTERS):
        if path == part or path.startswith(f"{part}."):
            rest = path[len(part) + 1 :]
            root = f"/{POINTERS[CONFIG]}/kv_connector_extra_config" if part == EXTRA else f"/{POINTERS[part]}"
            return f"{root}/{rest.replace('~', '~0').replace('/', '~1')}" if rest else root
    raise ValueError(f"{path!r} is in no part of a profile")


def has_errors(findings: Iterable[Finding]) -> bool:
    """True when one of them forbids saving."""
    return any(finding.severity == "error" for finding in findings)


def _some(fixes: Iterable[Fix | None]) -> tuple[Fix, ...]:
    return tuple(one for one in fixes if one is not None)
