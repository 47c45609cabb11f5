"""What the door makes of an engine's bytes, however they are cut."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.proxy.upstream import MAX_HEAD_BYTES, MAX_HELD_BYTES, EngineAnswer, UpstreamClosed, UpstreamError

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
HINTS = b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n"


class Wire:
    """Whether it was told to wait."""

    is_held = False

    def hold(self) -> None:
        self.is_held = True

    def go_on(self) -> None:
        self.is_held = False


async def told(*pieces: bytes, is_to_head: bool = False, closes: bool = False) -> tuple[EngineAnswer, bytes]:
    """The answer and its body, read as far as it comes; raises what ended it."""
    answer = EngineAnswer(Wire(), asyncio.get_running_loop(), is_to_head=is_to_head)
    for piece in pieces:
        answer.feed(piece)
    if closes:
        answer.lost(None)
    await answer.head()
    body = b""
    while True:
        body += await answer.read(0.05) or b""
        if answer.is_complete:
            return answer, body


@given(st.lists(st.integers(1, 200), max_size=6))
def test_the_cuts_of_the_network_change_nothing(cuts: list[int]) -> None:
    """Early hints, a head, chunks with an extension and trailers, cut anywhere."""
    raw = HINTS + CHUNKED + b"3;x=y\r\nabc\r\n4\r\n\r\n\0\xff\r\n0\r\nX-Late: 1\r\n\r\n"
    edges = sorted({0, len(raw), *(cut % len(raw) for cut in cuts)})
    pieces = [raw[start:end] for start, end in pairwise(edges)]
    answer, body = asyncio.run(told(*pieces))
    assert body == b"abc\r\n\0\xff" and answer.may_be_followed
    assert answer.headers == [(b"Transfer-Encoding", b"chunked")]


async def test_headers_keep_their_case_their_order_and_their_repeats() -> None:
    """Also one without a value, and one with bytes that are no text."""
    raw = b"HTTP/1.1 200 OK\r\nX-B: 1\r\nx-a:\r\nX-b: \xe9\r\nContent-Length: 0\r\n\r\n"
    answer, _ = await told(raw)
    assert answer.headers == [(b"X-B", b"1"), (b"x-a", b""), (b"X-b", b"\xe9"), (b"Content-Length", b"0")]


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (b"HTTP/1.1 204 No Content\r\n\r\n", 204),
        (b"HTTP/1.1 304 Not Modified\r\nContent-Length: 400\r\n\r\n", 304),
        (HINTS + HINTS + b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", 200),
        (b"HTTP/1.1 200\r\nContent-Length: 0\r\n\r\n", 200),
    ],
)
async def test_an_answer_without_a_body_ends_with_its_head(raw: bytes, status: int) -> None:
    """And the connection is good for more."""
    answer, body = await told(raw)
    assert (answer.status, body, answer.may_be_followed) == (status, b"", True)


async def test_an_answer_to_head_ends_whatever_length_it_names() -> None:
    """The parser would wait for a body: the connection is not used again."""
    answer, body = await told(b"HTTP/1.1 200 OK\r\nContent-Length: 123\r\n\r\n", is_to_head=True)
    assert body == b"" and not answer.may_be_followed


@pytest.mark.parametrize(
    "raw",
    [
        b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 200 OK\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok\r\nrubbish",
    ],
)
async def test_a_connection_that_closes_or_says_more_than_was_asked_is_not_used_again(raw: bytes) -> None:
    """The answer itself is whole."""
    answer, body = await told(raw)
    assert body == b"ok" and not answer.may_be_followed


async def test_without_a_length_the_end_of_the_connection_is_the_end() -> None:
    """As HTTP/1.0 had it."""
    assert (await told(b"HTTP/1.1 200 OK\r\n\r\nall", b" of it", closes=True))[1] == b"all of it"


@pytest.mark.parametrize(
    ("raw", "kind"),
    [
        (b"", UpstreamClosed),
        (b"HTTP/1.1 200 OK\r\nContent-Le", UpstreamClosed),
        (HINTS, UpstreamClosed),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nok", UpstreamClosed),
        (CHUNKED + b"5\r\nhello\r\n", UpstreamClosed),
        (b"BANANA\r\n\r\n", UpstreamError),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\n", UpstreamError),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n", UpstreamError),
        (b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\nxx", UpstreamError),
        (b"HTTP/1.1 999 What\r\nContent-Length: 0\r\n\r\n", UpstreamError),
        (b"HTTP/1.1 200 OK\r\nX: a\r\n folded\r\nContent-Length: 0\r\n\r\n", UpstreamError),
        (CHUNKED + b"zz\r\n", UpstreamError),
    ],
)
async def test_half_an_answer_is_none_and_what_is_no_http_is_said_to_be(raw: bytes, kind: type[Exception]) -> None:
    """Never taken for complete."""
    with pytest.raises(kind):
        await told(raw, closes=True)


async def test_a_reset_is_no_end_of_an_answer_without_a_length() -> None:
    """Only an orderly close is."""
    answer = EngineAnswer(Wire(), asyncio.get_running_loop(), is_to_head=False)
    answer.feed(b"HTTP/1.1 200 OK\r\n\r\nhalf")
    answer.lost(ConnectionResetError("reset"))
    assert await answer.read(None) == b"half"
    with pytest.raises(UpstreamClosed, match="reset"):
        await answer.read(None)


async def test_a_large_head_is_taken_and_one_without_end_is_not() -> None:
    """A hundred kilobytes of headers cross; who never comes to an end is refused."""
    line = b"X-Large: " + b"x" * 100_000 + b"\r\n"
    answer, _ = await told(b"HTTP/1.1 200 OK\r\n" + line + b"Content-Length: 0\r\n\r\n")
    assert len(answer.headers[0][1]) == 100_000
    with pytest.raises(UpstreamError):
        await told(b"HTTP/1.1 200 OK\r\n", *[line] * (MAX_HEAD_BYTES // len(line) + 1))


async def test_silence_is_told_and_ends_nothing() -> None:
    """What comes afterwards is read as if nothing had been."""
    answer = EngineAnswer(Wire(), asyncio.get_running_loop(), is_to_head=False)
    answer.feed(CHUNKED)
    assert await answer.read(0.01) is None and not answer.is_complete
    answer.feed(b"1\r\na\r\n0\r\n\r\n")
    assert await answer.read(0.01) == b"a" and answer.is_complete


@pytest.mark.parametrize("silence_seconds", [None, 5.0])
async def test_what_is_no_body_is_no_silence(silence_seconds: float | None) -> None:
    """The size of a chunk that comes before the chunk: nobody is told of anything until the body is there."""
    answer = EngineAnswer(Wire(), asyncio.get_running_loop(), is_to_head=False)
    answer.feed(CHUNKED)
    reading = asyncio.create_task(answer.read(silence_seconds))
    for piece in (b"1", b"\r", b"\n"):
        await asyncio.sleep(0)
        answer.feed(piece)
        await asyncio.sleep(0)
        assert not reading.done()
    answer.feed(b"a")
    assert await reading == b"a"


async def test_an_engine_waits_for_a_slow_reader() -> None:
    """So much is held and no more; reading lets it go on."""
    wire = Wire()
    answer = EngineAnswer(wire, asyncio.get_running_loop(), is_to_head=False)
    answer.feed(b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * MAX_HELD_BYTES)
    assert not wire.is_held
    answer.feed(b"x")
    assert wire.is_held
    assert len(await answer.read(None) or b"") == MAX_HELD_BYTES + 1 and not wire.is_held
