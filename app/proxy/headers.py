"""Which headers cross the door. Pure.

Framing belongs to each connection: hop-by-hop headers, and those that `Connection` names, stop here.
`Content-Encoding` and `Content-Length` cross untouched, because the body's bytes cross untouched.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable

RawHeaders = list[tuple[bytes, bytes]]

REQUEST_ID = b"x-request-id"

HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)

#: `Host` is the engine's own. `Expect` was answered by our server. The credentials are the deck's:
#: an engine has none, and the admin token must not end up in its log.
NOT_FOR_THE_ENGINE = HOP_BY_HOP | {b"host", b"expect", b"authorization", b"cookie", b"x-api-key"}

#: Answers whose headers end the message, whatever length they claim.
BODILESS_STATUSES = frozenset({204, 304})


def named_in_connection(headers: Iterable[tuple[bytes, bytes]]) -> frozenset[bytes]:
    """The headers that the sender declared to be for this hop only."""
    tokens = (value.split(b",") for name, value in headers if name.lower() == b"connection")
    return frozenset(token.strip().lower() for group in tokens for token in group)


def for_engine(headers: RawHeaders) -> RawHeaders:
    """The client's headers as the engine sees them."""
    dropped = NOT_FOR_THE_ENGINE | named_in_connection(headers)
    kept = [(name, value) for name, value in headers if name.lower() not in dropped]
    if _is_chunked(headers):  # then a length is not the length of the body (RFC 9112, 6.3)
        kept = [(name, value) for name, value in kept if name.lower() != b"content-length"]
    return kept


def for_client(headers: Iterable[tuple[bytes, bytes]], status: int) -> RawHeaders:
    """The engine's headers as the client sees them; never both a length and a transfer encoding."""
    received = [(name.lower(), value) for name, value in headers]
    dropped = HOP_BY_HOP | named_in_connection(received)
    if status in BODILESS_STATUSES or _is_chunked(received):
        dropped |= {b"content-length"}
    return [(name, value) for name, value in received if name not in dropped]


def content_length(headers: RawHeaders) -> int | None:
    """The length that the client declared, or None when it streams."""
    for name, value in headers:
        if name == b"content-length" and value.isdigit():
            return int(value)
    return None


def is_event_stream(headers: RawHeaders) -> bool:
    """True when these headers (names in lower case) announce server-sent events."""
    return any(n == b"content-type" and v.lower().startswith(b"text/event-stream") for n, v in headers)


def is_plain(headers: RawHeaders) -> bool:
    """True when the body is not compressed (names in lower case)."""
    return all(value.lower() == b"identity" for name, value in headers if name == b"content-encoding")


def with_request_id(headers: RawHeaders) -> tuple[RawHeaders, str]:
    """The client's headers with a name for the request, by which vLLM knows it; its own name where it has one."""
    for name, value in headers:
        if name.lower() == REQUEST_ID:
            return headers, value.decode("latin-1")
    made = secrets.token_hex(12)
    return [*headers, (REQUEST_ID, made.encode())], made


def _is_chunked(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    return any(name.lower() == b"transfer-encoding" for name, _ in headers)
