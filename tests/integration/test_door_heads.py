"""One client's headers hold up nobody else, and come to no application when they are too many."""

from __future__ import annotations

import asyncio
import json

import pytest

from app.proxy import heads
from app.proxy.heads import MAX_HEAD_BYTES
from tests.fakes.upstream import Exchange, running
from tests.integration.door_rig import LOOPS, StatedEngines, engine, request_bytes, serving

__all__ = ["LOOPS"]

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
START = b"GET /v1/x HTTP/1.1\r\nHost: deck\r\n"
CHUNKED = b"POST /v1/x HTTP/1.1\r\nHost: deck\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n"
MUCH = b"x" * (8 << 20)


async def say_ok(exchange: Exchange) -> None:
    await exchange.say(OK)


@pytest.mark.parametrize(
    "raw",
    [
        START + b"X-Mine: " + MUCH,
        START + b"".join(b"X-%d: y\r\n" % number for number in range(500_000)),
        b"GET /v1/" + MUCH,
        START + MUCH,
        START + b"X-Mine: " + b"x" * MAX_HEAD_BYTES + b"\r\n\r\n",
        START + b"X-Mine: " + b"x" * MAX_HEAD_BYTES + b"\r\n\r\n" + START + b"\r\n",
        START + b"Connection: upgrade\r\nUpgrade: websocket\r\nX-Mine: " + b"x" * MAX_HEAD_BYTES + b"\r\n\r\n",
        request_bytes(b"{}") + START + b"X-Mine: " + MUCH,
    ],
    ids=["a value", "many headers", "the path", "a name", "whole", "with another behind", "upgrade", "the second"],
)
async def test_a_head_beyond_the_limit_is_refused_in_words(raw: bytes) -> None:
    """431 in the shape that SDKs read; the client hears it though it has not stopped sending."""
    async with running(say_ok) as upstream, serving(StatedEngines(engine(upstream.port))) as deck:
        reader, writer = await deck.connect()
        if raw.startswith(b"POST"):
            first, raw = raw[: raw.index(START)], raw[raw.index(START) :]
            writer.write(first)
            assert (await reader.readuntil(b"ok")).startswith(b"HTTP/1.1 200")
        sending = asyncio.gather(writer.drain(), return_exceptions=True)
        writer.write(raw)
        async with asyncio.timeout(10):
            head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 431 Request Header Fields Too Large\r\n") and b"connection: close" in head
        assert f"content-length: {len(body)}".encode() in head
        error = json.loads(body)["error"]
        assert error["code"] == "headers_too_large" and "64 KiB" in error["message"]
        await sending
        writer.close()
        assert (await deck.exchange("GET", "/v1/y")).status == 200  # nobody else minds
        [kept] = [record for record in deck.ledger.records if record.status == 431]
        assert kept.outcome == "refused" and kept.path.startswith("/v1/") and kept.total_seconds is not None
    assert not [exchange for exchange in upstream.exchanges if "x-mine" in exchange.headers]


async def test_headers_up_to_the_limit_come_through() -> None:
    """In any number of pieces, and again and again on one connection."""
    value = b"x" * (MAX_HEAD_BYTES - 100)
    async with running(say_ok) as upstream, serving(StatedEngines(engine(upstream.port))) as deck:
        reader, writer = await deck.connect()
        for piece_bytes in (1 << 20, 10_000, 1_000):
            raw = START + b"X-Mine: " + value + b"\r\nContent-Length: 0\r\n\r\n"
            for start in range(0, len(raw), piece_bytes):
                writer.write(raw[start : start + piece_bytes])
                await asyncio.sleep(0)
            assert (await reader.readuntil(b"ok")).startswith(b"HTTP/1.1 200")
        writer.close()
    assert [len(exchange.headers["x-mine"]) for exchange in upstream.exchanges] == [len(value)] * 3


async def test_a_body_is_no_head() -> None:
    """However long it is, in chunks or not; what follows it is bounded again."""
    body = b"y" * (4 * MAX_HEAD_BYTES)
    async with running(say_ok) as upstream, serving(StatedEngines(engine(upstream.port))) as deck:
        reader, writer = await deck.connect()
        for _ in range(2):
            writer.write(request_bytes(body, path="/v1/x"))
            assert (await reader.readuntil(b"ok")).startswith(b"HTTP/1.1 200")
        writer.write(CHUNKED.replace(b"2\r\n{}", b"%x\r\n%s" % (len(body), body)) + b"X-After: 1\r\n\r\n")
        assert (await reader.readuntil(b"ok")).startswith(b"HTTP/1.1 200")
        writer.write(CHUNKED + b"X-After: " + MUCH)
        async with asyncio.timeout(10):
            with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                await reader.readuntil(b"\r\n\r\n")
        writer.close()
        assert not [record for record in deck.ledger.records if record.status == 431]  # that request has its own
    assert [len(exchange.body) for exchange in upstream.exchanges] == [len(body)] * 3


async def test_a_refused_client_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that never stops."""
    monkeypatch.setattr(heads, "LINGER_SECONDS", 0.1)
    async with running(say_ok) as upstream, serving(StatedEngines(engine(upstream.port))) as deck:
        _, writer = await deck.connect()
        async with asyncio.timeout(10):
            with pytest.raises(ConnectionError):
                while True:
                    writer.write(START + MUCH)
                    await writer.drain()
        writer.close()
    assert upstream.exchanges == []
