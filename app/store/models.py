"""The tables. Times are seconds since the epoch, UTC. Rows that tell history are never changed."""

from __future__ import annotations

from typing import Any, ClassVar

from sqlalchemy import JSON, BigInteger, ForeignKey, Index, MetaData, Text, UniqueConstraint, false, true
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column


class Base(DeclarativeBase):
    """Constraint names are fixed so that migrations can address them on every database."""

    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(column_0_label)s",
            "uq": "uq_%(table_name)s_%(column_0_name)s",
            "ck": "ck_%(table_name)s_%(constraint_name)s",
            "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
            "pk": "pk_%(table_name)s",
        }
    )
    type_annotation_map: ClassVar = {dict[str, Any]: JSON, list[Any]: JSON}


class ProfileRow(Base):
    """A profile is a name; its versions carry the content."""

    __tablename__ = "profiles"
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(unique=True)
    created_at: Mapped[float]


class ProfileVersionRow(Base):
    """One immutable version of a profile."""

    __tablename__ = "profile_versions"
    __table_args__ = (UniqueConstraint("profile_id", "number"),)
    id: Mapped[int] = mapped_column(primary_key=True)
    profile_id: Mapped[int] = mapped_column(ForeignKey("profiles.id"), index=True)
    number: Mapped[int]
    created_at: Mapped[float]
    author: Mapped[str]
    comment: Mapped[str] = mapped_column(Text, default="")
    kv_transfer_config: Mapped[dict[str, Any]]
    """The JSON object given to `--kv-transfer-config`; empty = no connector."""
    flags: Mapped[dict[str, Any]]
    """Engine flags by name without dashes in front: `{"max-model-len": 32768, "enforce-eager": true}`."""
    environment: Mapped[dict[str, Any]]
    allow: Mapped[list[Any]] = mapped_column(default=list, server_default="[]")
    """Paths of keys that are right although the deck does not know them."""


class ValidationRow(Base):
    """What a version was checked against, and what came of it. The version itself never changes."""

    __tablename__ = "validations"
    id: Mapped[int] = mapped_column(primary_key=True)
    version_id: Mapped[int] = mapped_column(ForeignKey("profile_versions.id"), index=True)
    at: Mapped[float]
    depth: Mapped[int]
    """1 the text alone, 2 the engine's interpreter, 3 a dry run."""
    against: Mapped[dict[str, Any]]
    """Engine version, interpreter, platform, model."""
    findings: Mapped[list[Any]]
    numbers: Mapped[dict[str, Any]]
    """What a dry run told: block size, groups, KV tokens."""


class FleetRow(Base):
    """The engines that serve one model."""

    __tablename__ = "fleets"
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(unique=True)
    model: Mapped[str]
    """Path or hub name handed to the engine."""
    served_model_name: Mapped[str]
    interpreter: Mapped[str]
    base_flags: Mapped[dict[str, Any]] = mapped_column(default=dict, server_default="{}")
    """Flags of every start; a profile's flag of the same name wins."""
    environment: Mapped[dict[str, Any]] = mapped_column(default=dict, server_default="{}")
    devices: Mapped[list[Any]] = mapped_column(default=list, server_default="[]")
    """Groups of devices, `[["0", "1"], ["2", "3"]]`: one for each engine. Empty = each engine sees all."""
    port_from: Mapped[int | None]
    """Ports for new engines, both ends included; None = from the engine port of the settings upwards."""
    port_to: Mapped[int | None]
    routing: Mapped[str] = mapped_column(default="sticky", server_default="sticky")
    """`sticky`: a session goes where its cache is; `least_busy`."""
    join_identical: Mapped[bool] = mapped_column(default=False, server_default=false())
    """Whether an identical prompt in flight is joined instead of started again."""
    drain_timeout_seconds: Mapped[float | None]
    """None = that of the settings."""
    follows_settings: Mapped[bool] = mapped_column(default=True, server_default=true())
    """While it is the only one: whether the settings' model, interpreter and port are taken up at a deck's start."""
    created_at: Mapped[float]
    retired_at: Mapped[float | None]
    """When it was taken out of service; its rows stay for their history."""


class EngineRow(Base):
    """One supervised engine: what it should be, and which process it last was."""

    __tablename__ = "engines"
    id: Mapped[int] = mapped_column(primary_key=True)
    fleet_id: Mapped[int] = mapped_column(ForeignKey("fleets.id"), index=True)
    name: Mapped[str] = mapped_column(unique=True)
    port: Mapped[int]
    profile_version_id: Mapped[int] = mapped_column(ForeignKey("profile_versions.id"))
    """The version the next start uses."""
    wanted: Mapped[str] = mapped_column(default="running")
    """`running` or `stopped`: what the operator last asked for."""
    state: Mapped[str] = mapped_column(default="stopped")
    state_since: Mapped[float] = mapped_column(default=0.0)
    cause: Mapped[str] = mapped_column(Text, default="")
    pid: Mapped[int | None]
    pid_started_at: Mapped[float | None]
    """Start time of `pid` as the kernel tells it; guards against a reused pid."""
    marker: Mapped[str | None]
    """Value of TIERDECK_ENGINE_MARKER in the environment of every process of this start."""
    running_version_id: Mapped[int | None] = mapped_column(ForeignKey("profile_versions.id"))
    """The version the recorded process was started with."""
    running_with: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    """What its fleet gave the recorded process: model, interpreter, base flags and so on."""
    devices: Mapped[list[Any]] = mapped_column(default=list, server_default="[]")
    """The devices it sees, as the driver numbers or names them; empty = all."""
    created_at: Mapped[float]
    retired_at: Mapped[float | None]
    """When it was taken out of service; its rows stay for their history."""


class RunRow(Base):
    """One start of an engine: with which version, from when to when."""

    __tablename__ = "runs"
    id: Mapped[int] = mapped_column(primary_key=True)
    engine_id: Mapped[int] = mapped_column(ForeignKey("engines.id"), index=True)
    version_id: Mapped[int] = mapped_column(ForeignKey("profile_versions.id"), index=True)
    marker: Mapped[str]
    """Of the start, as on the engine's row while it runs."""
    started_at: Mapped[float]
    ended_at: Mapped[float | None]
    """None while it runs, or when no deck saw its end."""


class TransitionRow(Base):
    """A change of an engine's state, with its cause and what it was seen by."""

    __tablename__ = "transitions"
    id: Mapped[int] = mapped_column(primary_key=True)
    engine_id: Mapped[int] = mapped_column(ForeignKey("engines.id"), index=True)
    at: Mapped[float] = mapped_column(index=True)
    old_state: Mapped[str]
    new_state: Mapped[str]
    cause: Mapped[str] = mapped_column(Text)
    evidence: Mapped[dict[str, Any]]


class SeriesRow(Base):
    """One logical series of one engine. `labels` is canonical JSON text, so that it can be unique."""

    __tablename__ = "series"
    __table_args__ = (UniqueConstraint("engine_id", "name", "labels"),)
    id: Mapped[int] = mapped_column(primary_key=True)
    engine_id: Mapped[int] = mapped_column(ForeignKey("engines.id"), index=True)
    name: Mapped[str]
    labels: Mapped[str]
    kind: Mapped[str]
    """`counter` or `gauge`."""


#: SQLite then keeps the rows themselves in key order: a window of a series is one contiguous read.
_CLUSTERED = {"sqlite_with_rowid": False}


class SampleRow(Base):
    """A sample as scraped. Counters carry `total`: the value with all resets undone, never falling."""

    __tablename__ = "samples"
    __table_args__ = _CLUSTERED
    series_id: Mapped[int] = mapped_column(ForeignKey("series.id"), primary_key=True)
    at: Mapped[float] = mapped_column(primary_key=True)
    value: Mapped[float]
    total: Mapped[float]


class MinuteSampleRow(Base):
    """The last sample of a series in a minute; kept longer than `samples`."""

    __tablename__ = "minute_samples"
    __table_args__ = _CLUSTERED
    series_id: Mapped[int] = mapped_column(ForeignKey("series.id"), primary_key=True)
    at: Mapped[float] = mapped_column(primary_key=True)
    """Start of the minute."""
    value: Mapped[float]
    total: Mapped[float]


class ScrapeRow(Base):
    """The outcome of the scrapes of an engine, one row for each run of equal outcomes."""

    __tablename__ = "scrapes"
    __table_args__ = (Index("ix_scrapes_engine_id_first_at", "engine_id", "first_at"),)
    id: Mapped[int] = mapped_column(primary_key=True)
    engine_id: Mapped[int] = mapped_column(ForeignKey("engines.id"))
    first_at: Mapped[float]
    last_at: Mapped[float]
    ok: Mapped[bool]
    reason: Mapped[str] = mapped_column(Text, default="")


class MarkRow(Base):
    """Something to be drawn on every chart: a restart, a counter reset, a rollout, an alert."""

    __tablename__ = "marks"
    id: Mapped[int] = mapped_column(primary_key=True)
    engine_id: Mapped[int | None] = mapped_column(ForeignKey("engines.id"), index=True)
    at: Mapped[float] = mapped_column(index=True)
    kind: Mapped[str]
    """`restart`, `reset`, `rollout`, `alert`, `data_fault`."""
    text: Mapped[str] = mapped_column(Text)


class RolloutRow(Base):
    """The application of one profile version to a fleet."""

    __tablename__ = "rollouts"
    id: Mapped[int] = mapped_column(primary_key=True)
    fleet_id: Mapped[int] = mapped_column(ForeignKey("fleets.id"), index=True)
    version_id: Mapped[int] = mapped_column(ForeignKey("profile_versions.id"))
    previous_version_id: Mapped[int | None] = mapped_column(ForeignKey("profile_versions.id"))
    strategy: Mapped[str]
    state: Mapped[str]
    """`running`, `done`, `rolled_back`, `failed`, `cancelled`."""
    step: Mapped[str] = mapped_column(default="")
    reason: Mapped[str] = mapped_column(Text, default="")
    author: Mapped[str]
    started_at: Mapped[float]
    ended_at: Mapped[float | None]
    wish: Mapped[str] = mapped_column(default="", server_default="")
    """`cancel` or `rollback`, once it was asked for; then `wish_by` says by whom."""
    wish_by: Mapped[str] = mapped_column(default="", server_default="")
    drain_timeout_seconds: Mapped[float | None]
    """Longest wait for the requests in flight on an engine."""
    said: Mapped[dict[str, Any]] = mapped_column(default=dict, server_default="{}")
    """Sentences as `{"sentence": template, "values": {}}`: `reason`, `drain_timeout`."""


class RolloutTurnRow(Base):
    """An engine's part in a rollout. Turns are taken by `position`."""

    __tablename__ = "rollout_turns"
    __table_args__ = (UniqueConstraint("rollout_id", "engine_id"),)
    id: Mapped[int] = mapped_column(primary_key=True)
    rollout_id: Mapped[int] = mapped_column(ForeignKey("rollouts.id"), index=True)
    engine_id: Mapped[int] = mapped_column(ForeignKey("engines.id"), index=True)
    position: Mapped[int]
    before_id: Mapped[int] = mapped_column(ForeignKey("profile_versions.id"))
    """The version to go back to."""
    stopped_on_purpose: Mapped[bool]
    """Then it only takes the version, for its next start."""
    successor: Mapped[str] = mapped_column(default="", server_default="")
    """Name of the engine that takes its place, written before that is made; empty where it keeps its place."""


class RolloutStepRow(Base):
    """A step of an engine's turn, written before it is taken."""

    __tablename__ = "rollout_steps"
    __table_args__ = (UniqueConstraint("turn_id", "way", "step"),)
    id: Mapped[int] = mapped_column(primary_key=True)
    turn_id: Mapped[int] = mapped_column(ForeignKey("rollout_turns.id"), index=True)
    way: Mapped[str]
    """`forward` to the new version, `back` to the one before."""
    step: Mapped[str]
    """`check`, `drain`, `stop`, `memory`, `start`, `ready`, `canary`, `release`."""
    state: Mapped[str]
    """`working`, `done`, `failed`, `skipped`; a step without a row waits."""
    started_at: Mapped[float]
    ended_at: Mapped[float | None]
    said: Mapped[dict[str, Any]] = mapped_column(default=dict, server_default="{}")
    """What came of it: `{"sentence": template, "values": {}}`."""


class RolloutLogRow(Base):
    """A line of a rollout's log."""

    __tablename__ = "rollout_log"
    id: Mapped[int] = mapped_column(primary_key=True)
    rollout_id: Mapped[int] = mapped_column(ForeignKey("rollouts.id"), index=True)
    at: Mapped[float]
    engine: Mapped[str] = mapped_column(default="")
    """Its name; empty = of the rollout as a whole."""
    said: Mapped[dict[str, Any]]


class AlertRuleRow(Base):
    """A rule and its parameters (thresholds, hold times) as JSON."""

    __tablename__ = "alert_rules"
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(unique=True)
    kind: Mapped[str]
    parameters: Mapped[dict[str, Any]]
    enabled: Mapped[bool] = mapped_column(default=True)
    created_at: Mapped[float]


class AlertStateRow(Base):
    """The memory of one rule on one fleet; survives a restart of the deck."""

    __tablename__ = "alert_states"
    rule_id: Mapped[int] = mapped_column(ForeignKey("alert_rules.id"), primary_key=True)
    fleet_id: Mapped[int] = mapped_column(ForeignKey("fleets.id"), primary_key=True)
    state: Mapped[dict[str, Any]]
    updated_at: Mapped[float]


class FlipRow(Base):
    """An alert that changed (`ok` -> `firing`, `firing` -> `ok`, `test`); what webhooks tell."""

    __tablename__ = "flips"
    id: Mapped[int] = mapped_column(primary_key=True)
    rule_id: Mapped[int | None] = mapped_column(ForeignKey("alert_rules.id"), index=True)
    fleet_id: Mapped[int | None] = mapped_column(ForeignKey("fleets.id"))
    at: Mapped[float] = mapped_column(index=True)
    old: Mapped[str]
    new: Mapped[str]
    sentence: Mapped[str] = mapped_column(Text)
    evidence: Mapped[dict[str, Any]]


class WebhookRow(Base):
    """Where flips are sent. `secret` signs the body; it is never shown again."""

    __tablename__ = "webhooks"
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(unique=True)
    channel: Mapped[str]
    """`generic`, `slack`, `discord`, `feishu`, `dingtalk`."""
    url: Mapped[str] = mapped_column(Text)
    secret: Mapped[str | None]
    keyword: Mapped[str] = mapped_column(default="")
    enabled: Mapped[bool] = mapped_column(default=True)
    created_at: Mapped[float]


class DeliveryRow(Base):
    """One flip for one webhook. Claimed by compare-and-set on `state`."""

    __tablename__ = "deliveries"
    __table_args__ = (UniqueConstraint("flip_id", "webhook_id"),)
    id: Mapped[int] = mapped_column(primary_key=True)
    flip_id: Mapped[int] = mapped_column(ForeignKey("flips.id"), index=True)
    webhook_id: Mapped[int] = mapped_column(ForeignKey("webhooks.id"), index=True)
    state: Mapped[str] = mapped_column(default="pending", index=True)
    """`pending`, `sending`, `delivered`, `failed`."""
    attempts: Mapped[int] = mapped_column(default=0)
    next_at: Mapped[float]
    last_at: Mapped[float | None]
    status: Mapped[int | None]
    answer: Mapped[str] = mapped_column(Text, default="")


class RequestRow(Base):
    """One request at the door, written when it ended. Names, not ids: the row outlives what it names."""

    __tablename__ = "requests"
    __table_args__ = (Index("ix_requests_session_id", "session", "id"),)
    id: Mapped[int] = mapped_column(primary_key=True)
    at: Mapped[float] = mapped_column(index=True)
    """When its head was read."""
    path: Mapped[str]
    model: Mapped[str | None]
    fleet: Mapped[str | None]
    engine: Mapped[str | None]
    profile: Mapped[str | None]
    version: Mapped[int | None]
    session: Mapped[str | None]
    """As the client named it, else `prompt:` and a hash of the prompt's beginning."""
    request_id: Mapped[str | None]
    """What the engine calls it: the `X-Request-Id` that it was sent, or, of a response, its id."""
    outcome: Mapped[str]
    """`done`, `refused`, `client_closed`, `upstream_closed`, `upstream_error`, `interrupted`."""
    status: Mapped[int | None]
    streams: Mapped[bool]
    is_identical: Mapped[bool]
    """The same prompt was in flight already."""
    is_joined: Mapped[bool]
    """It was given that one's answer."""
    input_tokens: Mapped[int | None]
    """Counts of tokens are the engine's; None = it did not say."""
    output_tokens: Mapped[int | None]
    cached_tokens: Mapped[int | None]
    """Of the input, from VRAM and from host memory together."""
    vram_tokens: Mapped[int | None]
    host_tokens: Mapped[int | None]
    queue_seconds: Mapped[float | None]
    first_byte_seconds: Mapped[float | None]
    total_seconds: Mapped[float]
    sent_bytes: Mapped[int] = mapped_column(BigInteger)
