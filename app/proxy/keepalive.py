"""Keep-alives for clients of a silent stream. Pure.

Between two events a comment may stand (a line that begins with a colon); every client of server-sent
events skips it, and what is in between does not take the silence for a dead connection. It is never
put inside an event, a compressed stream, or anything but an event stream.
"""

from __future__ import annotations

from app.proxy.headers import RawHeaders

COMMENT = b": keep-alive\n\n"
#: A client that wants the engine's bytes and nothing else says `off`.
OPT_OUT_HEADER = b"x-tierdeck-keepalive"
ENDS_OF_EVENTS = (b"\n\n", b"\r\n\r\n", b"\r\r")


def interval_seconds(configured: float, asked: RawHeaders, answered: RawHeaders) -> float | None:
    """Silence after which this exchange gets a comment; None = never."""
    headers = {name.lower(): value.strip().lower() for name, value in asked}
    if not configured or headers.get(OPT_OUT_HEADER) == b"off":
        return None
    answer = dict(answered)
    is_stream = answer.get(b"content-type", b"").lower().startswith(b"text/event-stream")
    is_plain = answer.get(b"content-encoding", b"identity").lower() == b"identity"
    return configured if is_stream and is_plain and b"content-length" not in answer else None


def is_between_events(tail: bytes) -> bool:
    """True when what was sent so far ends with a whole event, or nothing was."""
    return not tail or tail.endswith(ENDS_OF_EVENTS)
