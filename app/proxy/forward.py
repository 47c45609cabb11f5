"""Carrying one exchange to an engine and back, byte for byte.

aiohttp's client carries the bytes: in the same shell it took 5,000 requests/s where httpx took 650.
There is no total timeout; a prefill may be silent for half an hour. Nothing is sent a second time.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self

import aiohttp
from yarl import URL

from app.proxy.asgi import Scope, Send
from app.proxy.headers import RawHeaders, for_client, for_engine
from app.proxy.incoming import Incoming
from app.proxy.keepalive import COMMENT, interval_seconds, is_between_events
from app.proxy.record import Record

#: Below the 5 s after which vLLM's server closes an idle connection, so that no request is written
#: into a connection that is being closed.
KEEP_IDLE_SECONDS = 2.0
MAX_HEAD_BYTES = 65536
#: aiohttp adds none of its own.
SKIPPED_HEADERS = ("Accept", "Accept-Encoding", "User-Agent", "Content-Type")


class NotConnected(Exception):
    """The engine took no connection; nothing was sent, the request may go elsewhere."""


class UpstreamClosed(Exception):
    """The engine closed the connection before its answer was complete."""


class UpstreamError(Exception):
    """The engine's answer breaks HTTP's rules."""


class Forwarder:
    """The connections to the engines. Use as an asynchronous context manager."""

    def __init__(self, connect_timeout_seconds: float, keepalive_seconds: float) -> None:
        self._connect_timeout_seconds = connect_timeout_seconds
        self._keepalive_seconds = keepalive_seconds
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_IDLE_SECONDS),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=self._connect_timeout_seconds),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            skip_auto_headers=SKIPPED_HEADERS,
            max_line_size=MAX_HEAD_BYTES,
            max_field_size=MAX_HEAD_BYTES,
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()

    async def relay(self, scope: Scope, incoming: Incoming, send: Send, base_url: str, record: Record) -> None:
        """Send the request to `base_url` and its answer to the client."""
        response = await self._request(scope, incoming, base_url)
        try:
            await _answer(response, scope["headers"], send, record, self._keepalive_seconds)
        except aiohttp.ClientError as error:
            raise UpstreamClosed(str(error)) from error
        finally:
            response.close()  # does nothing after a complete answer; else ends the engine's work

    async def _request(self, scope: Scope, incoming: Incoming, base_url: str) -> aiohttp.ClientResponse:
        if self._session is None:
            raise RuntimeError("the forwarder is not open")
        try:
            return await self._session.request(
                scope["method"],
                target_url(base_url, scope["raw_path"], scope["query_string"]),
                headers=for_engine(scope["headers"]),
                data=incoming.body(),
                allow_redirects=False,
            )
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise NotConnected(str(error)) from error
        except aiohttp.ClientResponseError as error:
            raise UpstreamError(str(error)) from error
        except aiohttp.ClientError as error:
            raise UpstreamClosed(str(error)) from error


def target_url(base_url: str, raw_path: bytes, query: bytes) -> URL:
    """The engine's URL for a request, its path and query as the client wrote them."""
    target = raw_path + (b"?" + query if query else b"")
    return URL(base_url + target.decode("latin-1"), encoded=True)


async def _answer(
    response: aiohttp.ClientResponse, asked: RawHeaders, send: Send, record: Record, keepalive_seconds: float
) -> None:
    record.status = response.status
    headers = for_client(response.raw_headers, response.status)
    await send({"type": "http.response.start", "status": response.status, "headers": headers})
    silence_seconds = interval_seconds(keepalive_seconds, asked, headers)
    content, more, tail = response.content, True, b""
    while more:
        try:
            async with asyncio.timeout(silence_seconds):
                piece = await content.readany()
        except TimeoutError:
            if is_between_events(tail):
                await send({"type": "http.response.body", "body": COMMENT, "more_body": True})
            continue
        more = not content.at_eof()
        if piece:
            tail = (tail + piece)[-4:]
            record.passed(len(piece))
        await send({"type": "http.response.body", "body": piece, "more_body": more})
