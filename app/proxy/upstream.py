"""What an engine says to one request: HTTP/1.1 as it comes, on llhttp's parser.

Own code, because a general client's layers cost more than all else that the door does for a request.
What is not HTTP by the rules is refused by the parser; what is held is bounded by flow control.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

import httptools

from app.proxy.headers import RawHeaders

#: The status line and headers of an answer; an engine that says more says nonsense.
MAX_HEAD_BYTES = 256 * 1024
#: So much is held for a slow client before the engine is made to wait.
MAX_HELD_BYTES = 256 * 1024


class NotConnected(Exception):
    """The engine took no connection; nothing was sent, the request may go elsewhere."""


class UpstreamClosed(Exception):
    """The engine closed the connection before its answer was complete."""


class UpstreamError(Exception):
    """The engine's answer breaks HTTP's rules."""


class Wire(Protocol):
    """The connection that an answer comes on."""

    def hold(self) -> None:
        """Read no more for now."""
        ...

    def go_on(self) -> None:
        """Read again."""
        ...


class EngineAnswer:
    """Use: `await head()`, then `await read()` until `is_complete` and nothing is held.

    The methods `on_*` are the parser's.
    """

    def __init__(self, wire: Wire, loop: asyncio.AbstractEventLoop, *, is_to_head: bool) -> None:
        self._wire = wire
        self._loop = loop
        self._is_to_head = is_to_head
        self._parser: httptools.HttpResponseParser | None = httptools.HttpResponseParser(self)
        self.status = 0
        self.headers: RawHeaders = []
        self.is_complete = False
        self.may_be_followed = False
        """The connection is good for another request once this answer is complete."""
        self._has_head = False
        self._head_bytes = 0
        self._pieces: list[bytes] = []
        self._held_bytes = 0
        self._is_held_up = False
        self._error: BaseException | None = None
        self._waiter: asyncio.Future[bool] | None = None

    async def head(self) -> None:
        """Wait for the status and the headers. Raises UpstreamClosed or UpstreamError."""
        while not self._has_head:
            if self._error is not None:
                raise self._error
            await self._change(None)

    async def read(self, silence_seconds: float | None) -> bytes | None:
        """All of the body that has come, once some has or it is complete; None after so long a silence.

        Raises UpstreamClosed or UpstreamError, after what came before it was read.
        """
        while not self._pieces and not self.is_complete:
            if self._error is not None:
                raise self._error
            if not await self._change(silence_seconds):
                return None
        return self._take()

    def feed(self, data: bytes) -> None:
        """Bytes that the engine sent."""
        if self._parser is None:
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._refuse(str(error))
        if not self._has_head:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                self._refuse("its headers have no end")
        if self._held_bytes > MAX_HELD_BYTES and not self._is_held_up:
            self._is_held_up = True
            self._wire.hold()
        self._wake()

    def lost(self, error: Exception | None) -> None:
        """The connection is gone. Without a length that is how an answer ends."""
        self.may_be_followed = False
        if self._has_head and error is None and self._ends_with_connection():
            self.is_complete = True
        elif not self.is_complete and self._error is None:
            self._error = UpstreamClosed(str(error) if error else "it closed the connection")
        self._wake()

    def fail(self, error: BaseException) -> None:
        """There will be no more of it, for a reason of ours."""
        self.may_be_followed = False
        self._error = self._error or error
        self._wake()

    def let_go(self) -> None:
        """Nothing more will be fed. The parser and this hold each other; they are not left to the collector."""
        self._parser = None

    def on_message_begin(self) -> None:
        """An answer begins; behind a complete one there must be none."""
        if self.is_complete:
            self.may_be_followed = False
        elif not self._has_head:
            self.headers.clear()

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header; behind the body those are trailers, which stay on this hop."""
        if not self._has_head:
            self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        """The head is whole. Early hints and the like are followed by the answer itself."""
        if self._parser is None or (status := self._parser.get_status_code()) < 200:
            return
        if status > 599:
            self._refuse(f"there is no status {status}")
        elif not self._has_head:
            self.status, self._has_head = status, True
            self.may_be_followed = self._parser.should_keep_alive() and not self._is_to_head
            self.is_complete = self._is_to_head

    def on_body(self, body: bytes) -> None:
        """Some of the body."""
        if body and not self.is_complete:
            self._pieces.append(body)
            self._held_bytes += len(body)

    def on_message_complete(self) -> None:
        """The answer's end."""
        self.is_complete = self._has_head

    def _take(self) -> bytes:
        pieces = self._pieces
        piece = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        pieces.clear()
        self._held_bytes = 0
        if self._is_held_up:
            self._is_held_up = False
            self._wire.go_on()
        return piece

    def _refuse(self, reason: str) -> None:
        self.may_be_followed = False
        if not self.is_complete and self._error is None:
            self._error = UpstreamError(reason)

    def _ends_with_connection(self) -> bool:
        names = {name.lower(): value for name, value in self.headers}
        return b"content-length" not in names and b"chunked" not in names.get(b"transfer-encoding", b"").lower()

    async def _change(self, timeout_seconds: float | None) -> bool:
        """Wait until something came or went; False when nothing did for so long."""
        self._waiter = self._loop.create_future()
        timer = self._loop.call_later(timeout_seconds, self._wake, False) if timeout_seconds else None
        try:
            return await self._waiter
        finally:
            self._waiter = None
            if timer is not None:
                timer.cancel()

    def _wake(self, is_change: bool = True) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(is_change)
