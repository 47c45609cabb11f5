"""The door's connections to its engines: used again, never for what an engine may have begun."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from app.proxy.connections import Connection, Connections
from app.proxy.forward import head_of
from app.proxy.upstream import NotConnected
from tests.fakes.upstream import Exchange, running
from tests.integration.door_rig import LOOPS, StatedEngines, engine, request_bytes, serving

__all__ = ["LOOPS"]

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def connections_of(exchanges: list[Exchange]) -> int:
    return len({id(exchange.writer) for exchange in exchanges})


async def test_a_connection_is_used_for_one_request_after_the_other() -> None:
    """With a length, in chunks, and without a body."""
    answers = [OK, CHUNKED + b"2\r\nok\r\n0\r\n\r\n", b"HTTP/1.1 204 No Content\r\n\r\n", OK]

    async def script(exchange: Exchange) -> None:
        await exchange.say(answers[len(upstream.exchanges) - 1])

    async with running(script) as upstream, serving(StatedEngines(engine(upstream.port))) as deck:
        bodies = [(await deck.post(b'{"n": %d}' % number)).body for number in range(4)]
    assert bodies == [b"ok", b"ok", b"", b"ok"] and connections_of(upstream.exchanges) == 1


@pytest.mark.parametrize(
    "raw",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok",
        b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok",
        OK + OK,
    ],
)
async def test_a_connection_that_ends_or_says_too_much_is_used_once(raw: bytes) -> None:
    """What belongs to no request is never taken for the answer to the next."""
    async with (
        running(lambda exchange: exchange.say(raw)) as upstream,
        serving(StatedEngines(engine(upstream.port))) as deck,
    ):
        answers = [await deck.post(b'{"n": %d}' % number) for number in range(3)]
    assert [(answer.complete, answer.body) for answer in answers] == [(True, b"ok")] * 3
    assert connections_of(upstream.exchanges) == 3


@contextmanager
def one_answer_for_each_connection() -> Iterator[tuple[int, list[bytes], threading.Event]]:
    """An engine in a thread that closes after each answer without having said so: port, requests, and that it has."""
    requests: list[bytes] = []
    has_closed = threading.Event()

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                requests.append(connection.recv(65536))
                connection.sendall(OK)
            has_closed.set()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield listener.getsockname()[1], requests, has_closed
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


async def test_an_idle_connection_that_the_engine_closed_a_moment_ago_is_not_used() -> None:
    """The kernel is asked, for the loop has not looked at it since: nothing is sent into what is closed."""
    with one_answer_for_each_connection() as (port, requests, has_closed):
        connections, url = Connections(1.0), f"http://127.0.0.1:{port}"
        for number in range(3):
            connection = await connections.take(url)
            answer = connection.ask(head_of("GET", b"/%d" % number, url, []), None, is_chunked=False, is_to_head=False)
            await answer.head()
            assert await answer.read(None) == b"ok"
            connections.give_back(url, connection)
            has_closed.wait()  # holds up this loop on purpose
            has_closed.clear()
        connections.close()
    assert [request.split(b" ")[1] for request in requests] == [b"/0", b"/1", b"/2"]


async def test_an_engine_that_hangs_up_before_it_is_asked_was_asked_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """One on its way out takes a connection and drops it: the request may go elsewhere, it is not left waiting."""
    made = Connection.connection_made

    def made_late(self: Connection, transport: asyncio.BaseTransport) -> None:
        accepted, _ = listener.accept()
        accepted.close()
        made(self, transport)

    monkeypatch.setattr(Connection, "connection_made", made_late)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        with pytest.raises(NotConnected, match="at once"):
            await Connections(5.0).take(f"http://127.0.0.1:{port}")


async def test_what_an_engine_may_have_begun_is_not_sent_again() -> None:
    """A kept connection that dies with the request in it: a 502, and the engine has seen that prompt once."""

    async def script(exchange: Exchange) -> None:
        if exchange.body == b'{"n": 1}':
            exchange.close()
        else:
            await exchange.say(OK)

    async with running(script) as upstream, serving(StatedEngines(engine(upstream.port))) as deck:
        assert (await deck.post(b'{"n": 0}')).status == 200
        answer = await deck.post(b'{"n": 1}')
        assert answer.status == 502 and json.loads(answer.body)["error"]["code"] == "engine_closed_connection"
        assert (await deck.post(b'{"n": 2}')).status == 200
    assert [exchange.body for exchange in upstream.exchanges] == [b'{"n": %d}' % number for number in range(3)]


async def test_an_engine_that_refuses_before_it_has_the_body_is_heard() -> None:
    """Its answer crosses while the client still sends; that connection is not used again."""
    refused = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 2\r\n\r\nno"

    async def script(exchange: Exchange) -> None:
        await exchange.say(refused if len(upstream.exchanges) == 1 else OK)

    async with (
        running(script, reads_body=False) as upstream,
        serving(StatedEngines(engine(upstream.port))) as deck,
    ):
        reader, writer = await deck.connect()
        body = b"x" * (5 * 1024 * 1024)
        writer.write(request_bytes(body, length=len(body) + 1, path="/v1/x"))
        assert (await reader.readline()).startswith(b"HTTP/1.1 400")
        writer.close()
        assert (await deck.exchange("GET", "/v1/y")).status == 200
    assert connections_of(upstream.exchanges) == 2


@pytest.mark.parametrize("declared", [True, False])
async def test_a_body_of_many_megabytes_is_passed_on_as_it_comes(declared: bool) -> None:
    """With the client's length or in chunks; the engine reads slowly and gets every byte."""
    body = bytes(range(256)) * 4096 * 24

    async def script(exchange: Exchange) -> None:
        await asyncio.sleep(0.1)
        await exchange.read_body()
        await exchange.say(OK)

    async with (
        running(script, reads_body=False) as upstream,
        serving(StatedEngines(engine(upstream.port))) as deck,
    ):
        if declared:
            assert (await deck.post(body, "/v1/x")).body == b"ok"
        else:
            reader, writer = await deck.connect()
            writer.write(b"POST /v1/x HTTP/1.1\r\nHost: deck\r\nTransfer-Encoding: chunked\r\n\r\n")
            for start in range(0, len(body), 1 << 20):
                writer.write(b"%x\r\n%s\r\n" % (1 << 20, body[start : start + (1 << 20)]))
            writer.write(b"0\r\n\r\n")
            assert (await reader.readline()).startswith(b"HTTP/1.1 200")
            writer.close()
    assert upstream.exchanges[0].body == body


async def test_a_slow_client_makes_the_engine_wait() -> None:
    """The deck holds a little of an answer, however fast the engine is."""
    said = 0

    async def script(exchange: Exchange) -> None:
        nonlocal said
        await exchange.say(b"HTTP/1.1 200 OK\r\n\r\n")
        while said < 200:
            await exchange.say(b"x" * (1 << 20))
            said += 1
        exchange.close()

    async with running(script) as upstream, serving(StatedEngines(engine(upstream.port))) as deck:
        reader, writer = await deck.connect()
        writer.write(request_bytes(b"{}"))
        await reader.readuntil(b"\r\n\r\n")
        before = -1
        while said != before:  # until the engine is held up
            before = said
            await asyncio.sleep(0.3)
        assert said < 100
        writer.close()


async def test_large_headers_cross_both_ways() -> None:
    """Some tens of kilobytes, once or in many lines."""
    many = b"".join(b"X-%d: %s\r\n" % (number, b"y" * 100) for number in range(300))
    raw = b"HTTP/1.1 200 OK\r\nX-Large: " + b"x" * 60_000 + b"\r\n" + many + b"Content-Length: 0\r\n\r\n"
    async with (
        running(lambda exchange: exchange.say(raw)) as upstream,
        serving(StatedEngines(engine(upstream.port))) as deck,
    ):
        reader, writer = await deck.connect()
        sent = b"POST /v1/x HTTP/1.1\r\nHost: deck\r\nX-Mine: %s\r\nContent-Length: 0\r\n\r\n" % (b"z" * 50_000)
        writer.write(sent)
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            head += await reader.read(65536)
        writer.close()
    assert head.count(b"\r\nx-") == 301 and b"x" * 60_000 in head
    assert len(upstream.exchanges[0].headers["x-mine"]) == 50_000


def test_a_head_is_one_head() -> None:
    """Whatever server stands in front of the door, a line break in a header never makes a second request."""
    with pytest.raises(ValueError, match="line break"):
        head_of("GET", b"/v1/x", "http://127.0.0.1:1", [(b"x", b"1\r\nHost: b")])
