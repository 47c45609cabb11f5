"""What is kept of one request at the door: how long each part took and how it ended."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import structlog

log = structlog.get_logger(__name__)


class Outcome(StrEnum):
    """Who ended the exchange."""

    DONE = "done"
    REFUSED = "refused"  # by the door: no engine, too many waiting, body too large
    CLIENT_CLOSED = "client_closed"
    UPSTREAM_CLOSED = "upstream_closed"
    UPSTREAM_ERROR = "upstream_error"
    INTERRUPTED = "interrupted"  # the deck itself is stopping


@dataclass
class Record:
    """Times are seconds since the request's head was read. Neither headers nor bodies are kept."""

    method: str
    path: str
    outcome: Outcome = Outcome.INTERRUPTED
    status: int | None = None
    engine: str | None = None
    queue_seconds: float | None = None
    first_byte_seconds: float | None = None
    total_seconds: float | None = None
    sent_bytes: int = 0
    _started: float = field(default_factory=time.monotonic)

    def queued(self, engine: str) -> None:
        """An engine was found."""
        self.engine = engine
        self.queue_seconds = self._elapsed()

    def passed(self, count: int) -> None:
        """So many bytes of the engine's body are on their way to the client."""
        if self.first_byte_seconds is None:
            self.first_byte_seconds = self._elapsed()
        self.sent_bytes += count

    def close(self) -> None:
        """Write the one line of this request."""
        self.total_seconds = self._elapsed()
        log.info("request", **self.fields())

    def fields(self) -> dict[str, Any]:
        """The line's content; what did not happen is left out."""
        names = ("method", "path", "status", "engine", "queue_seconds", "first_byte_seconds", "total_seconds")
        values = {name: getattr(self, name) for name in names}
        rounded = {name: round(v, 4) if isinstance(v, float) else v for name, v in values.items()}
        kept = {name: value for name, value in rounded.items() if value is not None}
        return {**kept, "sent_bytes": self.sent_bytes, "outcome": self.outcome.value}

    def _elapsed(self) -> float:
        return time.monotonic() - self._started
