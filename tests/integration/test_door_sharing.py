"""Identical prompts in flight: counted always, one answer for all of them where the fleet says so."""

from __future__ import annotations

import asyncio
import json

import pytest

from app.proxy.usage import Usage
from tests.fakes.upstream import Exchange, Upstream, running
from tests.integration.door_rig import Answer, Served, StatedEngines, engine, serving

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
EVENTS = [b'data: {"n":%d}\n\n' % number for number in range(5)] + [b"data: [DONE]\n\n"]
BODY = json.dumps({"prompt": "the same " * 50, "temperature": 0, "stream": True}).encode()


class Engine:
    """Begins to stream, then goes on when told."""

    def __init__(self) -> None:
        self.go_on = asyncio.Event()

    async def __call__(self, exchange: Exchange) -> None:
        await exchange.say(HEAD)
        await exchange.chunk(EVENTS[0])
        gone = asyncio.create_task(exchange.until_closed())
        told = asyncio.create_task(self.go_on.wait())
        await asyncio.wait({gone, told}, return_when=asyncio.FIRST_COMPLETED)
        if self.go_on.is_set():
            gone.cancel()
            for event in EVENTS[1:]:
                await exchange.chunk(event)
            await exchange.say(b"0\r\n\r\n")


def shared(upstream: Upstream) -> StatedEngines:
    return StatedEngines(engine(upstream.port, join_identical=True))


async def ask_twice(deck: Served, upstream: Upstream, body: bytes = BODY, **second: str) -> list[asyncio.Task[Answer]]:
    """The second try comes when the first has been sent on."""
    first = asyncio.create_task(deck.post(body))
    await upstream.arrived.get()
    again = asyncio.create_task(deck.post(body, **second))
    async with asyncio.timeout(5):
        while len(deck.door._prompts._counts) != 1 or deck.door._prompts._counts.total() < 2:
            await asyncio.sleep(0)
    return [first, again]


async def test_identical_prompts_are_counted_and_both_sent() -> None:
    """That is the default: nobody gets an answer that was asked for by another."""
    script = Engine()
    async with running(script) as upstream, serving(StatedEngines(engine(upstream.port))) as deck:
        tries = await ask_twice(deck, upstream)
        await upstream.arrived.get()
        script.go_on.set()
        assert [(await one).body for one in tries] == [b"".join(EVENTS)] * 2
        assert sorted(record.is_identical for record in deck.ledger.records) == [False, True]
        counted = deck.door.metrics.registry.get_sample_value(
            "tierdeck_door_identical_requests_total", {"fleet": "main"}
        )
    assert counted == 1 and len(upstream.exchanges) == 2


async def test_a_retry_is_given_the_answer_that_is_already_coming() -> None:
    """From its first byte on, without a second prefill."""
    script = Engine()
    async with running(script) as upstream, serving(shared(upstream)) as deck:
        tries = await ask_twice(deck, upstream)
        script.go_on.set()
        answers = [await one for one in tries]
        assert [answer.body for answer in answers] == [b"".join(EVENTS)] * 2
        assert answers[1].header("content-type") == b"text/event-stream"
        assert sorted(record.is_joined for record in deck.ledger.records) == [False, True]
        assert {record.engine for record in deck.ledger.records} == {"main-1"}
        assert deck.door.in_flight("main-1") == 0
    assert len(upstream.exchanges) == 1


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("streams", [True, False])
async def test_a_complete_answer_is_recorded_as_done(monkeypatch, count: int, streams: bool) -> None:
    """With its counts; that the server calls an answered client gone is no leaving, for the last one neither."""
    monkeypatch.setattr("app.proxy.incoming.WATCH_AFTER_SECONDS", 0.0)
    usage, go_on = b'{"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":2}}', asyncio.Event()

    async def script(exchange: Exchange) -> None:
        await go_on.wait()
        if streams:
            await exchange.say(HEAD)
            await exchange.chunk(b"data: %s\n\n" % usage)
            await exchange.say(b"0\r\n\r\n")
        else:
            await exchange.say(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(usage), usage))

    async with running(script) as upstream, serving(shared(upstream)) as deck:
        if count == 2:
            tries = await ask_twice(deck, upstream)
        else:
            tries = [asyncio.create_task(deck.post(BODY))]
            await upstream.arrived.get()
        go_on.set()
        assert [(await one).complete for one in tries] == [True] * count
        async with asyncio.timeout(5):
            while len(deck.ledger.records) < count:
                await asyncio.sleep(0)
        assert [(record.outcome, record.usage) for record in deck.ledger.records] == [("done", Usage(7, 2))] * count
    assert len(upstream.exchanges) == 1


async def test_the_first_client_may_leave_and_the_second_is_served() -> None:
    """The exchange goes on for whoever is left."""
    script = Engine()
    async with running(script) as upstream, serving(shared(upstream)) as deck:
        first, again = await ask_twice(deck, upstream)
        first.cancel()
        async with asyncio.timeout(5):
            while not deck.ledger.records:
                await asyncio.sleep(0.01)
        assert deck.ledger.records[0].outcome == "client_closed" and deck.door.in_flight("main-1") == 1
        script.go_on.set()
        assert (await again).body == b"".join(EVENTS)


async def test_the_engine_is_freed_when_the_last_client_leaves() -> None:
    """Within a second, as for one client."""
    async with running(Engine()) as upstream, serving(shared(upstream)) as deck:
        tries = await ask_twice(deck, upstream)
        for one in tries:
            one.cancel()
        async with asyncio.timeout(1):
            await upstream.exchanges[0].closed.wait()
            await deck.door.open_requests.idle("main-1")


async def test_what_is_drawn_by_chance_is_drawn_twice() -> None:
    """Two samples asked for at once are two samples, unless the client says that it tries again."""
    body = json.dumps({"prompt": "x", "temperature": 0.8, "stream": True}).encode()
    for header, sent in ((None, 2), ("1", 1)):
        script = Engine()
        async with running(script) as upstream, serving(shared(upstream)) as deck:
            headers = {"X-Stainless-Retry-Count": header} if header else {}
            first = asyncio.create_task(deck.post(body, **headers))
            await upstream.arrived.get()
            again = asyncio.create_task(deck.post(body, **headers))
            async with asyncio.timeout(5):
                while deck.door._prompts._counts.total() < 2:
                    await asyncio.sleep(0)
            script.go_on.set()
            await asyncio.gather(first, again)
        assert len(upstream.exchanges) == sent


async def test_other_callers_and_other_sessions_are_not_given_it() -> None:
    """One client's answer is not another's."""
    for header in ({"Authorization": "Bearer other"}, {"X-Session-Id": "other"}, {"Idempotency-Key": "other"}):
        script = Engine()
        async with running(script) as upstream, serving(shared(upstream)) as deck:
            tries = await ask_twice(deck, upstream, **header)
            await upstream.arrived.get()
            script.go_on.set()
            await asyncio.gather(*tries)
        assert len(upstream.exchanges) == 2


async def test_an_engine_that_breaks_off_breaks_off_for_all() -> None:
    """Nobody is told that it was complete."""

    async def script(exchange: Exchange) -> None:
        await exchange.say(HEAD)
        await exchange.chunk(EVENTS[0])
        await asyncio.sleep(0.3)
        exchange.close()

    async with running(script) as upstream, serving(shared(upstream)) as deck:
        answers = await asyncio.gather(*await ask_twice(deck, upstream))
        assert [answer.complete for answer in answers] == [False, False]
        assert {record.outcome for record in deck.ledger.records} == {"upstream_closed"}


async def test_a_large_answer_is_shared_in_bounded_memory(monkeypatch) -> None:
    """Beyond the bound the engine waits for the slowest reader, and nobody new joins."""
    monkeypatch.setattr("app.proxy.sharing.MAX_SHARED_BYTES", 200_000)
    piece, start = b"x" * 50_000, asyncio.Event()

    async def script(exchange: Exchange) -> None:
        await exchange.say(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        await start.wait()
        for _ in range(40):
            await exchange.chunk(piece)
        await exchange.say(b"0\r\n\r\n")

    async with running(script) as upstream, serving(shared(upstream)) as deck:
        tries = await ask_twice(deck, upstream)
        (answer,) = deck.door._shared._answers.values()
        start.set()
        assert [(await one).body for one in tries] == [piece * 40] * 2
        assert not answer.is_open and sum(1 for _ in answer._said) < 40
    assert len(upstream.exchanges) == 1
