"""Keep-alives for clients of a silent stream. Pure.

Between two events a comment may stand (a line that begins with a colon); every client of server-sent
events skips it, and what is in between does not take the silence for a dead connection. It is never
put inside an event, a compressed stream, or anything but an event stream.
"""

from __future__ import annotations

from app.proxy.headers import RawHeaders, is_event_stream, is_plain

COMMENT = b": keep-alive\n\n"
#: A client that wants the engine's bytes and nothing else says `off`.
OPT_OUT_HEADER = b"x-tierdeck-keepalive"
ENDS_OF_EVENTS = (b"\n\n", b"\r\n\r\n", b"\r\r")


def interval_seconds(configured: float, asked: RawHeaders, answered: RawHeaders) -> float | None:
    """Silence after which this exchange gets a comment; None = never."""
    if not configured or not is_event_stream(answered) or not is_plain(answered) or has_opted_out(asked):
        return None
    return configured if all(name != b"content-length" for name, _ in answered) else None


def has_opted_out(asked: RawHeaders) -> bool:
    """True for a client that wants the engine's bytes and nothing else."""
    return any(name.lower() == OPT_OUT_HEADER and value.strip().lower() == b"off" for name, value in asked)


def is_between_events(tail: bytes) -> bool:
    """True when what was sent so far ends with a whole event, or nothing was."""
    return not tail or tail.endswith(ENDS_OF_EVENTS)
