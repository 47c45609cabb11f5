"""The connections to the engines: kept between requests for a moment, one exchange on each at a time.

A request goes out on a kept connection only if the engine has not closed that, asked of the kernel at
that moment: what was written into it cannot be known not to have begun, and nothing is sent twice.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from functools import lru_cache
from typing import cast
from urllib.parse import urlsplit

from app.proxy.upstream import EngineAnswer, NotConnected

#: Below the 5 s after which vLLM's server closes an idle connection.
KEEP_IDLE_SECONDS = 2.0

Address = tuple[str, int]
Body = bytes | AsyncIterator[bytes | bytearray] | None


class Connection(asyncio.Protocol):
    """One connection to an engine."""

    def __init__(self, socket_: socket.socket, loop: asyncio.AbstractEventLoop) -> None:
        self._socket = socket_
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._answer: EngineAnswer | None = None
        self._sending: asyncio.Task[None] | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self.idle_since = 0.0

    def ask(self, head: bytes, body: Body, *, is_chunked: bool, is_to_head: bool) -> EngineAnswer:
        """Send a request; what is said to it comes in the answer that is returned."""
        self._answer = EngineAnswer(self, self._loop, is_to_head=is_to_head)
        if body is None or isinstance(body, bytes):
            self._write(head + body if body else head)
        else:
            self._sending = self._loop.create_task(self._send(head, body, is_chunked), name="send-body")
            self._sending.add_done_callback(self._sent)
        return self._answer

    def release(self) -> bool:
        """The exchange is over. True when the connection may take another; else it is gone, with what is unsent."""
        answer, sending = self._answer, self._sending
        self._answer = self._sending = None
        is_sent = sending is None or sending.done()
        if answer is not None:
            answer.let_go()
            if answer.is_complete and answer.may_be_followed and is_sent and not self._is_closing():
                return True
        if sending is not None:
            sending.cancel()
        self.abort()
        return False

    def is_open(self) -> bool:
        """True when neither side has closed it, as far as the kernel knows now; and the engine said nothing."""
        if self._is_closing():
            return False
        try:
            self._socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except (BlockingIOError, InterruptedError):
            return True
        except OSError:
            return False
        return False  # closed, or an answer to nothing

    def abort(self) -> None:
        """Close at once; what was not written yet is not."""
        if self._transport is not None:
            self._transport.abort()

    def hold(self) -> None:
        """Read no more for now."""
        if self._transport is not None:
            self._transport.pause_reading()

    def go_on(self) -> None:
        """Read again."""
        if self._transport is not None and not self._is_closing():
            self._transport.resume_reading()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one in all but name

    def data_received(self, data: bytes) -> None:
        """Hand on; an engine that speaks unasked is not spoken to any more."""
        if self._answer is None:
            self.abort()
        else:
            self._answer.feed(data)

    def connection_lost(self, error: Exception | None) -> None:
        """Tell who waits for the answer, and who sends."""
        self._writable.set()
        if self._answer is not None:
            self._answer.lost(error)

    def pause_writing(self) -> None:
        """The engine does not keep up with the body."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """It does again."""
        self._writable.set()

    async def _send(self, head: bytes, body: AsyncIterator[bytes | bytearray], is_chunked: bool) -> None:
        self._write(head)
        async for piece in body:
            self._write(b"%x\r\n%s\r\n" % (len(piece), piece) if is_chunked else piece)
            await self._writable.wait()
        if is_chunked:
            self._write(b"0\r\n\r\n")

    def _write(self, data: bytes | bytearray) -> None:
        if self._transport is not None and not self._is_closing():
            self._transport.write(data)

    def _is_closing(self) -> bool:
        return self._transport is None or self._transport.is_closing()

    def _sent(self, sending: asyncio.Task[None]) -> None:
        """A body that could not be read leaves its engine waiting for the rest: that ends the exchange."""
        if self._answer is not None and not sending.cancelled() and (error := sending.exception()) is not None:
            self._answer.fail(error)


class Connections:
    """All of them, by address. As many are open as there are requests."""

    def __init__(self, connect_timeout_seconds: float) -> None:
        self._connect_timeout_seconds = connect_timeout_seconds
        self._loop = asyncio.get_running_loop()
        self._idle: dict[Address, list[Connection]] = {}
        self._sweep: asyncio.TimerHandle | None = None

    async def take(self, base_url: str) -> Connection:
        """A connection to the engine at `base_url`. Raises NotConnected."""
        address = address_of(base_url)
        return self._kept(address) or await self._connect(address)

    def give_back(self, base_url: str, connection: Connection) -> None:
        """The exchange on it is over; keep it for the next one if it may be."""
        if connection.release():
            connection.idle_since = self._loop.time()
            self._idle.setdefault(address_of(base_url), []).append(connection)
            if self._sweep is None:
                self._sweep = self._loop.call_later(KEEP_IDLE_SECONDS, self._close_old)

    def close(self) -> None:
        """Close those that are idle."""
        if self._sweep is not None:
            self._sweep.cancel()
        for connections in self._idle.values():
            for connection in connections:
                connection.abort()
        self._idle.clear()

    def _kept(self, address: Address) -> Connection | None:
        """The one that was used last: it is the least likely to be closed."""
        idle, oldest = self._idle.get(address, []), self._loop.time() - KEEP_IDLE_SECONDS
        while idle:
            connection = idle.pop()
            if connection.idle_since > oldest and connection.is_open():
                return connection
            connection.abort()
        return None

    async def _connect(self, address: Address) -> Connection:
        plug = socket.socket(socket.AF_INET6 if ":" in address[0] else socket.AF_INET, socket.SOCK_STREAM)
        try:
            plug.setblocking(False)
            plug.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            async with asyncio.timeout(self._connect_timeout_seconds):
                await self._loop.sock_connect(plug, address)
            _, connection = await self._loop.create_connection(lambda: Connection(plug, self._loop), sock=plug)
        except TimeoutError as error:
            plug.close()
            raise NotConnected("it took no connection in time") from error
        except OSError as error:
            plug.close()
            raise NotConnected(error.strerror or str(error)) from error
        except BaseException:
            plug.close()
            raise
        if not connection.is_open():  # nobody would hear any more that it was lost
            connection.abort()
            raise NotConnected("it closed the connection at once")
        return connection

    def _close_old(self) -> None:
        self._sweep = None
        oldest = self._loop.time() - KEEP_IDLE_SECONDS
        for idle in self._idle.values():
            for connection in [one for one in idle if one.idle_since <= oldest]:
                idle.remove(connection)
                connection.abort()
        if any(self._idle.values()):
            self._sweep = self._loop.call_later(KEEP_IDLE_SECONDS, self._close_old)


@lru_cache(maxsize=1024)
def address_of(base_url: str) -> Address:
    """The address that a URL of http names."""
    parts = urlsplit(base_url)
    return parts.hostname or "", parts.port or 80


@lru_cache(maxsize=1024)
def host_of(base_url: str) -> bytes:
    """What a request's `Host` says."""
    return urlsplit(base_url).netloc.encode()
