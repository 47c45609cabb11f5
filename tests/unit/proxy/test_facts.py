"""What the door reads of a request, and that no request breaks it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.proxy.facts import Facts, facts_of, facts_of_head

CHAT = "/v1/chat/completions"
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
KEYS = st.sampled_from(
    ["model", "stream", "messages", "prompt", "input", "prompt_cache_key", "conversation", "metadata", "user", "seed"]
)


def read(body: Any, path: str = CHAT, **headers: str) -> Facts:
    raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return facts_of(path, raw, body if isinstance(body, bytes) else json.dumps(body).encode())


def chat(*messages: tuple[str, Any], **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": role, "content": content} for role, content in messages], **more}


def test_model_and_streaming_are_found_wherever_they_stand() -> None:
    """SDKs write the messages first."""
    facts = read({"messages": [{"role": "user", "content": "x" * 100_000}], "model": "m", "stream": True})
    assert facts.model == "m" and facts.streams


@pytest.mark.parametrize(
    ("body", "session"),
    [
        ({"prompt_cache_key": "k", "user": "u"}, "k"),
        ({"conversation": {"id": "c"}, "user": "u"}, "c"),
        ({"conversation": "c"}, "c"),
        ({"previous_response_id": "resp_1", "user": "u"}, "resp_1"),
        ({"metadata": {"user_id": "user_1_session_2"}}, "user_1_session_2"),
        ({"user": "u"}, "u"),
        ({"user": 5}, None),
        ({}, None),
    ],
)
def test_a_session_goes_by_its_most_exact_name(body: dict[str, Any], session: str | None) -> None:
    """A user has many sessions."""
    assert read(body).session == session


@pytest.mark.parametrize("header", ["x-tierdeck-session", "x-session-id", "session-id", "x-claude-code-session-id"])
def test_a_header_names_the_session_before_the_body_does(header: str) -> None:
    """What the client says outside of the body was meant for routers."""
    assert facts_of(CHAT, [(header.encode(), b"mine")], b'{"user": "u"}').session == "mine"


def test_turns_of_one_chat_are_one_session_and_chats_with_one_system_prompt_are_not() -> None:
    """The first words of the user stay, however the chat grows and marks move."""
    first = read(chat(("system", "You help."), ("user", "Mend\nthis.")))
    later = read(chat(("system", "You help."), ("user", "Mend\nthis."), ("assistant", "Done."), ("user", "Thanks.")))
    parts = [{"type": "text", "text": "Mend\nthis.", "cache_control": {"type": "ephemeral"}}]
    marked = read(chat(("system", "You help."), ("user", parts)))
    other = read(chat(("system", "You help."), ("user", "Break that.")))
    assert first.session == later.session == marked.session
    assert first.session is not None and first.session.startswith("prompt:")
    assert other.session != first.session


@pytest.mark.parametrize("offset", range(2030, 2050))
@pytest.mark.parametrize("character", ["x", "é", "\n", "😀", '"', "\\"])
def test_a_long_first_message_is_its_beginning(offset: int, character: str) -> None:
    """However the characters are written around the cut."""
    text = "x" * offset + character * 20_000
    for ascii_only in (True, False):
        bodies = [chat(("user", said)) for said in (text, [{"type": "text", "text": text}], text + "more")]
        sessions = {read(json.dumps(body, ensure_ascii=ascii_only).encode()).session for body in bodies}
        assert len(sessions) == 1 and None not in sessions


def test_a_first_message_of_odd_parts_is_read_as_far_as_it_is_text() -> None:
    """Pictures have none."""
    parts = [
        {"type": "image_url", "image_url": {"url": "data:" + "x" * 50_000}},
        {"type": "text", "text": "What is it?"},
    ]
    assert read(chat(("user", parts))).session == read(chat(("user", "What is it?"))).session


@pytest.mark.parametrize("start", ["x" * 3000, list(range(1000, 3000)), ["x" * 3000]])
def test_a_bare_prompt_that_grows_stays_one_session(start: Any) -> None:
    """Its first two thousand bytes are its name."""
    more = start + " more" if isinstance(start, str) else [*start, *start[:1]]
    session = read({"prompt": start}, "/v1/completions").session
    assert session is not None and session == read({"prompt": more}, "/v1/completions").session
    assert session != read({"prompt": "y" + str(start)}, "/v1/completions").session


def test_responses_and_messages_have_sessions_too() -> None:
    """Input as text, or as items; Anthropic's messages."""
    text = read({"input": "hello"}, "/v1/responses").session
    assert text and text.startswith("prompt:")
    assert read({"input": [{"role": "user", "content": "hello"}]}, "/v1/responses").session == text
    assert read(chat(("user", "hello")), "/v1/messages").session == text


def test_what_has_no_prefix_cache_has_no_session_of_its_own() -> None:
    """Embeddings and token counts go to whoever is free."""
    assert read({"input": "hello"}, "/v1/embeddings").session is None
    assert read({"prompt": "hello"}, "/tokenize").session is None


@pytest.mark.parametrize(
    ("body", "headers", "repeatable"),
    [
        ({"temperature": 0}, {}, True),
        ({"seed": 7}, {}, True),
        ({"temperature": 0.7}, {}, False),
        ({}, {}, False),
        ({}, {"x_stainless_retry_count": "0"}, False),
        ({}, {"x_stainless_retry_count": "1"}, True),
    ],
)
def test_only_a_try_that_may_be_the_same_is_repeatable(
    body: dict[str, Any], headers: dict[str, str], repeatable: bool
) -> None:
    """Two samples asked for at once are two samples."""
    assert read(body, **headers).repeatable is repeatable


def test_paths_and_forms_name_things_too() -> None:
    """Without a JSON body: a model's page, a response's page, an upload."""
    assert facts_of_head("/v1/models/a/b", []).model == "a/b"
    assert facts_of_head("/v1/responses/resp_1/cancel", []).previous_response == "resp_1"
    form = b'--x\r\nContent-Disposition: form-data; name="model"\r\n\r\nwhisper\r\n--x--\r\n'
    assert facts_of("/v1/audio/transcriptions", [(b"content-type", b"multipart/form-data; boundary=x")], form) == Facts(
        model="whisper"
    )


@pytest.mark.parametrize("body", [b"", b"[1]", b"{", b'{"model": "\xff"}', b'"x"', b"{" * 10, b"[" * 300_000])
def test_a_body_that_is_no_json_object_says_nothing(body: bytes) -> None:
    """The engine will tell its client what is wrong with it."""
    assert read(body) == Facts()


def test_deep_nesting_is_no_fault() -> None:
    """A body made to exhaust the stack is just one that says nothing."""
    assert read(b'{"messages": ' + b"[" * 300_000 + b"]" * 300_000 + b"}") == Facts()


@given(st.dictionaries(KEYS, JSON), st.sampled_from([CHAT, "/v1/completions", "/v1/responses", "/v1/messages"]))
def test_any_json_is_read_without_a_fault(body: dict[str, Any], path: str) -> None:
    """Whatever stands under the keys that are read."""
    facts = read(body, path)
    assert facts.session is None or 0 < len(facts.session) <= 128
    assert facts.model is None or facts.model == body["model"]
