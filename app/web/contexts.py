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
    DeliveryLine,
    EngineAction,
    EngineLine,
    Fact,
    FiringAlert,
    FlipLine,
    Move,
    RuleForm,
    Sentence,
    Share,
    Shell,
    StateBadge,
    Tile,
    WebhookLine,
)
from app.web.fleet_blocks import FleetBlock, FleetButton
from app.web.plan_blocks import PlanFault, PlanGroup, PlanResult, Remark, SlotsBlock
from app.web.profile_blocks import (
    Comparison,
    FieldChange,
    FleetTarget,
    FormGroup,
    PresetLine,
    PreviewEngine,
    PreviewFact,
    ProfileLine,
    RolloutBlock,
    RunLine,
    StrategyLine,
    VersionLine,
)
from app.web.request_blocks import RequestLine
from app.web.rollout_blocks import ClientFact, RolloutAct, RolloutLine, RolloutLogLine, TurnRow


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
    faults: tuple[str, ...]
    """What the deck itself does not get on with, as sentences."""
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
class FleetsPage(Page):
    """/fleets: what each fleet is set to, its engines, and what can be done."""

    template = "fleets.html"
    refresh_href: str
    fleets: tuple[FleetBlock, ...]
    profiles: tuple[Choice, ...]
    routings: tuple[Choice, ...]
    new: FleetButton


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
class DraftPlanPage(Page):
    """What a profile buys as it is typed, a part of the editor's page."""

    template = "draft_plan.html"
    origin: str
    session_tokens: int
    """How long the sessions are that are counted."""
    slots: SlotsBlock | None
    missing: str
    """Why there are no slots."""
    remarks: tuple[Remark, ...]


@dataclass(frozen=True)
class RolloutPreviewPage(Page):
    """What applying a version would do, a part of the dialog that asks before it is done."""

    template = "rollout_preview.html"
    fleet: str
    replaces: str
    changes: tuple[FieldChange, ...]
    means: tuple[FieldChange, ...]
    strategies: tuple[StrategyLine, ...]
    engines: tuple[PreviewEngine, ...]
    facts: tuple[PreviewFact, ...]
    drain_seconds: str


@dataclass(frozen=True)
class RolloutsPage(Page):
    """/rollouts: what was applied, when, and what came of it."""

    template = "rollouts.html"
    refresh_href: str
    rollouts: tuple[RolloutLine, ...]


@dataclass(frozen=True)
class RolloutPage(Page):
    """/rollouts/{rollout_id}: engines as rows, steps as columns, what clients feel, the log."""

    template = "rollout.html"
    refresh_href: str
    is_running: bool
    rollout: RolloutLine
    profile_href: str
    waits_for: str
    limit: str
    columns: tuple[str, ...]
    rows: tuple[TurnRow, ...]
    clients: tuple[ClientFact, ...]
    acts: tuple[RolloutAct, ...]
    log: tuple[RolloutLogLine, ...]
    """Newest first."""


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
class RequestsPage(Page):
    """/requests: what was asked, who served it, where its input came from, how it ended."""

    template = "requests.html"
    refresh_href: str
    is_newest: bool
    """False on a page of older ones: nothing new appears there."""
    now: tuple[Fact, ...]
    fleets: tuple[Choice, ...]
    engines: tuple[Choice, ...]
    """Empty while there is nothing to choose between; fleets likewise."""
    outcomes: tuple[Choice, ...]
    session: str
    is_filtered: bool
    all_href: str
    requests: tuple[RequestLine, ...]
    newest_href: str
    older_href: str
    cached_missing: str
    """The flag that makes the engines tell what was cached, when none of them does."""
    api_href: str


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
