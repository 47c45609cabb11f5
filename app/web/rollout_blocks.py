"""What the rollouts' pages are made of."""

from __future__ import annotations

from dataclasses import dataclass

from app.web.blocks import StateBadge
from app.web.formats import Quantity


@dataclass(frozen=True)
class StepCell:
    """A step of an engine: `tone` and `label` say its state, `detail` what comes of it."""

    state: str
    tone: str
    label: str
    detail: str
    lasted: Quantity
    progress: float | None


@dataclass(frozen=True)
class TurnRow:
    """An engine on its way to the new version, or back. `cells` have the order of the columns; None = no such step."""

    key: str
    engine: str
    href: str
    is_back: bool
    successor: str
    """The engine that takes its place; empty where it keeps it."""
    badge: StateBadge
    runs: str
    cells: tuple[StepCell | None, ...]


@dataclass(frozen=True)
class RolloutLogLine:
    """A line of the log; `engine` is empty for what concerns the whole."""

    at: float
    engine: str
    text: str
    is_bad: bool


@dataclass(frozen=True)
class RolloutAct:
    """A button of the page, and what it asks before."""

    verb: str
    label: str
    heading: str
    sentence: str
    confirm: str


@dataclass(frozen=True)
class ClientFact:
    """What clients feel: a number, and whether it is bad news."""

    label: str
    value: Quantity
    tone: str = ""


@dataclass(frozen=True)
class RolloutLine:
    """A rollout in the list."""

    id: int
    href: str
    fleet: str
    version: str
    previous: str
    strategy: str
    tone: str
    label: str
    step: str
    reason: str
    author: str
    started_at: float
    lasted: Quantity
