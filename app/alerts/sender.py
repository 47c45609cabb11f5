"""One HTTP POST to a receiver that may be slow, rude or gone. Never raises for what a receiver does.

The transport is used without httpx's client: the client logs every address in full, and the address of a
chat robot is a password. That also means no redirects, no cookies and no proxy from the environment.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

import httpx

from app.alerts.channels.base import Answer, Outgoing

TIMEOUT_SECONDS = 10.0
BODY_LIMIT_BYTES = 64 * 1024
USER_AGENT = "Tierdeck"

# httpcore prints the headers of answers at DEBUG; a receiver may repeat its address there
logging.getLogger("httpcore").setLevel(logging.INFO)


class SendFailed(Exception):
    """There was no answer; the sentence says why. Worth trying again."""


class Sender:
    """Sends requests, each on a connection of its own."""

    def __init__(
        self, transport: httpx.AsyncBaseTransport | None = None, timeout_seconds: float = TIMEOUT_SECONDS
    ) -> None:
        limits = httpx.Limits(max_keepalive_connections=0)
        self._transport = transport or httpx.AsyncHTTPTransport(limits=limits)
        self._timeout_seconds = timeout_seconds

    async def send(self, outgoing: Outgoing, headers: Mapping[str, str]) -> Answer:
        """Send and read the answer. Raises SendFailed."""
        try:
            async with asyncio.timeout(self._timeout_seconds):
                return await self._exchange(outgoing, headers)
        except TimeoutError as error:
            raise SendFailed(f"no complete answer within {self._timeout_seconds:g} s") from error
        except Exception as error:  # noqa: BLE001 - a traceback from in there would show the address
            raise SendFailed(f"no answer: {str(error) or type(error).__name__}") from None

    async def _exchange(self, outgoing: Outgoing, headers: Mapping[str, str]) -> Answer:
        request = httpx.Request("POST", outgoing.url, headers=_headers(outgoing, headers), content=outgoing.body)
        response = await self._transport.handle_async_request(request)
        try:
            body = await _bounded(response)
        finally:
            await response.aclose()
        return Answer(response.status_code, body, _retry_after(response))


async def _bounded(response: httpx.Response) -> str:
    """The beginning of the body. A receiver that sends without end is cut off."""
    read = bytearray()
    async for chunk in response.aiter_raw():
        read += chunk[: BODY_LIMIT_BYTES - len(read)]
        if len(read) >= BODY_LIMIT_BYTES:
            break
    return read.decode("utf-8", errors="replace")


def _headers(outgoing: Outgoing, headers: Mapping[str, str]) -> dict[str, str]:
    return {**outgoing.headers, **headers, "User-Agent": USER_AGENT, "Accept-Encoding": "identity"}


def _retry_after(response: httpx.Response) -> float | None:
    seconds = response.headers.get("retry-after", "")
    return float(seconds) if seconds.isascii() and seconds.isdigit() and len(seconds) < 10 else None
