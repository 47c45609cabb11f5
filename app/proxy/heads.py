"""The deck's side of HTTP: uvicorn's, with a bound on what is read of a request before anybody looks at it.

The parser adds what comes of a header to what it has, so that one of many megabytes holds up every other client,
and that before it was asked for a token.
"""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from app.errors import HeadTooLarge
from app.proxy.answers import error_body, error_headers

#: Of the request line and all headers together; of what follows a body in chunks too.
MAX_HEAD_BYTES = 64 * 1024
#: A refused client may go on sending for so long, or the answer would be lost: a kernel that is sent something after
#: its program has closed tells the other side to forget everything.
LINGER_SECONDS = 2.0


Refused = Callable[[str, str], None]
"""Told of each request that was refused: its method, and what came of its path."""


def bounded_heads(refused: Refused) -> type[BoundedHeads]:
    """What to give uvicorn's configuration as `http`."""

    class Bounded(BoundedHeads):
        def __init__(self, *given: Any, **named: Any) -> None:
            super().__init__(*given, refused=refused, **named)

    return Bounded


class BoundedHeads(HttpToolsProtocol):
    """What uvicorn speaks with each client."""

    def __init__(self, *given: Any, refused: Refused, **named: Any) -> None:
        super().__init__(*given, **named)
        self._refused = refused
        self._head_bytes = 0
        """Came since the last of what is no head: a request's end, or some of its body."""
        self._is_refused = False

    def data_received(self, data: bytes) -> None:
        """Read on, unless this client was refused."""
        if self._is_refused:
            return
        self._head_bytes += len(data)
        super().data_received(data)
        if self._head_bytes > MAX_HEAD_BYTES and not self._is_refused:
            self._refuse()

    def on_headers_complete(self) -> None:
        """A whole head may have come at once."""
        if len(self.url) + sum(len(name) + len(value) for name, value in self.headers) > MAX_HEAD_BYTES:
            self._refuse()
            raise self._error()  # ends the parser
        self._head_bytes = 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Some of the body."""
        self._head_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """The request's end."""
        self._head_bytes = 0
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """What the parser does not take, unless it was told not to."""
        if not self._is_refused:
            super().send_400_response(msg)

    def _refuse(self) -> None:
        self._is_refused = True
        if self.transport.is_closing():
            return
        if self.cycle is not None and not self.cycle.response_complete:
            self.transport.close()  # another answer is on its way there, or will be: no place for this one
            return
        method, path = self.parser.get_method() or b"", self.url.partition(b"?")[0]
        self._refused(method.decode("latin-1"), path.decode("latin-1"))
        self.transport.write(_answer(self._error(), self.url))
        self.transport.write_eof()
        self.loop.call_later(LINGER_SECONDS, self.transport.close)

    def _error(self) -> HeadTooLarge:
        limit = MAX_HEAD_BYTES // 1024
        return HeadTooLarge(f"The request's headers are larger than the {limit} KiB that the deck takes.")


def _answer(error: HeadTooLarge, url: bytes) -> bytes:
    body = error_body(error, url[:100].decode("latin-1"))
    status = b"HTTP/1.1 %d %s" % (error.status, HTTPStatus(error.status).phrase.encode())
    lines = [status, *(b"%s: %s" % header for header in error_headers(error, body))]
    return b"\r\n".join([*lines, b"", body])
