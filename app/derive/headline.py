"""Which sentence stands on top of the overview. Pure; the words are the web layer's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from app.derive.origin import UNKNOWN, Origin
from app.derive.slots import STATE, SlotUse

Severity = Literal["good", "idle", "warning", "empty", "down"]

#: Below this share of cached input the cache is called cold.
COLD_SHARE = 0.25
#: Less input than this says nothing about the cache: the check that an engine serves is itself a prompt.
FEW_TOKENS = 1000
#: State slots used from which on every new session pushes an old one out.
FULL_SHARE = 0.95
#: Stored without one byte coming back: enough to say that the tier is only written.
WRITE_ONLY_BYTES = 1e9


@dataclass(frozen=True)
class Headline:
    """The state the sentence is about. `values` are raw numbers, times and names for its words."""

    severity: Severity
    code: str
    values: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class EngineCounts:
    """How many engines are in which kind of state."""

    serving: int = 0
    starting: int = 0
    stalled: int = 0
    stopped: int = 0
    broken: int = 0
    """Failed, or waiting to be tried again."""

    @property
    def all(self) -> int:
        """Every engine."""
        return self.serving + self.starting + self.stalled + self.stopped + self.broken


@dataclass(frozen=True)
class Outage:
    """Numbers that stopped coming: since when and why."""

    since: float
    reason: str


@dataclass(frozen=True)
class LastTraffic:
    """The last time tokens came in, and how much of the input before it was cached."""

    at: float
    cached_share: float | None


@dataclass(frozen=True)
class Facts:
    """What the sentence is decided from. Bytes and queries are what the window gained."""

    window_seconds: float
    engines: EngineCounts
    down_since: float | None = None
    down_cause: str = ""
    outage: Outage | None = None
    origin: Origin = UNKNOWN
    complete: bool = False
    reason: str | None = None
    last_traffic: LastTraffic | None = None
    slots: SlotUse = field(default_factory=SlotUse)
    stored_bytes: float | None = None
    loaded_bytes: float | None = None
    external_queries: float | None = None
    kv_cache_dtype: str = "auto"


def headline(facts: Facts) -> Headline:
    """The first state that holds, most harmful first."""
    for decide in (_not_serving, _no_numbers, _state_slots_full, _write_only_tier, _no_traffic):
        found = decide(facts)
        if found is not None:
            return found
    return _traffic(facts)


def is_write_only(facts: Facts) -> bool:
    """Stores flow and nothing ever comes back although the tier is asked.

    A load counter that is missing beside a store counter has not been counted up yet: zero. Without
    either nothing is known.
    """
    if facts.stored_bytes is None or not facts.external_queries:
        return False
    return facts.stored_bytes > WRITE_ONLY_BYTES and not facts.loaded_bytes


def _not_serving(facts: Facts) -> Headline | None:
    engines = facts.engines
    if engines.all == 0:
        return Headline("empty", "no_engine")
    if engines.serving:
        return None
    values = {"since": facts.down_since, "cause": facts.down_cause, "engines": engines.all}
    if engines.stalled:
        return Headline("down", "stalled", values)
    if engines.starting:
        return Headline("idle", "starting", values)
    if engines.broken:
        return Headline("down", "down", {**values, "reason": "not_running"})
    return Headline("idle", "stopped", values)


def _no_numbers(facts: Facts) -> Headline | None:
    if facts.outage is not None:
        values = {"since": facts.outage.since, "cause": facts.outage.reason, "reason": "scrape_failed"}
        return Headline("down", "down", values)
    if facts.reason == "no_requests_yet":
        return Headline("empty", "empty")
    if facts.origin.input is None:
        return Headline("empty", "no_data", {"reason": facts.reason})
    return None


def _state_slots_full(facts: Facts) -> Headline | None:
    share, evicted = facts.slots.state_share, facts.slots.evicted(STATE)
    if share is None or share <= FULL_SHARE or not evicted or not facts.origin.avoidable:
        return None
    values = {
        "state_share": share,
        "state_used": facts.slots.state_used,
        "state_total": facts.slots.state_total,
        "evictions_per_minute": evicted * 60 / facts.slots.evictions_window_seconds,
        "avoidable_tokens": facts.origin.avoidable,
        **_origin_values(facts),
    }
    return Headline("warning", "state_slots_full", values)


def _write_only_tier(facts: Facts) -> Headline | None:
    if not is_write_only(facts):
        return None
    values = {
        "stored_bytes": facts.stored_bytes,
        "external_queries": facts.external_queries,
        "kv_cache_dtype": facts.kv_cache_dtype,
        **_origin_values(facts),
    }
    return Headline("warning", "write_only_tier", values)


def _no_traffic(facts: Facts) -> Headline | None:
    if facts.origin.input:
        return None
    last = facts.last_traffic
    values = {"last_at": last and last.at, "last_cached_share": last and last.cached_share}
    return Headline("idle", "idle", {**values, "window_seconds": facts.window_seconds})


def _traffic(facts: Facts) -> Headline:
    share = facts.origin.cached_share
    is_cold = share is not None and share < COLD_SHARE
    if is_cold and (facts.origin.input or 0) < FEW_TOKENS:
        return Headline("empty", "few_tokens", _origin_values(facts))
    return Headline("warning" if is_cold else "good", "cold" if is_cold else "works", _origin_values(facts))


def _origin_values(facts: Facts) -> dict[str, Any]:
    part, total = facts.origin, facts.origin.input
    return {
        "cached_share": part.cached_share,
        "vram_share": part.vram / total if total and part.vram is not None else None,
        "host_share": part.host / total if total and part.host is not None else None,
        "input_tokens": total,
        "complete": facts.complete,
        "window_seconds": facts.window_seconds,
    }
