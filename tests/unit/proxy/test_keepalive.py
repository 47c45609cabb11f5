"""When a silent stream gets a comment."""

from __future__ import annotations

import pytest

from app.proxy.keepalive import interval_seconds, is_between_events

STREAM = [(b"content-type", b"text/event-stream; charset=utf-8")]


def test_only_a_plain_event_stream_is_kept_alive() -> None:
    """Nothing else may have bytes added."""
    assert interval_seconds(15.0, [], STREAM) == 15.0
    assert interval_seconds(15.0, [], [(b"content-type", b"application/json")]) is None
    assert interval_seconds(15.0, [], [*STREAM, (b"content-encoding", b"gzip")]) is None
    assert interval_seconds(15.0, [], [*STREAM, (b"content-length", b"10")]) is None


def test_it_can_be_off_for_all_or_for_one_client() -> None:
    """By setting or by header."""
    assert interval_seconds(0.0, [], STREAM) is None
    assert interval_seconds(15.0, [(b"X-Tierdeck-Keepalive", b"Off")], STREAM) is None


@pytest.mark.parametrize(
    ("tail", "between"),
    [(b"", True), (b"}\n\n", True), (b"\r\n\r\n", True), (b"\r\r", True), (b"ta: {", False), (b"}\n", False)],
)
def test_an_event_ends_with_an_empty_line(tail: bytes, between: bool) -> None:
    """Before the first event there is nothing to split."""
    assert is_between_events(tail) is between
