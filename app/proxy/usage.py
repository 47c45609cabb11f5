"""The token counts that an engine puts at the end of an answer. Pure.

Only what already passed is looked at, and only its end: nothing is held back, nothing is asked for.
A stream carries counts when its client asked for them (`stream_options.include_usage`).
"""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass
from typing import Any

import msgspec

TAIL_BYTES = 16 * 1024
HEAD_BYTES = 2048
#: What a column of the database holds; an engine that tells more tells nonsense.
MAX_COUNT = 2**31 - 1
#: Inside a text the quotes would be escaped.
USAGE = b'"usage":'
RESPONSE_ID = re.compile(rb'"id"\s*:\s*"(resp_[^"\\]{1,128})"')


@dataclass(frozen=True)
class Usage:
    """Tokens; None = the engine did not say. Cached ones are part of the input."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None


class Tail:
    """The end of what passed, and a little of its beginning."""

    def __init__(self) -> None:
        self.head = b""
        self._pieces: deque[bytes] = deque()
        self._size = 0

    def add(self, piece: bytes) -> None:
        """Take note of a piece."""
        if not self._size:
            self.head = piece[:HEAD_BYTES]
        self._pieces.append(piece if len(piece) <= TAIL_BYTES else piece[-TAIL_BYTES:])
        self._size += len(self._pieces[-1])
        while self._size - len(self._pieces[0]) >= TAIL_BYTES:
            self._size -= len(self._pieces.popleft())

    def usage(self) -> Usage:
        """The last counts in it."""
        return usage_in(b"".join(self._pieces))


def usage_in(tail: bytes) -> Usage:
    """The counts of the last `usage` object in `tail`, in OpenAI's or Anthropic's words."""
    at = tail.rfind(USAGE)
    found = _object_at(tail, at + len(USAGE)) if at >= 0 else None
    if found is None:
        return Usage()
    if "prompt_tokens" in found:
        details = found.get("prompt_tokens_details")
        return Usage(
            _count(found, "prompt_tokens"), _count(found, "completion_tokens"), _count(details, "cached_tokens")
        )
    if "input_tokens_details" in found:
        cached = _count(found["input_tokens_details"], "cached_tokens")
        return Usage(_count(found, "input_tokens"), _count(found, "output_tokens"), cached)
    return _anthropic(found)


def response_id_in(head: bytes) -> str | None:
    """The id that /v1/responses gave its answer."""
    found = RESPONSE_ID.search(head)
    return found[1].decode("ascii", "replace") if found else None


def _anthropic(found: dict[str, Any]) -> Usage:
    """There `input_tokens` leaves out what was read from or written to the cache."""
    read, fresh = _count(found, "cache_read_input_tokens"), _count(found, "input_tokens")
    if fresh is None:
        return Usage(None, _count(found, "output_tokens"), read)
    written = _count(found, "cache_creation_input_tokens") or 0
    return Usage(fresh + (read or 0) + written, _count(found, "output_tokens"), read)


def _object_at(tail: bytes, start: int) -> dict[str, Any] | None:
    """The JSON object that begins at `start`; its end is where the brackets are even."""
    end, depth = start, 0
    for match in re.finditer(rb"[{}]", tail[start:]):
        depth += 1 if match[0] == b"{" else -1
        if depth <= 0:
            end = start + match.end()
            break
    try:
        found = msgspec.json.decode(tail[start:end])
    except msgspec.MsgspecError:
        return None
    return found if isinstance(found, dict) else None


def _count(found: Any, name: str) -> int | None:
    value = found.get(name) if isinstance(found, dict) else None
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_COUNT else None
