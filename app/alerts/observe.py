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


EXPECTED = frozenset({"starting", "stopping"})
"""Reasons of failed scrapes that are part of an engine's life."""

_WORDS = {
    "no_engine": "the fleet has no engine",
    "scrape_failed": "scrapes failed in the window",
    "starting": "the engine is starting",
    "no_data": "nothing was scraped in the window",
    "not_running": "the engine does not run",
    "missing_metric": "the engine does not tell where its input tokens came from",
}


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
    if newest.reason in EXPECTED:
        return f"{newest.engine} is {newest.reason}"
    cause = f": {newest.reason}" if newest.reason else ""
    return f"scrape of {newest.engine} failed since {moment(newest.first_at)}{cause}"


def unknown(at: float, reason: str) -> Observation:
    """Nothing is known, and why."""
    return Observation(at, None, None, None, reason)


def from_origin(at: float, origin: Origin) -> Observation:
    """The shares of the window. Without input there are none: 0 of 0 is not 0."""
    tokens = origin.input_tokens
    if tokens is None:
        return unknown(at, _in_words(origin.reason))
    host, recomputed = _share(origin.host_tokens, tokens), _share(origin.recomputed_tokens, tokens)
    return Observation(at, host, recomputed, round(tokens), origin.reason and _in_words(origin.reason))


def _share(part: float | None, whole: float) -> float | None:
    return part / whole if part is not None and whole > 0 else None


def _in_words(code: str | None) -> str:
    """A reason code of the charts as a part of a sentence."""
    return _WORDS.get(code or "", code or "the numbers of the window are not known")
