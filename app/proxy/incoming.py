"""The client's side of one exchange: its body as it comes, and the moment it leaves.

One task per request owns ASGI's `receive`. It hands the body on in the client's own pieces, and
whatever ends the exchange from this side (the client left, the body is too large) interrupts the
task that serves it, wherever that waits: in the line, for an engine's first byte, or in a send.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

from app.errors import TooLarge
from app.proxy.asgi import Message, Receive
from app.proxy.headers import RawHeaders, content_length

#: So much of a body is read before its request goes anywhere. Nothing is lost by that, an engine cannot
#: begin before it has all of it; and a client that leaves is noticed only while something is being read.
HELD_BYTES = 4 * 1024 * 1024
#: A body is handed on in pieces of this size, so that no write holds up the others.
PIECE_BYTES = 256 * 1024


#: A client whose body is here can only leave. Most answers of that kind are given before it is worth looking.
WATCH_AFTER_SECONDS = 0.05


class ClientClosed(Exception):
    """The client left before its answer was complete."""


class Watcher:
    """A task that begins after a while; none for who is ended before."""

    def __init__(self, watch: Callable[[], Coroutine[Any, Any, None]], after_seconds: float) -> None:
        self._watch = watch
        self._task: asyncio.Task[None] | None = None
        self._begins = asyncio.get_running_loop().call_later(after_seconds, self._begin) if after_seconds else None
        if self._begins is None:
            self._begin()

    def end(self) -> None:
        """Watch no more."""
        if self._begins is not None:
            self._begins.cancel()
        if self._task is not None:
            self._task.cancel()

    def _begin(self) -> None:
        self._task = asyncio.create_task(self._watch())


class Incoming:
    """Use: `await begin()`, then serve inside `with watched()`."""

    def __init__(self, receive: Receive, headers: RawHeaders, limit_bytes: int) -> None:
        self._receive = receive
        self._limit_bytes = limit_bytes
        self._length = content_length(headers)
        self._pieces: deque[bytes | bytearray] = deque()
        self._held_bytes = 0
        self._read_bytes = 0
        self._more = True
        self._is_gathering = True
        self._changed = asyncio.Event()
        self._reason: Exception | None = None

    async def begin(self) -> None:
        """Read the body, or as much of it as is held."""
        if self._length is not None and self._length > self._limit_bytes:
            raise self._too_large()
        await self._read(HELD_BYTES)

    async def rest(self) -> None:
        """Read on until the body is whole, however large it is."""
        await self._read(self._limit_bytes)

    def whole(self) -> memoryview | None:
        """The body in one piece, once it is all here; None before."""
        if self._more:
            return None
        return memoryview(self._pieces[0] if self._pieces else b"")

    @contextmanager
    def watched(self, is_answered: Callable[[], bool]) -> Iterator[None]:
        """Run the block; raise in it what ends the exchange from the client's side before `is_answered`.

        To a server an answered request is one whose client is gone, and so it may be: that is no leaving.
        """
        serving = asyncio.current_task()
        if serving is None:
            raise RuntimeError("watched() needs a task to interrupt")
        watcher = Watcher(lambda: self._watch(serving, is_answered), 0.0 if self._more else WATCH_AFTER_SECONDS)
        try:
            yield
        except asyncio.CancelledError:
            if self._reason is None:
                raise
            serving.uncancel()
            raise self._reason from None
        finally:
            watcher.end()

    def body(self) -> bytes | AsyncIterator[bytes | bytearray] | None:
        """The body: whole if it is here already and not large, else in pieces; None when there is none."""
        if self._more or self._held_bytes > PIECE_BYTES:
            self._is_gathering = False
            return self._stream()
        return bytes(self.whole() or b"") or None

    async def _stream(self) -> AsyncIterator[bytes | bytearray]:
        while True:
            while self._pieces:
                piece = self._pieces.popleft()
                self._held_bytes -= len(piece)
                self._changed.set()
                for start in range(0, len(piece), PIECE_BYTES):
                    yield piece[start : start + PIECE_BYTES]
            if not self._more:
                return
            await self._change()

    async def _read(self, limit_bytes: int) -> None:
        while self._more and self._held_bytes < limit_bytes:
            self._take(await self._receive())

    async def _watch(self, serving: asyncio.Task[None], is_answered: Callable[[], bool]) -> None:
        reason = await self._reason_to_end()
        if not is_answered():
            self._reason = reason
            serving.cancel()

    async def _reason_to_end(self) -> Exception:
        try:
            while self._more:
                while self._held_bytes >= HELD_BYTES:
                    await self._change()
                self._take(await self._receive())
            while (await self._receive())["type"] != "http.disconnect":
                pass
            return ClientClosed()
        except (ClientClosed, TooLarge) as reason:
            return reason

    def _take(self, message: Message) -> None:
        if message["type"] == "http.disconnect":
            raise ClientClosed
        piece = message.get("body", b"")
        self._more = message.get("more_body", False)
        self._read_bytes += len(piece)
        if self._read_bytes > self._limit_bytes:
            raise self._too_large()
        if piece:
            self._add(piece)
            self._held_bytes += len(piece)
        self._changed.set()

    def _add(self, piece: bytes) -> None:
        """Until the body is on its way it is gathered in one place, so that it is never held twice."""
        if self._pieces and self._is_gathering:
            gathered = self._pieces.pop()
            gathered = gathered if isinstance(gathered, bytearray) else bytearray(gathered)
            gathered += piece
            self._pieces.append(gathered)
        else:
            self._pieces.append(piece)

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    def _too_large(self) -> TooLarge:
        limit = self._limit_bytes / 1024 / 1024
        return TooLarge(f"The request's body is larger than the {limit:g} MiB that the deck takes.")
