"""The host tier's two pools: how full, and what had to leave. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from app.scrape.names import SeriesKey

TOKEN, STATE = "token", "state"


@dataclass(frozen=True)
class SlotUse:
    """Slots used and there, by pool, and evictions of the last minutes by pool and reason.

    None where the engine does not tell.
    """

    token_used: float | None = None
    token_total: float | None = None
    state_used: float | None = None
    state_total: float | None = None
    evictions: Mapping[str, Mapping[str, float]] | None = None
    evictions_window_seconds: float = 300.0

    @property
    def token_share(self) -> float | None:
        """Token slots used, 0-1."""
        return ratio(self.token_used, self.token_total)

    @property
    def state_share(self) -> float | None:
        """State slots used, 0-1."""
        return ratio(self.state_used, self.state_total)

    def evicted(self, pool: str) -> float | None:
        """All evictions from a pool, whatever the reason."""
        return None if self.evictions is None else sum(self.evictions.get(pool, {}).values())


def slot_use(gauges: Mapping[SeriesKey, float], increases: Mapping[SeriesKey, float], window_seconds: float) -> SlotUse:
    """Read the pools out of one or more engines' gauges and what their counters gained."""
    return SlotUse(
        token_used=pool_sum(gauges, "host_slots_used", TOKEN),
        token_total=pool_sum(gauges, "host_slots", TOKEN),
        state_used=pool_sum(gauges, "host_slots_used", STATE),
        state_total=pool_sum(gauges, "host_slots", STATE),
        evictions=_evictions(increases),
        evictions_window_seconds=window_seconds,
    )


def pool_sum(gauges: Mapping[SeriesKey, float], name: str, pool: str) -> float | None:
    """The sum of a gauge over the groups of a pool; None when it is not there."""
    values = [value for key, value in gauges.items() if key.name == name and key.label("pool") == pool]
    return sum(values) if values else None


def ratio(part: float | None, whole: float | None) -> float | None:
    """`part` of `whole`, 0-1; None when either is missing or there is no whole."""
    return None if part is None or not whole else part / whole


def add_gauges(engines: Iterable[Mapping[SeriesKey, float]]) -> dict[SeriesKey, float]:
    """Engine by engine, the same series added up."""
    total: dict[SeriesKey, float] = {}
    for gauges in engines:
        for key, value in gauges.items():
            total[key] = total.get(key, 0.0) + value
    return total


def _evictions(increases: Mapping[SeriesKey, float]) -> dict[str, dict[str, float]] | None:
    by_pool: dict[str, dict[str, float]] = {}
    for key, gained in increases.items():
        if key.name == "host_evictions":
            reasons = by_pool.setdefault(key.label("pool"), {})
            reasons[key.label("reason")] = reasons.get(key.label("reason"), 0.0) + gained
    return by_pool or None
