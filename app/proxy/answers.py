"""What the door itself says, in the shape its clients' SDKs understand. Pure but for the last function."""

from __future__ import annotations

import json
from typing import Any

from app.errors import TierdeckError, TooLarge, Unavailable
from app.proxy.asgi import Send
from app.proxy.headers import RawHeaders


def error_body(error: TierdeckError, path: str) -> bytes:
    """OpenAI's error object; under /v1/messages with the wrapper that Anthropic's clients look for."""
    kind = "invalid_request_error" if error.status < 500 else "server_error"
    body: dict[str, Any] = {"error": {"message": error.message, "type": kind, "code": error.code, "param": error.path}}
    if path.startswith("/v1/messages"):
        body = {"type": "error", **body}
    return json.dumps(body, ensure_ascii=False).encode()


def error_event(error: TierdeckError, path: str) -> bytes:
    """The same as the last event of a stream that has begun."""
    if path.startswith("/v1/messages"):
        return b"event: error\ndata: " + error_body(error, path) + b"\n\n"
    if path.startswith("/v1/responses"):
        body = {
            "type": "error",
            "code": error.code,
            "message": error.message,
            "param": error.path,
            "sequence_number": 0,
        }
        return b"event: error\ndata: " + json.dumps(body, ensure_ascii=False).encode() + b"\n\n"
    return b"data: " + error_body(error, path) + b"\n\ndata: [DONE]\n\n"


def sentence_of(body: bytes) -> str:
    """What an engine's error says, in whatever shape it says it."""
    text = body.decode("utf-8", "replace").strip()
    try:
        found = json.loads(text)
    except ValueError:
        return text or "The engine refused the request without a word."
    inner = found.get("error", found) if isinstance(found, dict) else found
    message = inner.get("message") if isinstance(inner, dict) else inner
    return message if isinstance(message, str) and message else text


def error_headers(error: TierdeckError, body: bytes) -> RawHeaders:
    """Headers of the door's own answer; the connection closes after one whose request was not read."""
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    if isinstance(error, Unavailable):
        headers.append((b"retry-after", b"%d" % error.retry_after_seconds))
    if isinstance(error, TooLarge):
        headers.append((b"connection", b"close"))
    return headers


async def send_error(send: Send, error: TierdeckError, path: str) -> int:
    """Answer with `error`; how many bytes its body has."""
    body = error_body(error, path)
    headers = error_headers(error, body)
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
    return len(body)
