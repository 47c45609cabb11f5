"""From token origin and scrape outcomes to an observation. Pure.

Token origin over a window still has numbers for minutes after the scrapes began to fail. A rule must not
go on judging those, so whether anything was scraped just now is asked first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from app.alerts.machine import moment
from app.alerts.phrases import Phrase
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


EXPECTED = {"starting": Phrase.ENGINE_STARTING, "stopping": Phrase.ENGINE_STOPPING}
"""Reasons of failed scrapes that are part of an engine's life."""

_WORDS = {
    "no_engine": Phrase.NO_ENGINE,
    "scrape_failed": Phrase.SCRAPES_FAILED,
    "starting": Phrase.STARTING,
    "no_data": Phrase.NOTHING_SCRAPED,
    "not_running": Phrase.NOT_RUNNING,
    "missing_metric": Phrase.MISSING_METRIC,
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
        return Phrase.NEVER_SCRAPED.value
    newest = max(runs, key=lambda run: (run.ok and now - run.last_at <= limit_seconds, run.last_at))
    if now - newest.last_at > limit_seconds:
        return Phrase.NOT_SCRAPED_SINCE % {"engine": newest.engine, "moment": moment(newest.last_at)}
    if newest.ok:
        return None
    if newest.reason in EXPECTED:
        return EXPECTED[newest.reason] % {"engine": newest.engine}
    phrase = Phrase.SCRAPE_FAILED_WITH if newest.reason else Phrase.SCRAPE_FAILED
    return phrase % {"engine": newest.engine, "moment": moment(newest.first_at), "why": newest.reason}


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
    return _WORDS.get(code or "", code or Phrase.UNKNOWN_WINDOW)
