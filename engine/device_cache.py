"""Empties the device's prefix cache when the deck asks, so that a canary is read back from host memory.

vLLM offers this only among its developers' endpoints, which can do far more. `DeviceCache` is loaded with
`--middleware`, answers one path, and only to whoever knows the marker of this start: the deck, and the
user that the engine runs as.
"""

from __future__ import annotations

import hmac
import json
import os
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any, Final

PATH: Final = "/tierdeck/forget-device-cache"
HEADER: Final = b"x-tierdeck-marker"
MARKER_VARIABLE: Final = "TIERDECK_ENGINE_MARKER"

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]


class DeviceCache:
    """ASGI middleware: `POST /tierdeck/forget-device-cache` answers `{"success": true}` once nothing is left there.

    False while requests or transfers hold blocks: ask again. Host memory keeps what it has. Anyone without the
    marker is passed on, and told that there is no such path.
    """

    def __init__(self, app: Application) -> None:
        self._app = app
        self._marker = os.environ.get(MARKER_VARIABLE, "").encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or pass on."""
        if not self._is_for_us(scope):
            await self._app(scope, receive, send)
            return
        success = bool(await scope["app"].state.engine_client.reset_prefix_cache())
        body = json.dumps({"success": success}).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    def _is_for_us(self, scope: Scope) -> bool:
        if scope["type"] != "http" or scope["path"] != PATH or scope["method"] != "POST":
            return False
        return bool(self._marker) and hmac.compare_digest(_marker_of(scope["headers"]), self._marker)


def _marker_of(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    return next((value for name, value in headers if name.lower() == HEADER), b"")
