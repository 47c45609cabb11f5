"""P07: whatever an engine answers, what leaves the door is true HTTP with the same bytes in it."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence

import pytest
from structlog.testing import capture_logs

from app.supervisor.status import EngineStatus
from tests.fakes.upstream import Exchange, running
from tests.integration.door_rig import LOOPS, StatedEngines, engine, request_bytes, serving

__all__ = ["LOOPS"]

PLAIN = json.dumps({"choices": [{"text": "héllo"}]}).encode()
ZIPPED = gzip.compress(PLAIN)
EVENTS = [b'data: {"n":%d}\n\n' % number for number in range(20)] + [b"data: [DONE]\n\n"]


def answering(raw: bytes):
    async def script(exchange: Exchange) -> None:
        await exchange.say(raw)

    return script


async def exchange_with(raw: bytes, method: str = "POST"):
    async with running(answering(raw)) as upstream, serving(StatedEngines(engine(upstream.port))) as deck:
        return await deck.exchange(method, "/v1/completions", b"{}" if method == "POST" else b"")


async def test_a_compressed_body_keeps_its_bytes_its_encoding_and_its_length() -> None:
    """Raw bytes cross with the headers that describe them."""
    raw = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(ZIPPED) + ZIPPED
    answer = await exchange_with(raw)
    assert answer.complete and answer.body == ZIPPED
    assert answer.header("content-encoding") == b"gzip"
    assert answer.header("content-length") == b"%d" % len(ZIPPED)
    assert answer.header("transfer-encoding") is None


async def test_a_chunked_stream_arrives_event_by_event() -> None:
    """Every event reaches the client before the engine says the next one."""

    async def script(exchange: Exchange) -> None:
        await exchange.say(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")

    async with running(script) as upstream, serving(StatedEngines(engine(upstream.port))) as deck:
        reader, writer = await deck.connect()
        writer.write(request_bytes(b'{"stream": true}'))
        exchange = await upstream.arrived.get()
        head = await reader.readuntil(b"\r\n\r\n")
        assert b"text/event-stream" in head and b"content-length" not in head.lower()
        for event in EVENTS:
            await exchange.chunk(event)
            assert int(await reader.readline(), 16) == len(event)
            assert await reader.readexactly(len(event) + 2) == event + b"\r\n"
        await exchange.say(b"0\r\n\r\n")
        assert await reader.readuntil(b"0\r\n\r\n") == b"0\r\n\r\n"
        writer.close()


async def test_never_both_a_length_and_a_transfer_encoding() -> None:
    """An engine that sends both contradicts itself (RFC 9112, 6.3: handle it as an error): a 502 that says so."""
    raw = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n" % (
        len(PLAIN),
        PLAIN,
    )
    answer = await exchange_with(raw)
    assert answer.complete and answer.status == 502
    assert "HTTP's rules" in json.loads(answer.body)["error"]["message"]


@pytest.mark.parametrize(
    "raw",
    [
        b"HTTP/1.1 204 No Content\r\nX-Kept: 1\r\n\r\n",
        b"HTTP/1.1 304 Not Modified\r\nContent-Length: 400\r\nX-Kept: 1\r\n\r\n",
        b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\nHTTP/1.1 200 OK\r\nX-Kept: 1\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 404 Not Found\r\nX-Kept: 1\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 429 Too Many Requests\r\nX-Kept: 1\r\nRetry-After: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    ],
)
async def test_answers_without_a_body_end(raw: bytes) -> None:
    """204, 304, early hints, and errors of the engine come through as themselves and end at once."""
    answer = await exchange_with(raw)
    status = raw.rsplit(b"HTTP/1.1 ", 1)[1][:3]
    assert answer.complete and answer.body == b"" and answer.status == int(status)
    assert answer.header("x-kept") == b"1"


async def test_an_answer_that_ends_with_the_connection_is_given_an_end() -> None:
    """Without length or chunks the engine's close is the end; the client gets a framed one."""

    async def script(exchange: Exchange) -> None:
        await exchange.say(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + PLAIN)
        exchange.close()

    async with running(script) as upstream, serving(StatedEngines(engine(upstream.port))) as deck:
        answer = await deck.post(b"{}")
    assert answer.complete and answer.body == PLAIN


async def test_head_keeps_the_length_and_has_no_body() -> None:
    """HEAD describes the body that GET would have."""
    answer = await exchange_with(b"HTTP/1.1 200 OK\r\nContent-Length: 123\r\nX-Kept: 1\r\n\r\n", "HEAD")
    assert answer.complete and answer.body == b"" and answer.header("content-length") == b"123"


async def test_headers_of_one_hop_stay_on_it_both_ways() -> None:
    """Hop-by-hop headers and those named in Connection do not cross; the deck's credentials neither."""
    raw = (
        b"HTTP/1.1 200 OK\r\nConnection: keep-alive, X-Foo\r\nKeep-Alive: timeout=5\r\nX-Foo: 1\r\n"
        b"X-Bar: 2\r\nSet-Cookie: a=1\r\nSet-Cookie: b=2\r\nContent-Length: 2\r\n\r\nok"
    )
    async with running(answering(raw)) as upstream, serving(StatedEngines(engine(upstream.port))) as deck:
        answer = await deck.post(
            b"{}",
            Connection="keep-alive, X-Mine",
            TE="trailers",
            Authorization="Bearer secret-token",
            Cookie="tierdeck=secret-cookie",
            **{"X-Mine": "1", "X-Session-Id": "abc", "X-API-Key": "secret-key", "User-Agent": "me/1"},
        )
        seen = upstream.exchanges[0]
    assert {name for name, _ in answer.headers} == {b"x-bar", b"content-length", b"set-cookie"}
    assert [value for name, value in answer.headers if name == b"set-cookie"] == [b"a=1", b"b=2"]
    assert set(seen.headers) <= {"host", "content-length", "x-session-id", "x-request-id", "user-agent"}
    assert seen.headers["host"] == f"127.0.0.1:{upstream.port}" and seen.headers["user-agent"] == "me/1"
    assert b"secret" not in seen.head


async def test_path_and_query_cross_as_written() -> None:
    """Percent-encoding is the client's business."""
    ok = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
    target = "/v1/models/a%2Fb%20c?x=%41&y=a+b&z"
    async with running(answering(ok)) as upstream, serving(StatedEngines(engine(upstream.port))) as deck:
        await deck.exchange("GET", target)
        assert upstream.exchanges[0].request_line == f"GET {target} HTTP/1.1"


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_large_body_arrives_whole(chunked: bool) -> None:
    """3 MiB, with a declared length and without one."""
    ok = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
    body = bytes(range(256)) * 12288
    async with running(answering(ok)) as upstream, serving(StatedEngines(engine(upstream.port))) as deck:
        if chunked:
            reader, writer = await deck.connect()
            writer.write(b"POST /v1/x HTTP/1.1\r\nHost: deck\r\nTransfer-Encoding: chunked\r\n\r\n")
            for start in range(0, len(body), 100_000):
                piece = body[start : start + 100_000]
                writer.write(b"%x\r\n%s\r\n" % (len(piece), piece))
            writer.write(b"0\r\n\r\n")
            assert (await reader.readline()).startswith(b"HTTP/1.1 200")
            writer.close()
        else:
            assert (await deck.post(body)).status == 200
        seen = upstream.exchanges[0]
    assert seen.body == body
    assert ("content-length" in seen.headers) != ("transfer-encoding" in seen.headers)


@pytest.mark.parametrize("declared", [True, False])
async def test_a_body_above_the_limit_is_refused_in_the_clients_shape(declared: bool) -> None:
    """413 with an OpenAI-shaped error, before the engine sees a complete request."""
    async with (
        running(answering(b"")) as upstream,
        serving(StatedEngines(engine(upstream.port)), door_body_limit_bytes=100_000) as deck,
    ):
        if declared:
            answer = await deck.post(b"x" * 100_001)
            assert answer.status == 413 and upstream.exchanges == []
            error = json.loads(answer.body)["error"]
            assert error["code"] == "body_too_large" and error["type"] == "invalid_request_error"
        else:
            reader, writer = await deck.connect()
            writer.write(b"POST /v1/x HTTP/1.1\r\nHost: deck\r\nTransfer-Encoding: chunked\r\n\r\n")
            for _ in range(3):
                writer.write(b"%x\r\n%s\r\n" % (50_000, b"x" * 50_000))
            assert (await reader.readline()).startswith(b"HTTP/1.1 413")
            writer.close()


async def test_expect_continue_is_answered_by_the_deck() -> None:
    """A client that asks before it sends its body is told to go on; the engine is not asked."""
    ok = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
    async with running(answering(ok)) as upstream, serving(StatedEngines(engine(upstream.port))) as deck:
        reader, writer = await deck.connect()
        writer.write(b"POST /v1/x HTTP/1.1\r\nHost: d\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n")
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100")
        writer.write(b"{}")
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        assert "expect" not in upstream.exchanges[0].headers and upstream.exchanges[0].body == b"{}"
        writer.close()


async def test_an_engine_that_breaks_off_is_seen_to_break_off() -> None:
    """A stream cut in the middle must not look like a complete one, with a length or in chunks."""
    for head in (b"Content-Length: 100", b"Transfer-Encoding: chunked"):

        async def script(exchange: Exchange, head: bytes = head) -> None:
            await exchange.say(b"HTTP/1.1 200 OK\r\n" + head + b"\r\n\r\n")
            await exchange.say(b"5\r\nhello\r\n" if b"chunked" in head else b"hello")
            exchange.close()

        async with running(script) as upstream, serving(StatedEngines(engine(upstream.port))) as deck:
            answer = await deck.post(b"{}")
        assert answer.status == 200 and answer.body == b"hello" and not answer.complete


async def test_an_engine_that_closes_without_a_word_is_a_502_and_is_not_asked_again() -> None:
    """After the body was sent there is no second try: it would double the prefill."""

    async def script(exchange: Exchange) -> None:
        exchange.close()

    async with running(script) as upstream, serving(StatedEngines(engine(upstream.port))) as deck:
        answer = await deck.post(b"{}")
        assert answer.status == 502 and len(upstream.exchanges) == 1
        assert json.loads(answer.body)["error"]["code"] == "engine_closed_connection"


async def test_an_answer_that_is_not_http_is_a_502() -> None:
    """The client still gets HTTP."""
    answer = await exchange_with(b"BANANA\r\n\r\n")
    assert answer.status == 502 and answer.complete


async def test_a_fault_of_the_deck_itself_is_an_error_in_the_clients_shape() -> None:
    """With a reference to the log, and a record; nothing of the fault itself."""

    class Broken(StatedEngines):
        def statuses(self) -> Sequence[EngineStatus]:
            raise RuntimeError("my secret")

    async with serving(Broken()) as deck:
        with capture_logs() as lines:
            answer = await deck.post(b"{}")
    error = json.loads(answer.body)["error"]
    assert answer.complete and answer.status == 500 and "secret" not in repr(answer)
    (line,) = [line for line in lines if line["event"] == "unexpected_error"]
    assert line["reference"] in error["message"] and [record.status for record in deck.ledger.records] == [500]
