"""The client's side of one exchange: its body as it comes, and the moment it leaves.

One task per request owns ASGI's `receive`. It hands the body on in the client's own pieces, and
whatever ends the exchange from this side (the client left, the body is too large) interrupts the
task that serves it, wherever that waits: in the line, for an engine's first byte, or in a send.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

from app.errors import TooLarge
from app.proxy.asgi import Message, Receive
from app.proxy.headers import RawHeaders, content_length

#: Read ahead of a body while its request waits in line: a client that leaves is noticed only while
#: something of it is being read.
HELD_BYTES = 4 * 1024 * 1024


class ClientClosed(Exception):
    """The client left before its answer was complete."""


class Incoming:
    """Use: `await begin()`, then serve inside `with watched()`."""

    def __init__(self, receive: Receive, headers: RawHeaders, limit_bytes: int) -> None:
        self._receive = receive
        self._limit_bytes = limit_bytes
        self._length = content_length(headers)
        self._pieces: deque[bytes] = deque()
        self._held_bytes = 0
        self._read_bytes = 0
        self._more = True
        self._changed = asyncio.Event()
        self._reason: Exception | None = None

    async def begin(self) -> None:
        """Read the first piece; most bodies end with it."""
        if self._length is not None and self._length > self._limit_bytes:
            raise self._too_large()
        self._take(await self._receive())

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Run the block; raise in it what ends the exchange from the client's side."""
        serving = asyncio.current_task()
        if serving is None:
            raise RuntimeError("watched() needs a task to interrupt")
        watcher = asyncio.create_task(self._watch(serving))
        try:
            yield
        except asyncio.CancelledError:
            if self._reason is None:
                raise
            serving.uncancel()
            raise self._reason from None
        finally:
            watcher.cancel()

    def body(self) -> bytes | AsyncIterator[bytes] | None:
        """The body: whole if it is here already, else in pieces; None when there is none."""
        if self._more:
            return self._stream()
        whole = b"".join(self._pieces)
        return whole or None

    async def _stream(self) -> AsyncIterator[bytes]:
        while True:
            while self._pieces:
                piece = self._pieces.popleft()
                self._held_bytes -= len(piece)
                self._changed.set()
                yield piece
            if not self._more:
                return
            await self._change()

    async def _watch(self, serving: asyncio.Task[None]) -> None:
        try:
            while self._more:
                while self._held_bytes >= HELD_BYTES:
                    await self._change()
                self._take(await self._receive())
            while (await self._receive())["type"] != "http.disconnect":
                pass
            self._reason = ClientClosed()
        except (ClientClosed, TooLarge) as reason:
            self._reason = reason
        serving.cancel()

    def _take(self, message: Message) -> None:
        if message["type"] == "http.disconnect":
            raise ClientClosed
        piece = message.get("body", b"")
        self._more = message.get("more_body", False)
        self._read_bytes += len(piece)
        if self._read_bytes > self._limit_bytes:
            raise self._too_large()
        if piece:
            self._pieces.append(piece)
            self._held_bytes += len(piece)
        self._changed.set()

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    def _too_large(self) -> TooLarge:
        limit = self._limit_bytes / 1024 / 1024
        return TooLarge(f"The request's body is larger than the {limit:g} MiB that the deck takes.")
