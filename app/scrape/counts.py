"""What a page says of an engine's life, for who watches over it."""

from __future__ import annotations

from typing import Protocol

from app.scrape.names import SeriesKey
from app.scrape.parse import Page
from app.supervisor.liveness import Counts

_TOKENS = ("prompt_tokens", "generation_tokens")


class Watcher(Protocol):
    """Sees every page as it comes (`app.services.engines.Engines`)."""

    def observe(self, name: str, at: float, counts: Counts | None) -> None:
        """What a scrape at `at` told of an engine; None when its numbers did not come."""

    def take_own_tokens(self, name: str) -> int:
        """Input tokens that the deck itself asked the engine for, since the last call; negative: fewer than told."""


class _Nobody:
    def observe(self, name: str, at: float, counts: Counts | None) -> None:
        """Nothing follows."""

    def take_own_tokens(self, name: str) -> int:
        """None."""
        return 0


NOBODY: Watcher = _Nobody()


def counts_of(page: Page | None) -> Counts | None:
    """Requests and tokens; None without a page, or when one of them is not on it. Pure."""
    if page is None:
        return None
    running, waiting = page.gauge("requests_running"), page.gauge("requests_waiting")
    tokens = [page.counters.get(SeriesKey(name)) for name in _TOKENS]
    known = [value for value in tokens if value is not None]
    if running is None or waiting is None or not known:
        return None
    return Counts(running, waiting, sum(known))
