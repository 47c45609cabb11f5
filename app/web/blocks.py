"""What pages are made of: frozen, ready to be shown, every word already in the reader's language."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from app.web.formats import Change, Quantity

Severity = Literal["good", "idle", "warning", "failed", "empty"]


@dataclass(frozen=True)
class NavItem:
    """An entry of the rail. `icon` names a symbol in the sprite."""

    label: str
    href: str
    icon: str
    is_current: bool
    badge: str = ""


@dataclass(frozen=True)
class Choice:
    """One of several values to pick, as a link or an option."""

    value: str
    label: str
    href: str = ""
    is_current: bool = False


@dataclass(frozen=True)
class Shell:
    """What surrounds every page."""

    title: str
    language: str
    language_choices: tuple[Choice, ...]
    theme: str
    theme_choices: tuple[Choice, ...]
    script_messages: str
    address: str
    """Path and query of this page, to come back to."""
    now: float
    nav: tuple[NavItem, ...] = ()
    is_signed_in: bool = True


@dataclass(frozen=True)
class Sentence:
    """The answer to "is it working, and if not, what do I do?"."""

    severity: Severity
    text: str
    detail: str = ""
    at: float | None = None
    """Since when, or when last."""
    action_label: str = ""
    action_href: str = ""


@dataclass(frozen=True)
class FiringAlert:
    """An alert that fires now, told under the sentence."""

    rule: str
    fleet: str
    sentence: str
    since: float | None


@dataclass(frozen=True)
class Tile:
    """A number beside what it was in the window before. `key` is the meaning that colours it."""

    key: str
    label: str
    value: Quantity
    before: Quantity
    change: Change | None
    note: str = ""


@dataclass(frozen=True)
class Share:
    """A part of the input tokens, as a segment of the bar: `start` and `width` in percent."""

    key: str
    label: str
    start: float
    width: float


@dataclass(frozen=True)
class ChartBlock:
    """A chart's frame; its numbers come from /api/v1/series."""

    chart: str
    title: str
    height: int
    help: str


@dataclass(frozen=True)
class StateBadge:
    """An engine's state: `tone` colours it."""

    state: str
    label: str
    tone: Literal["good", "working", "warning", "failed", "off"]


@dataclass(frozen=True)
class EngineLine:
    """An engine in the table of the overview."""

    name: str
    href: str
    fleet: str
    badge: StateBadge
    since: float
    cause: str
    profile: str
    profile_href: str
    uptime: Quantity
    kv: Quantity
    running: Quantity
    waiting: Quantity
    ttft: Quantity
    stale: str
    """Why the numbers are not current; empty when they are."""


@dataclass(frozen=True)
class EngineAction:
    """A button of the engine page. `confirm` is what will happen; `asks_name` for dangerous ones."""

    verb: str
    label: str
    is_enabled: bool
    why_not: str
    confirm: str
    asks_name: bool
    is_primary: bool


@dataclass(frozen=True)
class Move:
    """A line of an engine's timeline."""

    at: float
    badge: StateBadge
    cause: str
    lasted: Quantity


@dataclass(frozen=True)
class Fact:
    """A label and a value."""

    label: str
    value: Quantity
    href: str = ""


@dataclass(frozen=True)
class AlertLine:
    """A rule on a fleet, as it stands."""

    fleet: str
    badge: StateBadge
    since: float | None
    sentence: str


@dataclass(frozen=True)
class RuleField:
    """A threshold of a rule, as a form field."""

    name: str
    label: str
    unit: str
    value: str
    scale: float
    """The parameter's value is the field's times this: thresholds are shown in percent."""


@dataclass(frozen=True)
class RuleForm:
    """A rule with what can be set on it."""

    id: int
    name: str
    explanation: str
    is_enabled: bool
    fields: tuple[RuleField, ...]
    alerts: tuple[AlertLine, ...]


@dataclass(frozen=True)
class FlipLine:
    """A change of an alert."""

    at: float
    rule: str
    fleet: str
    old: StateBadge
    new: StateBadge
    sentence: str


@dataclass(frozen=True)
class WebhookLine:
    """Where alerts are sent. The secret is never shown."""

    id: int
    name: str
    channel: str
    channel_label: str
    url_shown: str
    keyword: str
    has_secret: bool
    is_enabled: bool


@dataclass(frozen=True)
class DeliveryLine:
    """One message to one webhook, and what came back."""

    id: int
    at: float | None
    webhook: str
    about: str
    state: str
    tone: str
    label: str
    attempts: int
    next_at: float | None
    status: str
    answer: str
