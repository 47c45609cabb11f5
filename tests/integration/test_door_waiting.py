"""Requests that come while no engine is ready."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable

import openai
import pytest

from app.supervisor.states import EngineState
from tests.fakes.upstream import Exchange, Script, running
from tests.integration.door_rig import Answer, Served, StatedEngines, engine, request_bytes, serving


async def answer_ok(exchange: Exchange) -> None:
    await exchange.say(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")


async def until(condition: Callable[[], bool]) -> None:
    """Let the loop turn until `condition` holds."""
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0)


async def in_line(deck: Served, count: int) -> list[asyncio.Task[Answer]]:
    """Start requests one by one, each in line before the next."""
    tasks = []
    for number in range(count):
        tasks.append(asyncio.create_task(deck.post(b'{"n": %d}' % number)))
        await until(lambda: deck.door.waiting == len(tasks))
    return tasks


async def test_requests_wait_for_a_starting_engine_and_go_in_order() -> None:
    """Those who came first are sent first, as soon as the engine is ready."""
    async with running(answer_ok) as upstream:
        engines = StatedEngines(engine(upstream.port, EngineState.STARTING))
        async with serving(engines) as deck:
            waiting = await in_line(deck, 5)
            engines.become(engine(upstream.port, EngineState.STARTING, progress=0.5))
            engines.become(engine(upstream.port))
            assert [answer.status for answer in await asyncio.gather(*waiting)] == [200] * 5
            assert deck.door.waiting == 0
        assert [exchange.body for exchange in upstream.exchanges] == [b'{"n": %d}' % n for n in range(5)]


async def test_a_restart_is_waited_out_through_every_state() -> None:
    """Draining, stopping, stopped for a moment, starting: a waiting request is not refused on the way."""
    async with running(answer_ok) as upstream:
        engines = StatedEngines(engine(upstream.port, EngineState.DRAINING))
        async with serving(engines) as deck:
            (waiting,) = await in_line(deck, 1)
            for state in (EngineState.STOPPING, EngineState.STOPPED, EngineState.STARTING, EngineState.READY):
                engines.become(engine(upstream.port, state, since=time.time()))
                await asyncio.sleep(0.01)
            assert (await waiting).status == 200


async def test_a_full_line_refuses_with_a_time_to_come_back() -> None:
    """503, Retry-After and OpenAI's shape; those in line stay."""
    engines = StatedEngines(engine(state=EngineState.STARTING))
    async with serving(engines, door_wait_limit=2) as deck:
        waiting = await in_line(deck, 2)
        answer = await deck.post(b"{}")
        assert answer.status == 503 and int(answer.header("retry-after") or 0) > 0
        error = json.loads(answer.body)["error"]
        assert error["code"] == "too_many_waiting" and error["type"] == "server_error" and error["message"]
        engines.become(engine(state=EngineState.FAILED, cause="The model does not exist."))
        assert [(await task).status for task in waiting] == [503, 503]


async def test_waiting_ends() -> None:
    """After the configured time the client is told what the engine is doing."""
    engines = StatedEngines(engine(state=EngineState.STARTING, cause="Loading weights."))
    async with serving(engines, door_wait_seconds=0.1) as deck:
        answer = await deck.post(b"{}")
    assert answer.status == 503 and answer.header("retry-after")
    assert "Loading weights." in json.loads(answer.body)["error"]["message"]


async def test_an_engine_that_gave_up_is_told_at_once() -> None:
    """Failed or stopped by the operator: nothing will come of waiting, so the sentence comes at once."""
    for state in (EngineState.FAILED, EngineState.STOPPED):
        engines = StatedEngines(engine(state=state, cause="The port is in use."))
        async with serving(engines) as deck:
            started = time.monotonic()
            answer = await deck.post(b"{}", path="/v1/messages")
        assert answer.status == 503 and time.monotonic() - started < 1
        body = json.loads(answer.body)
        assert "The port is in use." in body["error"]["message"] and body["type"] == "error"


async def test_a_client_that_leaves_the_line_frees_its_place() -> None:
    """Also one whose body is longer than what the server reads ahead."""
    for body in (b"{}", b"x" * 1_000_000):
        async with serving(StatedEngines(engine(state=EngineState.STARTING))) as deck:
            _, writer = await deck.connect()
            writer.write(request_bytes(body))
            await until(lambda: deck.door.waiting == 1)
            await writer.drain()
            writer.close()
            await until(lambda: deck.door.waiting == 0)


async def test_a_refused_connection_is_tried_again_because_nothing_was_sent() -> None:
    """Between the death of an engine and the supervisor's notice, the next ready engine or the next start serves."""
    async with running(answer_ok) as upstream:
        dead = engine(1, name="main-0")
        async with serving(StatedEngines(dead, engine(upstream.port))) as deck:
            assert (await deck.post(b"{}")).status == 200
        engines = StatedEngines(dead)
        async with serving(engines) as deck:
            waiting = asyncio.create_task(deck.post(b"{}"))
            await until(lambda: deck.door.waiting == 1)
            engines.become(engine(upstream.port))
            assert (await waiting).status == 200


async def test_an_engine_that_never_takes_a_connection_is_given_up() -> None:
    """Ready by its state, but unreachable: 503 after the connect timeout, not after the whole wait."""
    async with serving(StatedEngines(engine(1)), door_connect_timeout_seconds=0.6) as deck:
        answer = await deck.post(b"{}")
    assert answer.status == 503
    assert json.loads(answer.body)["error"]["code"] == "engine_unreachable"


async def test_the_least_busy_engine_is_chosen() -> None:
    """A long request on one engine sends the next to the other."""

    async def slow(exchange: Exchange) -> None:
        await exchange.until_closed()

    async with running(slow) as first, running(answer_ok) as second:
        engines = StatedEngines(engine(first.port, name="a"), engine(second.port, name="b"))
        async with serving(engines) as deck:
            _, writer = await deck.connect()
            writer.write(request_bytes(b"{}"))
            await first.arrived.get()
            assert engines.in_flight("a") == 1
            assert (await deck.post(b"{}")).status == 200
            writer.close()


STREAM = b'{"stream": true}'
EVENTS = b'data: {"n":1}\n\ndata: [DONE]\n\n'
KEEPALIVE = b": keep-alive\n\n"


async def stream_events(exchange: Exchange) -> None:
    await exchange.say(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
    await exchange.chunk(EVENTS)
    await exchange.say(b"0\r\n\r\n")


async def refuse_length(exchange: Exchange) -> None:
    body = b'{"error": {"message": "The prompt is too long.", "code": 400}}'
    await exchange.say(b"HTTP/1.1 400 Bad Request\r\nContent-Length: %d\r\n\r\n" % len(body) + body)


async def waited_out(script: Script, path: str = "/v1/completions", body: bytes = STREAM, **headers: str) -> Answer:
    """The answer to a request that was in line until it was given a sign of life, or for a while."""
    async with running(script) as upstream:
        engines = StatedEngines(engine(upstream.port, EngineState.STARTING))
        async with serving(engines, door_early_stream_seconds=0.1, door_keepalive_seconds=0.1) as deck:
            waiting = asyncio.create_task(deck.post(body, path, **headers))
            await until(lambda: deck.door.waiting == 1)
            await asyncio.sleep(0.5)
            engines.become(engine(upstream.port))
            return await waiting


async def test_a_stream_in_line_is_kept_alive_and_then_streams() -> None:
    """Comments while it waits, the engine's events when it is ready."""
    answer = await waited_out(stream_events)
    assert answer.status == 200 and answer.complete
    assert answer.header("content-type") == b"text/event-stream; charset=utf-8"
    assert answer.body.startswith(KEEPALIVE * 2) and answer.body.replace(KEEPALIVE, b"") == EVENTS


async def test_only_streams_of_clients_that_want_it_are_begun_early() -> None:
    """Whoever waits for a whole answer, or opted out, sees the engine's status."""
    assert (await waited_out(refuse_length, body=b"{}")).status == 400
    assert (await waited_out(refuse_length, **{"X-Tierdeck-Keepalive": "off"})).status == 400


async def test_an_error_behind_an_early_beginning_is_an_event() -> None:
    """In the words of the engine and in the shape of each API."""
    answer = await waited_out(refuse_length)
    first, last = answer.body.replace(KEEPALIVE, b"").strip().split(b"\n\n")
    error = json.loads(first.removeprefix(b"data: "))["error"]
    assert error["message"] == "The prompt is too long." and error["code"] == "engine_answered_400"
    assert last == b"data: [DONE]" and answer.complete
    for path in ("/v1/messages", "/v1/responses"):
        body = (await waited_out(refuse_length, path)).body.replace(KEEPALIVE, b"")
        assert body.startswith(b"event: error\ndata: ")
        assert json.loads(body.removeprefix(b"event: error\ndata: "))["type"] == "error"


async def test_an_engine_that_gives_up_behind_an_early_beginning_is_an_event() -> None:
    """The stock client raises its error from it, with the deck's sentence."""
    engines = StatedEngines(engine(state=EngineState.STARTING))
    async with (
        serving(engines, door_early_stream_seconds=0.05, door_keepalive_seconds=0.05) as deck,
        openai.AsyncOpenAI(base_url=f"{deck.base_url}/v1", api_key="any", max_retries=0) as client,
    ):
        stream = await client.completions.create(model="demo", prompt="x", stream=True)
        engines.become(engine(state=EngineState.FAILED, cause="The model does not exist."))
        with pytest.raises(openai.APIError, match="The model does not exist"):
            [event async for event in stream]
        assert [record.outcome for record in deck.ledger.records] == ["refused"]


async def test_no_engine_at_all() -> None:
    """A deck without engines says so."""
    async with serving(StatedEngines()) as deck:
        answer = await deck.post(b"{}")
    assert answer.status == 503 and json.loads(answer.body)["error"]["code"] == "no_engine"
