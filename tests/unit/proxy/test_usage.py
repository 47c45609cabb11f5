"""Token counts at the end of an answer."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.proxy.usage import TAIL_BYTES, Tail, Usage, response_id_in, usage_in

CHAT = {"prompt_tokens": 30000, "total_tokens": 30008, "completion_tokens": 8}


def event(**body: object) -> bytes:
    return b"data: " + json.dumps(body, separators=(",", ":")).encode() + b"\n\n"


def test_a_whole_answer_ends_with_its_counts() -> None:
    """With what was cached, when the engine tells it."""
    body = {"id": "c", "choices": [{"text": 'say "usage":{"prompt_tokens":1}'}], "usage": CHAT, "x": None}
    assert usage_in(json.dumps(body, separators=(",", ":")).encode()) == Usage(30000, 8)
    told = {**CHAT, "prompt_tokens_details": {"cached_tokens": 29952}}
    assert usage_in(event(usage=told)) == Usage(30000, 8, 29952)
    assert usage_in(event(usage={**CHAT, "prompt_tokens_details": None})) == Usage(30000, 8)


def test_the_last_counts_of_a_stream_are_taken() -> None:
    """Then comes the end mark."""
    stream = event(usage={"prompt_tokens": 5, "completion_tokens": 1}) + event(usage=CHAT) + b"data: [DONE]\n\n"
    assert usage_in(stream) == Usage(30000, 8)


def test_a_stream_without_counts_says_nothing() -> None:
    """Missing is missing, not 0."""
    assert usage_in(event(choices=[]) + event(usage=None) + b"data: [DONE]\n\n") == Usage()


def test_counts_of_the_responses_api() -> None:
    """Inside the last event, with more after them."""
    usage = {"input_tokens": 100, "input_tokens_details": {"cached_tokens": 64}, "output_tokens": 9}
    assert usage_in(event(type="response.completed", response={"usage": usage, "user": None})) == Usage(100, 9, 64)


def test_anthropics_counts_leave_the_cached_tokens_out_of_the_input() -> None:
    """So they are added again."""
    usage = {"input_tokens": 10, "cache_read_input_tokens": 90, "output_tokens": 4}
    assert usage_in(b"event: message_delta\n" + event(type="message_delta", usage=usage)) == Usage(100, 4, 90)
    assert usage_in(event(usage={"input_tokens": 10, "output_tokens": 4})) == Usage(10, 4, None)


@pytest.mark.parametrize("broken", [b'"usage":', b'"usage":{', b'"usage":{]}', b'"usage":[1]', b'"usage":{"a":{}'])
def test_counts_that_are_cut_off_are_not_guessed(broken: bytes) -> None:
    """An answer that broke off has none."""
    assert usage_in(broken) == Usage()


@pytest.mark.parametrize("count", [-1, 2**31, 1.5, "7", None, True, [7]])
def test_a_count_that_is_none_is_missing(count: object) -> None:
    """Nonsense of an engine does not reach the database."""
    assert usage_in(event(usage={"prompt_tokens": count, "completion_tokens": 8})) == Usage(None, 8)


@given(st.lists(st.binary(max_size=TAIL_BYTES * 2), max_size=20))
def test_the_tail_holds_the_end_and_little_more(pieces: list[bytes]) -> None:
    """However the stream was cut, the last 16 KiB are there and memory is bounded."""
    tail = Tail()
    for piece in pieces:
        if piece:
            tail.add(piece)
    kept = b"".join(tail._pieces)
    assert b"".join(pieces).endswith(kept)
    assert min(TAIL_BYTES, len(b"".join(pieces))) <= len(kept) < 2 * TAIL_BYTES or not kept


def test_a_response_names_itself_at_its_beginning() -> None:
    """In a stream and in a whole answer."""
    assert response_id_in(b'event: response.created\ndata: {"response":{"id":"resp_abc","object":"x"}}') == "resp_abc"
    assert response_id_in(b'{"id": "resp_abc"}') == "resp_abc"
    assert response_id_in(b'{"id": "cmpl-1"}') is None
