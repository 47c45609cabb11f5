"""P01 and P03: prefills that are silent for long, and clients that leave before the end."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import Any

import pytest
from structlog.testing import capture_logs

from app.proxy.forward import Forwarder
from app.proxy.incoming import HELD_BYTES
from tests.fakes.upstream import Exchange, running
from tests.integration.door_rig import LOOPS, Served, StatedEngines, engine, request_bytes, serving

__all__ = ["LOOPS"]

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
EVENT = b"data: {}\n\n"
LONG_PROMPT = b'{"prompt": "' + b"x" * 400_000 + b'"}'
VERY_LONG_PROMPT = b'{"prompt": "' + b"x" * (HELD_BYTES + 400_000) + b'"}'


async def silent(exchange: Exchange) -> None:
    """An engine in its prefill: it says nothing until the client is gone."""
    await exchange.until_closed()


async def half_way(exchange: Exchange) -> None:
    """Some events, then silence."""
    await exchange.say(HEAD)
    for _ in range(3):
        await exchange.chunk(EVENT)
    await exchange.until_closed()


async def leave(deck: Served, arrived: asyncio.Queue[Exchange], raw: bytes, read_until: bytes | None) -> Exchange:
    """Send `raw`, perhaps read a part of the answer, hang up."""
    reader, writer = await deck.connect()
    writer.write(raw)
    exchange = await arrived.get()
    if read_until:
        await reader.readuntil(read_until)
    assert deck.door.in_flight("main-1") == 1
    writer.close()
    return exchange


@pytest.mark.parametrize(
    ("script", "raw", "read_until"),
    [
        (silent, request_bytes(LONG_PROMPT[:-1] + b', "stream": true}'), None),
        (half_way, request_bytes(LONG_PROMPT[:-1] + b', "stream": true}'), b"data: {}\n\n"),
        (silent, request_bytes(LONG_PROMPT), None),
        (silent, request_bytes(VERY_LONG_PROMPT, length=2 * len(VERY_LONG_PROMPT)), None),
    ],
    ids=["before the first byte", "in the stream", "not streaming", "large body half sent"],
)
async def test_a_client_that_leaves_frees_the_engine_within_a_second(script, raw, read_until) -> None:
    """The engine's connection is closed, the count is back at 0, the record says who hung up, nothing is retried."""
    half_sent = f"Content-Length: {len(raw) - raw.index(b'{')}".encode() not in raw
    async with (
        running(script, reads_body=not half_sent) as upstream,
        serving(StatedEngines(engine(upstream.port))) as deck,
    ):
        with capture_logs() as lines:
            exchange = await leave(deck, upstream.arrived, raw, read_until)
            async with asyncio.timeout(1):
                await exchange.closed.wait()
                await deck.door.open_requests.idle("main-1")
        assert len(upstream.exchanges) == 1
        assert [line["outcome"] for line in lines if line["event"] == "request"] == ["client_closed"]


async def test_what_comes_after_a_complete_answer_is_no_leaving(monkeypatch) -> None:
    """A client that closes as soon as it has every byte was served, whatever the deck still has to do."""
    monkeypatch.setattr("app.proxy.incoming.WATCH_AFTER_SECONDS", 0.0)
    gone = asyncio.Event()

    async def relay(*given: Any) -> None:
        await Forwarder.relay(*given)
        await gone.wait()
        for _ in range(5):  # the server's word of it may come now
            await asyncio.sleep(0)

    async def script(exchange: Exchange) -> None:
        await exchange.say(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    async with running(script) as upstream, serving(StatedEngines(engine(upstream.port))) as deck:
        monkeypatch.setattr(deck.door._forwarder, "relay", partial(relay, deck.door._forwarder))
        assert (await deck.post(b"{}")).body == b"ok"
        gone.set()
        async with asyncio.timeout(5):
            while not deck.ledger.records:
                await asyncio.sleep(0.01)
        assert [record.outcome for record in deck.ledger.records] == ["done"]


@pytest.mark.parametrize("body", [b"{", LONG_PROMPT])
async def test_a_body_that_never_becomes_whole_reaches_no_engine(body: bytes) -> None:
    """An engine could not begin with half of it; the record still says who hung up."""
    async with running(silent) as upstream, serving(StatedEngines(engine(upstream.port))) as deck:
        _, writer = await deck.connect()
        writer.write(request_bytes(body, length=2 * len(body)))
        await writer.drain()
        writer.close()
        async with asyncio.timeout(5):
            while not deck.ledger.records:
                await asyncio.sleep(0.01)
        assert [record.outcome for record in deck.ledger.records] == ["client_closed"]
        assert upstream.exchanges == []


async def test_an_engine_that_hangs_up_is_recorded_as_such() -> None:
    """The record tells the engine's closing from the client's."""

    async def script(exchange: Exchange) -> None:
        await exchange.say(HEAD)
        await exchange.chunk(EVENT)
        exchange.close()

    async with running(script) as upstream, serving(StatedEngines(engine(upstream.port))) as deck:
        with capture_logs() as lines:
            assert not (await deck.post(b"{}")).complete
        (line,) = [line for line in lines if line["event"] == "request"]
    assert line["outcome"] == "upstream_closed" and line["status"] == 200
    assert line["sent_bytes"] == len(EVENT)


@pytest.mark.parametrize("streams", [True, False])
async def test_a_silent_prefill_is_waited_for(streams: bool) -> None:
    """Silence is no error, however small the connect timeout: P01, scaled from 600 s."""
    silence_seconds = 2.0

    async def script(exchange: Exchange) -> None:
        await asyncio.sleep(silence_seconds)
        if not streams:
            await exchange.say(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
            return
        await exchange.say(HEAD)
        for _ in range(20):
            await exchange.chunk(EVENT)
        await exchange.say(b"0\r\n\r\n")

    async with (
        running(script) as upstream,
        serving(StatedEngines(engine(upstream.port)), door_connect_timeout_seconds=0.2, door_wait_seconds=0.2) as deck,
    ):
        with capture_logs() as lines:
            answer = await deck.post(b"{}")
        assert answer.complete and answer.body == (EVENT * 20 if streams else b"{}")
        (line,) = [line for line in lines if line["event"] == "request"]
    assert line["outcome"] == "done" and line["queue_seconds"] < 0.2
    assert silence_seconds <= line["first_byte_seconds"] <= line["total_seconds"]


async def test_the_record_holds_no_secret() -> None:
    """Neither credentials nor prompts are in the line of a request."""
    async with running(silent) as upstream, serving(StatedEngines(engine(upstream.port))) as deck:
        upstream.script = lambda exchange: exchange.say(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        with capture_logs() as lines:
            await deck.post(b'{"prompt": "my secret"}', Authorization="Bearer my-secret")
    assert lines and "secret" not in repr(lines)


async def test_five_hundred_silent_streams_are_held_at_once() -> None:
    """No pool limit stands between clients and engine."""

    async def script(exchange: Exchange) -> None:
        await exchange.say(HEAD)
        await exchange.until_closed()

    async with running(script) as upstream, serving(StatedEngines(engine(upstream.port))) as deck:
        writers = []
        started = time.monotonic()
        for _ in range(500):
            reader, writer = await deck.connect()
            writer.write(request_bytes(b"{}"))
            await reader.readuntil(b"\r\n\r\n")
            writers.append(writer)
        assert deck.door.in_flight("main-1") == 500
        for writer in writers:
            writer.close()
        async with asyncio.timeout(5):
            await deck.door.open_requests.idle("main-1")
        assert time.monotonic() - started < 30


KEEPALIVE = b": keep-alive\n\n"


async def two_events_with_a_pause(exchange: Exchange) -> None:
    """One event, silence, half an event, silence, the other half."""
    await exchange.say(HEAD)
    await exchange.chunk(EVENT)
    await asyncio.sleep(0.3)
    await exchange.chunk(b"data: {")
    await asyncio.sleep(0.3)
    await exchange.chunk(b"}\n\n")
    await exchange.say(b"0\r\n\r\n")


async def test_a_silent_stream_is_kept_alive_between_events_only() -> None:
    """Comments stand where an event ended, never inside one; without them the bytes are the engine's."""
    async with (
        running(two_events_with_a_pause) as upstream,
        serving(StatedEngines(engine(upstream.port)), door_keepalive_seconds=0.1) as deck,
    ):
        kept = await deck.post(b"{}")
        asked_not_to = await deck.post(b"{}", **{"X-Tierdeck-Keepalive": "off"})
    assert kept.complete and KEEPALIVE in kept.body
    assert kept.body.replace(KEEPALIVE, b"") == EVENT * 2 == asked_not_to.body


async def test_a_body_that_is_no_event_stream_is_never_touched() -> None:
    """A non-streaming answer that comes in two halves stays what it is."""

    pieces = [
        [b"Content-Length: 2\r\n\r\n{", b"}"],
        [b"Transfer-Encoding: chunked\r\n\r\n", b"2", b"\r\n", b"{", b"}\r\n", b"0\r\n\r\n"],
    ]

    async def script(exchange: Exchange) -> None:
        await exchange.say(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n")
        for piece in pieces[len(upstream.exchanges) - 1]:
            await exchange.say(piece)
            await asyncio.sleep(0.2)

    async with (
        running(script) as upstream,
        serving(StatedEngines(engine(upstream.port)), door_keepalive_seconds=0.1) as deck,
    ):
        for _ in pieces:
            assert (await deck.post(b"{}")).body == b"{}"


async def test_a_chunk_whose_size_comes_first_makes_no_comment() -> None:
    """A stream that is not silent is given nothing, however its engine's packets are cut."""

    async def script(exchange: Exchange) -> None:
        await exchange.say(HEAD)
        for piece in (b"a", b"\r\n", EVENT, b"\r\n", b"0\r\n", b"\r\n"):
            await exchange.say(piece)
            await asyncio.sleep(0.02)

    async with running(script) as upstream, serving(StatedEngines(engine(upstream.port))) as deck:
        assert (await deck.post(b"{}")).body == EVENT
