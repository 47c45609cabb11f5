"""From token origin and scrape outcomes to an observation. Pure.

Token origin over a window still has numbers for minutes after the scrapes began to fail. A rule must not
go on judging those, so whether anything was scraped just now is asked first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from app.alerts.machine import moment
from app.alerts.rules import Observation


class Origin(Protocol):
    """What is used of `app.services.charts.TokenOrigin`."""

    @property
    def input_tokens(self) -> float | None:
        """All input tokens of the window."""

    @property
    def host_tokens(self) -> float | None:
        """Those served from host memory."""

    @property
    def recomputed_tokens(self) -> float | None:
        """Those served from nowhere."""

    @property
    def reason(self) -> str | None:
        """Why a number is missing."""


@dataclass(frozen=True)
class ScrapeRun:
    """The newest run of equal scrape outcomes of one engine."""

    engine: str
    ok: bool
    first_at: float
    last_at: float
    reason: str


def scrape_gap(runs: Sequence[ScrapeRun], now: float, limit_seconds: float) -> str | None:
    """Why nothing is known of the fleet right now; None when an engine of it was scraped just now."""
    if not runs:
        return "no engine of the fleet has been scraped yet"
    newest = max(runs, key=lambda run: (run.ok and now - run.last_at <= limit_seconds, run.last_at))
    if now - newest.last_at > limit_seconds:
        return f"{newest.engine} has not been scraped since {moment(newest.last_at)}"
    if newest.ok:
        return None
    cause = f": {newest.reason}" if newest.reason else ""
    return f"scrape of {newest.engine} failed since {moment(newest.first_at)}{cause}"


def unknown(at: float, reason: str) -> Observation:
    """Nothing is known, and why."""
    return Observation(at, None, None, None, reason)


def from_origin(at: float, origin: Origin) -> Observation:
    """The shares of the window. Without input there are none: 0 of 0 is not 0."""
    tokens = origin.input_tokens
    if tokens is None:
        return unknown(at, origin.reason or "the input tokens of the window are not known")
    return Observation(
        at, _share(origin.host_tokens, tokens), _share(origin.recomputed_tokens, tokens), round(tokens), origin.reason
    )


def _share(part: float | None, whole: float) -> float | None:
    return part / whole if part is not None and whole > 0 else None
