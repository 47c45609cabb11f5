"""The answer to one client: what was said so far, and how more may be said.

A streaming client that waits in line for long is given a beginning, so that neither it nor what is in
between takes the silence for a dead connection. From then on the status is said: whatever goes wrong
comes as an event, in the shape that its SDK raises an error from.
"""

from __future__ import annotations

import time

from app.errors import EngineFault, TierdeckError
from app.proxy.answers import error_event, send_error, sentence_of
from app.proxy.asgi import Send
from app.proxy.headers import RawHeaders, is_event_stream, is_plain
from app.proxy.keepalive import COMMENT
from app.proxy.record import Record
from app.proxy.usage import Tail
from app.supervisor.status import EngineStatus

EARLY_HEADERS: RawHeaders = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
#: Of an engine's error behind an early beginning; its sentence is in there.
MAX_ERROR_BYTES = 64 * 1024


class Outgoing:
    """Where an exchange's answer goes."""

    def __init__(self, send: Send, path: str, record: Record, keepalive_seconds: float) -> None:
        self._send = send
        self._path = path
        self._record = record
        self._keepalive_seconds = keepalive_seconds
        self.early_after_seconds: float | None = None
        """So long in line, it is begun before the engine did; None = never."""
        self._sign_due_at: float | None = None
        self._is_early = False
        self._refused: bytearray | None = None
        """The engine's error, while it comes in behind an early beginning."""
        self.has_begun = False
        self.is_complete = False
        """The last of the engine's answer was handed over; nothing that comes now can spoil it."""
        self.tail = Tail()
        self._is_readable = True

    def in_line(self) -> None:
        """The client has no engine yet: count the silence from now."""
        if self.early_after_seconds is not None and self._sign_due_at is None:
            self._sign_due_at = time.monotonic() + self.early_after_seconds

    def seconds_to_sign(self) -> float | None:
        """After so long a silence `sign` has something to do; None = never."""
        return None if self._sign_due_at is None else max(0.0, self._sign_due_at - time.monotonic())

    async def sign(self) -> None:
        """Give a client in line a sign of life when it is due."""
        if self._sign_due_at is None or time.monotonic() < self._sign_due_at:
            return
        if not self.has_begun:
            self._is_early = self.has_begun = True
            await self._send({"type": "http.response.start", "status": 200, "headers": EARLY_HEADERS})
        await self._send({"type": "http.response.body", "body": COMMENT, "more_body": True})
        self._sign_due_at = time.monotonic() + self._keepalive_seconds

    async def routed(self, engine: EngineStatus, request_id: str) -> None:
        """An engine was found."""
        self._sign_due_at = None
        self._record.queued(engine, request_id)

    async def begin(self, status: int, headers: RawHeaders) -> None:
        """The engine's status and headers."""
        self._record.status = status
        self._is_readable = is_plain(headers)
        if self._is_early:
            if status != 200 or not is_event_stream(headers):
                self._refused = bytearray()
            return
        self.has_begun = True
        await self._send({"type": "http.response.start", "status": status, "headers": headers})

    async def piece(self, piece: bytes, more: bool) -> None:
        """Some of the engine's body."""
        if piece:
            self._record.passed(len(piece))
            if self._is_readable:
                self.tail.add(piece)
        if self._refused is None:
            await self._send({"type": "http.response.body", "body": piece, "more_body": more})
        else:
            await self._gather(self._refused, piece, more)
        self.is_complete = not more

    async def comment(self) -> None:
        """A sign of life between two events."""
        await self._send({"type": "http.response.body", "body": COMMENT, "more_body": True})

    async def fail(self, error: TierdeckError) -> None:
        """Tell the client, unless the engine's answer has begun: then returning breaks it off, visibly."""
        if not self.has_begun:
            self.has_begun, self._record.status = True, error.status
            self._record.sent_bytes = await send_error(self._send, error, self._path)
        elif self._is_early and self._record.status is None:
            self._record.status, event = error.status, error_event(error, self._path)
            await self._send({"type": "http.response.body", "body": event})
            self._record.sent_bytes = len(event)

    async def _gather(self, refused: bytearray, piece: bytes, more: bool) -> None:
        refused += piece[: MAX_ERROR_BYTES - len(refused)]
        if not more:
            error = EngineFault(sentence_of(bytes(refused)), code=f"engine_answered_{self._record.status}")
            await self._send({"type": "http.response.body", "body": error_event(error, self._path)})
