"""Which headers cross the door."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from app.proxy.headers import HOP_BY_HOP, content_length, for_client, for_engine

NAMES = st.sampled_from(
    [b"Connection", b"X-Foo", b"x-bar", b"Content-Length", b"Transfer-Encoding", b"Content-Encoding", b"TE", b"Upgrade"]
)
VALUES = st.sampled_from([b"1", b"close", b"x-foo", b"X-BAR, keep-alive", b"gzip", b"chunked", b""])


@given(st.lists(st.tuples(NAMES, VALUES)), st.sampled_from([200, 204, 304, 500]))
def test_no_answer_carries_a_hop_by_hop_header(headers: list[tuple[bytes, bytes]], status: int) -> None:
    """Nor one that Connection named, nor a length beside a transfer encoding."""
    kept = {name for name, _ in for_client(headers, status)}
    assert not kept & HOP_BY_HOP
    named = {t.strip().lower() for n, v in headers if n.lower() == b"connection" for t in v.split(b",")}
    assert not kept & named
    if any(name.lower() == b"transfer-encoding" for name, _ in headers):
        assert b"content-length" not in kept


def test_order_and_repeats_stay() -> None:
    """What crosses, crosses as it came."""
    headers = [(b"set-cookie", b"a"), (b"x", b"1"), (b"set-cookie", b"b"), (b"content-encoding", b"gzip")]
    assert for_client(headers, 200) == headers


def test_credentials_stay_with_the_deck() -> None:
    """The engine has none of its own; the deck's must not reach its log."""
    headers = [(b"authorization", b"Bearer t"), (b"x-api-key", b"t"), (b"cookie", b"t"), (b"accept", b"*/*")]
    assert for_engine(headers) == [(b"accept", b"*/*")]


def test_values_that_are_not_text_cross_as_they_are() -> None:
    """UTF-8 or Latin-1: the engine gets the bytes that the client wrote."""
    headers = [(b"x-user", "é".encode()), (b"x-old", b"\xe9")]
    assert for_engine(headers) == headers


def test_a_length_is_a_number_or_nothing() -> None:
    """A missing length means a streamed body."""
    assert content_length([(b"content-length", b"12")]) == 12
    assert content_length([(b"x", b"1")]) is None
