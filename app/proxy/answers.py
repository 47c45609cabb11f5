"""What the door itself says, in the shape its clients' SDKs understand. Pure but for the last function."""

from __future__ import annotations

import json
from typing import Any

from app.errors import TierdeckError, Unavailable
from app.proxy.asgi import Send
from app.proxy.headers import RawHeaders


def error_body(error: TierdeckError, path: str) -> bytes:
    """OpenAI's error object; under /v1/messages with the wrapper that Anthropic's clients look for."""
    kind = "invalid_request_error" if error.status < 500 else "server_error"
    body: dict[str, Any] = {"error": {"message": error.message, "type": kind, "code": error.code, "param": error.path}}
    if path.startswith("/v1/messages"):
        body = {"type": "error", **body}
    return json.dumps(body, ensure_ascii=False).encode()


def error_headers(error: TierdeckError, body: bytes) -> RawHeaders:
    """Headers of the door's own answer; the connection closes after one whose request was not read."""
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    if isinstance(error, Unavailable):
        headers.append((b"retry-after", b"%d" % error.retry_after_seconds))
    if error.status == 413:
        headers.append((b"connection", b"close"))
    return headers


async def send_error(send: Send, error: TierdeckError, path: str) -> None:
    """Answer with `error`."""
    body = error_body(error, path)
    headers = error_headers(error, body)
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
