"""What the profile pages are made of: frozen, ready to be shown, every word already in the reader's language."""

from __future__ import annotations

from dataclasses import dataclass

from app.web.blocks import StateBadge


@dataclass(frozen=True)
class RunsOn:
    """An engine with a version; `badge` is its state where that is not ready."""

    engine: str
    href: str
    version: int
    badge: StateBadge | None


@dataclass(frozen=True)
class ProfileLine:
    """A profile in the list."""

    name: str
    href: str
    latest: int
    saved_at: float
    author: str
    comment: str
    runs_on: tuple[RunsOn, ...]


@dataclass(frozen=True)
class VersionLine:
    """A version in a profile's history."""

    number: int
    href: str
    compare_href: str
    saved_at: float
    author: str
    comment: str
    runs_on: tuple[RunsOn, ...]
    is_shown: bool
    checks: tuple[CheckLine, ...] = ()


@dataclass(frozen=True)
class FieldChange:
    """A field that differs between two versions; empty text = absent on that side."""

    path: str
    old: str
    new: str
    is_added: bool
    is_removed: bool


@dataclass(frozen=True)
class Comparison:
    """Two versions field by field, also of two profiles."""

    heading: str
    changes: tuple[FieldChange, ...]
    consequences: tuple[FieldChange, ...] = ()
    """What the change means in tokens, sessions and bytes."""


@dataclass(frozen=True)
class FormField:
    """A field of the editor. `pointer` is where its value stands in the profile; `kind` how it is written."""

    key: str
    pointer: str
    kind: str
    help: str
    unit: str = ""
    example: str = ""
    choices: tuple[str, ...] = ()
    least: str = ""
    most: str = ""
    step: str = "1"


@dataclass(frozen=True)
class FormGroup:
    """Fields under one heading."""

    heading: str
    fields: tuple[FormField, ...]


@dataclass(frozen=True)
class PresetLine:
    """A profile that ships. `content` is what the editor is filled with, as JSON."""

    key: str
    label: str
    sentence: str
    content: str


@dataclass(frozen=True)
class RunLine:
    """A start of an engine with a version. `numbers` tells what came from where meanwhile; empty = not known."""

    version: int
    href: str
    engine: str
    engine_href: str
    started_at: float
    ended_at: float | None
    numbers: str


@dataclass(frozen=True)
class CheckLine:
    """What a version was checked against."""

    at: float
    tone: str
    label: str
    text: str


@dataclass(frozen=True)
class FleetTarget:
    """A fleet that a version can be applied to; what that would do is asked for when it is about to be done."""

    fleet: str
    label: str
    runs: str
    """The version it has; while none runs, the one of its next start."""
    on_it: str
    """That it has this version, and whether it serves with it; empty when it has another."""
    button: str


@dataclass(frozen=True)
class StrategyLine:
    """A way to apply a version. `sentence` says what it means, or why it is not open."""

    name: str
    label: str
    sentence: str
    is_open: bool
    is_chosen: bool


@dataclass(frozen=True)
class PreviewEngine:
    """An engine that a rollout would restart, in its order."""

    name: str
    href: str
    badge: StateBadge
    runs: str
    what: str


@dataclass(frozen=True)
class PreviewFact:
    """One thing to know before; `tone` where it is good or bad news."""

    label: str
    sentence: str
    tone: str = ""


@dataclass(frozen=True)
class RolloutEngine:
    """An engine of a rollout's fleet as it is now."""

    name: str
    href: str
    badge: StateBadge
    phase: str
    progress: float | None


@dataclass(frozen=True)
class RolloutBlock:
    """A rollout of this profile, live."""

    id: int
    fleet: str
    version: int
    previous: str
    state: str
    tone: str
    label: str
    step: str
    reason: str
    started_at: float
    ended_at: float | None
    engines: tuple[RolloutEngine, ...]
