"""Carrying one exchange to an engine and back, byte for byte.

There is no total timeout; a prefill may be silent for half an hour. Nothing is sent a second time.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Protocol, Self

from app.proxy.asgi import Scope
from app.proxy.connections import Body, Connections, host_of
from app.proxy.headers import RawHeaders, for_client, for_engine
from app.proxy.incoming import Incoming
from app.proxy.keepalive import interval_seconds, is_between_events
from app.proxy.upstream import EngineAnswer, NotConnected, UpstreamClosed, UpstreamError

#: vLLM serves these beside /v1; the deck in both places.
OUTSIDE_V1 = frozenset({b"/v1/tokenize", b"/v1/detokenize"})
#: Methods whose requests say that they have no body, when they have none.
METHODS_WITH_BODY = frozenset({"POST", "PUT", "PATCH"})
CHUNKED: RawHeaders = [(b"Transfer-Encoding", b"chunked")]


class Sink(Protocol):
    """Where an engine's answer goes: to one client, or to all that share it."""

    async def begin(self, status: int, headers: RawHeaders) -> None:
        """Take the status and the headers."""
        ...

    async def piece(self, piece: bytes, more: bool) -> None:
        """Take some of the body."""
        ...

    async def comment(self) -> None:
        """Take a sign of life that stands between two events."""
        ...


class Forwarder:
    """The way to the engines. Use as an asynchronous context manager."""

    def __init__(self, connect_timeout_seconds: float, keepalive_seconds: float) -> None:
        self._connect_timeout_seconds = connect_timeout_seconds
        self._keepalive_seconds = keepalive_seconds
        self._connections: Connections | None = None

    async def __aenter__(self) -> Self:
        self._connections = Connections(self._connect_timeout_seconds)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()

    async def relay(self, scope: Scope, incoming: Incoming, sink: Sink, base_url: str) -> None:
        """Send the request to `base_url` and its answer to `sink`.

        Raises NotConnected before anything was sent; UpstreamClosed or UpstreamError.
        """
        connection = await self._open.take(base_url)
        try:
            body, method = incoming.body(), scope["method"]
            headers = for_engine(scope["headers"])
            framing = framing_of(headers, method, body)
            head = head_of(method, target_of(scope["raw_path"], scope["query_string"]), base_url, headers + framing)
            answer = connection.ask(head, body, is_chunked=framing == CHUNKED, is_to_head=method == "HEAD")
            await _answer(answer, scope["headers"], sink, self._keepalive_seconds)
        finally:
            self._open.give_back(base_url, connection)  # after an incomplete answer that ends the engine's work

    async def fetch(self, base_url: str, path: str, timeout_seconds: float) -> bytes:
        """What a GET answers. Raises UpstreamError when it is not a 200, or does not come in time."""
        try:
            async with asyncio.timeout(timeout_seconds):
                status, body = await self._get(base_url, path)
        except (NotConnected, UpstreamClosed, TimeoutError) as error:
            raise UpstreamError(f"{path}: {str(error) or 'no answer in time'}") from error
        if status != 200:
            raise UpstreamError(f"{path} answered {status}")
        return body

    async def _get(self, base_url: str, path: str) -> tuple[int, bytes]:
        connection = await self._open.take(base_url)
        try:
            head = head_of("GET", path.encode(), base_url, [])
            answer = connection.ask(head, None, is_chunked=False, is_to_head=False)
            await answer.head()
            body = await answer.read(None) or b""
            while not answer.is_complete:
                body += await answer.read(None) or b""
            return answer.status, body
        finally:
            self._open.give_back(base_url, connection)

    @property
    def _open(self) -> Connections:
        if self._connections is None:
            raise RuntimeError("the forwarder is not open")
        return self._connections


def framing_of(headers: RawHeaders, method: str, body: Body) -> RawHeaders:
    """What tells the engine where the body ends, unless the client's own length does."""
    if any(name.lower() == b"content-length" for name, _ in headers):
        return []
    if body is not None and not isinstance(body, bytes):
        return CHUNKED
    return [(b"Content-Length", b"%d" % len(body or b""))] if body or method in METHODS_WITH_BODY else []


def head_of(method: str, target: bytes, base_url: str, headers: RawHeaders) -> bytes:
    """A request as far as its body. Raises ValueError for what would be more than one."""
    lines = [b"%s %s HTTP/1.1" % (method.encode(), target), b"Host: %s" % host_of(base_url)]
    lines += [b"%s: %s" % header for header in headers]
    head = b"\r\n".join(lines)
    if head.count(b"\n") >= len(lines):
        raise ValueError("a header of the request has a line break in it")
    return head + b"\r\n\r\n"


def engine_path(raw_path: bytes) -> bytes:
    """The path at the engine: the same, but for what vLLM keeps outside of /v1."""
    return raw_path.removeprefix(b"/v1") if raw_path in OUTSIDE_V1 else raw_path


def target_of(raw_path: bytes, query: bytes) -> bytes:
    """What is asked of the engine, its path and query as the client wrote them."""
    return engine_path(raw_path) + (b"?" + query if query else b"")


async def _answer(answer: EngineAnswer, asked: RawHeaders, sink: Sink, keepalive_seconds: float) -> None:
    await answer.head()
    headers = for_client(answer.headers, answer.status)
    await sink.begin(answer.status, headers)
    silence_seconds = interval_seconds(keepalive_seconds, asked, headers)
    more, end = True, b""
    while more:
        piece = await answer.read(silence_seconds)
        if piece is None:
            if is_between_events(end):
                await sink.comment()
            continue
        more = not answer.is_complete
        end = (end + piece[-4:])[-4:]
        await sink.piece(piece, more)
