"""What is kept of one request at the door: how long each part took and how it ended."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import structlog

from app.proxy.usage import Usage
from app.supervisor.status import EngineStatus

log = structlog.get_logger(__name__)

NO_USAGE = Usage()
#: What of a record is in its line of the log.
LINE = (
    "method",
    "path",
    "status",
    "fleet",
    "engine",
    "session",
    "request_id",
    "is_identical",
    "is_joined",
    "queue_seconds",
    "first_byte_seconds",
    "total_seconds",
)


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
    at: float = field(default_factory=time.time)
    outcome: Outcome = Outcome.INTERRUPTED
    status: int | None = None
    fleet: str | None = None
    engine: str | None = None
    profile: str | None = None
    version: int | None = None
    model: str | None = None
    session: str | None = None
    request_id: str | None = None
    """What its engine calls it; None while it has none.
    Where another one's answer was joined, that one's."""
    streams: bool = False
    is_identical: bool = False
    """The same prompt was in flight already."""
    is_joined: bool = False
    """It was given that one's answer; the engine never saw it."""
    queue_seconds: float | None = None
    first_byte_seconds: float | None = None
    total_seconds: float | None = None
    sent_bytes: int = 0
    """Of the engine's body, or of the error that the door told instead."""
    usage: Usage = NO_USAGE
    _started: float = field(default_factory=time.monotonic)

    def queued(self, engine: EngineStatus, request_id: str) -> None:
        """An engine was found; `request_id` is what it is sent as `X-Request-Id`."""
        self.request_id = request_id
        self.fleet, self.engine = engine.fleet, engine.name
        self.profile, self.version = engine.wanted_profile, engine.running_version
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
        values: dict[str, Any] = {name: getattr(self, name) for name in LINE}
        rounded = {name: round(v, 4) if isinstance(v, float) else v for name, v in values.items()}
        kept = {name: value for name, value in rounded.items() if value is not None and value is not False}
        counts = {name: value for name, value in vars(self.usage).items() if value is not None}
        return {**kept, **counts, "sent_bytes": self.sent_bytes, "outcome": self.outcome.value}

    def _elapsed(self) -> float:
        return time.monotonic() - self._started
