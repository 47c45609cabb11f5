"""What the door reads of a request: its model, its session, whether it streams. Pure; the bytes stay as they are.

msgspec walks over 4 MiB of JSON in a few milliseconds because it builds nothing of what is not asked for;
the standard library would hold up every other request for a tenth of a second.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import msgspec

from app.proxy.headers import RawHeaders

#: Headers in which clients name their session, the deck's own first. The others: routers in front of
#: vLLM and vLLM itself, coding agents.
SESSION_HEADERS = (
    b"x-tierdeck-session",
    b"x-session-id",
    b"session-id",
    b"session_id",
    b"x-claude-code-session-id",
    b"x-session-affinity",
)
#: Engines cache whole blocks of some hundred tokens: prompts that differ within this many bytes share
#: nothing that is worth going to an engine for.
PROMPT_START_BYTES = 2048
LONG_TEXT_BYTES = 8 * PROMPT_START_BYTES
#: A character outside of the first plane: two escapes of six bytes.
LONGEST_ESCAPE_BYTES = 13
MAX_SESSION_CHARACTERS = 128
#: Paths whose prompts go into the prefix cache.
PROMPT_PATHS = frozenset({"/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"})
#: SDKs built by Stainless, OpenAI's and Anthropic's among them, count their tries here.
RETRY_HEADER = b"x-stainless-retry-count"
LIST_OF_OBJECTS = re.compile(rb"\s*\[\s*\{")
MODEL_PATH = "/v1/models/"
RESPONSE_PATH = "/v1/responses/"
FORM_MODEL = re.compile(rb'name="model"\r\n(?:[^\r\n]+\r\n)*\r\n([^\r\n]{1,256})\r\n')

_NOTHING = msgspec.Raw(b"null")


class _Message(msgspec.Struct):
    role: Any = None
    content: msgspec.Raw = _NOTHING


class _Part(msgspec.Struct):
    text: msgspec.Raw = _NOTHING


class _Body(msgspec.Struct):
    """The keys that matter. Prompts stay unread; everything else is walked over."""

    model: Any = None
    stream: Any = None
    messages: msgspec.Raw = _NOTHING
    prompt: msgspec.Raw = _NOTHING
    input: msgspec.Raw = _NOTHING
    prompt_cache_key: Any = None
    conversation: Any = None
    previous_response_id: Any = None
    metadata: Any = None
    user: Any = None
    temperature: Any = None
    seed: Any = None


@dataclass(frozen=True)
class Facts:
    """None = the request does not say it, or its body is not what was expected; the engine will say so."""

    model: str | None = None
    streams: bool = False
    session: str | None = None
    """What the client calls its session, else `prompt:` and a hash of the prompt's beginning."""
    previous_response: str | None = None
    repeatable: bool = False
    """Another try may have the same answer: nothing is drawn by chance, or the client says it is a retry."""


_body = msgspec.json.Decoder(_Body)
_messages = msgspec.json.Decoder(list[_Message])
_parts = msgspec.json.Decoder(list[_Part])


def facts_of(path: str, headers: RawHeaders, body: bytes | memoryview) -> Facts:
    """Read a request whose body is whole."""
    if not body:
        return facts_of_head(path, headers)
    given = dict(headers)
    named = _named_by_header(given)
    if given.get(b"content-type", b"").startswith(b"multipart/"):
        return Facts(model=_form_model(body), session=named)
    try:
        return _facts_of_json(path, given, named, _body.decode(body))
    except (msgspec.MsgspecError, RecursionError):
        return Facts(session=named)


def facts_of_head(path: str, headers: RawHeaders) -> Facts:
    """What a request says without its body."""
    response = path.removeprefix(RESPONSE_PATH).partition("/")[0] if path.startswith(RESPONSE_PATH) else None
    model = path.removeprefix(MODEL_PATH) if path.startswith(MODEL_PATH) else None
    return Facts(model=model, session=_named_by_header(dict(headers)), previous_response=response)


def _facts_of_json(path: str, headers: dict[bytes, bytes], named: str | None, body: _Body) -> Facts:
    return Facts(
        model=_text(body.model),
        streams=body.stream is True,
        session=named or _named_by_body(body) or (_prompt_start(body) if path in PROMPT_PATHS else None),
        previous_response=_text(body.previous_response_id),
        repeatable=_is_repeatable(body, headers),
    )


def _named_by_header(headers: dict[bytes, bytes]) -> str | None:
    for name in SESSION_HEADERS:
        if value := headers.get(name):
            return value.decode("utf-8", "replace").strip()[:MAX_SESSION_CHARACTERS] or None
    return None


def _named_by_body(body: _Body) -> str | None:
    """The most exact name first: a user has many sessions."""
    names = (
        body.prompt_cache_key,
        _member(body.conversation, "id"),
        body.previous_response_id,
        _member(body.metadata, "user_id"),
        body.user,
    )
    return next((name[:MAX_SESSION_CHARACTERS] for name in names if isinstance(name, str) and name), None)


def _prompt_start(body: _Body) -> str | None:
    """A hash that all turns of one conversation share: of what the user said first, or of a bare prompt's start."""
    start = _first_words(body.messages) or _first_words(body.input) or _start(body.prompt)
    return f"prompt:{sha256(start).hexdigest()[:16]}" if start else None


def _first_words(raw: msgspec.Raw) -> bytes:
    """The start of a prompt that may be a conversation: of its first message from the user."""
    if _is_list_of_objects(raw):
        return next((words for message in _messages.decode(raw) if (words := _words(message))), b"")
    return _start(raw)


def _words(message: _Message) -> bytes:
    """Text alone: marks that move from turn to turn, such as `cache_control`, are left out."""
    if message.role != "user":
        return b""
    is_list = _is_list_of_objects(message.content)
    texts = (part.text for part in _parts.decode(message.content)) if is_list else (message.content,)
    return "".join(map(_text_start, texts)).encode()[:PROMPT_START_BYTES]


def _text_start(raw: msgspec.Raw) -> str:
    """The beginning of a text; of a long one no more is decoded than that."""
    with memoryview(raw) as view:
        if len(view) <= LONG_TEXT_BYTES:
            return _text(msgspec.json.decode(view)) or ""
        for cut in range(PROMPT_START_BYTES, PROMPT_START_BYTES + LONGEST_ESCAPE_BYTES):
            with suppress(msgspec.MsgspecError):  # the cut went through a character
                return _text(msgspec.json.decode(bytes(view[:cut]) + b'"')) or ""
    return ""


def _start(raw: msgspec.Raw) -> bytes:
    """The beginning of a JSON value as it was written, its bracket or quote left out."""
    with memoryview(raw) as view:
        start = bytes(view[: min(len(view) - 1, PROMPT_START_BYTES + 1)])
        return b"" if start == b"nul" else start[1:]


def _is_list_of_objects(raw: msgspec.Raw) -> bool:
    with memoryview(raw) as view:
        return LIST_OF_OBJECTS.match(view) is not None


def _is_repeatable(body: _Body, headers: dict[bytes, bytes]) -> bool:
    return headers.get(RETRY_HEADER, b"0") != b"0" or body.temperature == 0 or isinstance(body.seed, int)


def _form_model(body: bytes | memoryview) -> str | None:
    found = FORM_MODEL.search(body)
    return found[1].decode("utf-8", "replace") if found else None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _member(value: Any, name: str) -> Any:
    """A member of an object; a value that is no object stands for itself."""
    return value.get(name) if isinstance(value, dict) else value
