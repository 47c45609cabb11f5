"""What each page is rendered from: one frozen dataclass per page, its fields the template's names.

A template may use these fields and the globals of `app.web.render`, nothing else; a test holds that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from app.web.blocks import (
    ChartBlock,
    Choice,
    Comparison,
    DeliveryLine,
    EngineAction,
    EngineLine,
    Fact,
    FiringAlert,
    FleetTarget,
    FlipLine,
    FormGroup,
    Move,
    PresetLine,
    ProfileLine,
    RolloutBlock,
    RuleForm,
    RunLine,
    Sentence,
    Share,
    Shell,
    StateBadge,
    Tile,
    VersionLine,
    WebhookLine,
)
from app.web.plan_blocks import PlanFault, PlanGroup, PlanResult


@dataclass(frozen=True)
class Page:
    """What all pages share."""

    template: ClassVar[str]
    refreshed_with: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """Blocks that come along when htmx asks for one, to be put in their places out of band."""
    shell: Shell


@dataclass(frozen=True)
class ErrorPage(Page):
    """Any address: something could not be shown; what, and what to do."""

    template = "error.html"
    status: int
    heading: str
    sentence: str
    advice: str


@dataclass(frozen=True)
class SignInPage(Page):
    """/login: one field and one button."""

    template = "login.html"
    next: str
    token_hint: str
    """Where the token is to be found."""
    error: str = ""


@dataclass(frozen=True)
class OverviewPage(Page):
    """/: is the cache working?"""

    template = "overview.html"
    refreshed_with: ClassVar[Mapping[str, tuple[str, ...]]] = {"vitals": ("engines_table",)}
    refresh_href: str
    windows: tuple[Choice, ...]
    window: str
    fleets: tuple[Choice, ...]
    fleet: str
    sentence: Sentence
    alerts: tuple[FiringAlert, ...]
    tiles: tuple[Tile, ...]
    shares: tuple[Share, ...]
    origin_reason: str
    """Why the tiles have no number, or hold only a part; empty when they do."""
    charts: tuple[ChartBlock, ...]
    engines: tuple[EngineLine, ...]


@dataclass(frozen=True)
class EnginePage(Page):
    """/engines/{name}: its state, what can be done, what it was, its log."""

    template = "engine.html"
    refreshed_with: ClassVar[Mapping[str, tuple[str, ...]]] = {"engine_state": ("engine_moves",)}
    refresh_href: str
    name: str
    badge: StateBadge
    since: float
    cause: str
    advice: str
    phase: str
    progress: float | None
    next_try_at: float | None
    leftover: str
    facts: tuple[Fact, ...]
    actions: tuple[EngineAction, ...]
    moves: tuple[Move, ...]
    log_href: str
    log_file: str


@dataclass(frozen=True)
class ProfilesPage(Page):
    """/profiles: what there is and where it runs."""

    template = "profiles.html"
    refresh_href: str
    profiles: tuple[ProfileLine, ...]
    new_href: str


@dataclass(frozen=True)
class ProfilePage(Page):
    """/profiles/{name} and /new-profile: editor, versions, comparison, applying."""

    template = "profile.html"
    refreshed_with: ClassVar[Mapping[str, tuple[str, ...]]] = {"rollouts": ("versions", "apply", "history")}
    refresh_href: str
    name: str
    is_new: bool
    shown: int
    next_number: int
    kv_transfer_config: str
    flags: str
    environment: str
    allow: str
    """Allowed paths, as a JSON list."""
    fleets: tuple[Choice, ...]
    """The fleets to check against, where there are several."""
    groups: tuple[FormGroup, ...]
    presets: tuple[PresetLine, ...]
    versions: tuple[VersionLine, ...]
    others: tuple[Choice, ...]
    """Versions of other profiles, to compare with."""
    runs: tuple[RunLine, ...]
    comparison: Comparison | None
    targets: tuple[FleetTarget, ...]
    rollouts: tuple[RolloutBlock, ...]


@dataclass(frozen=True)
class PlannerPage(Page):
    """/planner: what a model keeps, whether it fits the card, what a host tier holds of it."""

    template = "planner.html"
    action_href: str
    origin: str
    config: str
    groups: tuple[PlanGroup, ...]
    fault: PlanFault | None
    result: PlanResult | None


@dataclass(frozen=True)
class AlertsPage(Page):
    """/alerts: rules, what changed, and who is told."""

    template = "alerts.html"
    refreshed_with: ClassVar[Mapping[str, tuple[str, ...]]] = {"alert_states": ("flips", "webhooks", "deliveries")}
    refresh_href: str
    rules: tuple[RuleForm, ...]
    flips: tuple[FlipLine, ...]
    webhooks: tuple[WebhookLine, ...]
    deliveries: tuple[DeliveryLine, ...]
    channels: tuple[Choice, ...]


@dataclass(frozen=True)
class DocsPage(Page):
    """/docs: the REST interface."""

    template = "docs.html"
    schema_href: str
