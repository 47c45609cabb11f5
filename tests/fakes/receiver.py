"""A receiver of webhooks: a real HTTP server on a port of its own that answers as it is told."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Reply:
    """One answer. `hold` keeps the sender waiting until it is set."""

    status: int = 200
    body: str = "ok"
    headers: dict[str, str] = field(default_factory=dict)
    hold: threading.Event | None = None


@dataclass(frozen=True)
class Received:
    path: str
    headers: dict[str, str]
    body: bytes


class Receiver:
    """Answers with `replies` in turn, the last one for ever; keeps what it received."""

    def __init__(self) -> None:
        self.replies: list[Reply] = [Reply()]
        self.received: list[Received] = []
        self.arrived = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                headers = {name.lower(): value for name, value in self.headers.items()}
                reply = receiver._next(Received(self.path, headers, body))
                if reply.hold is not None:
                    reply.hold.wait(20)
                self._answer(reply)

            def _answer(self, reply: Reply) -> None:
                try:
                    self.send_response(reply.status)
                    for name, value in reply.headers.items():
                        self.send_header(name, value)
                    self.end_headers()
                    self.wfile.write(reply.body.encode())
                except OSError:
                    self.close_connection = True  # the sender went away, which some tests want

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        self._thread.start()

    def url(self, path: str = "/hooks/token-0123456789abcdef") -> str:
        return f"http://127.0.0.1:{self.port}{path}"

    async def wait_for_arrival(self, timeout_seconds: float = 10) -> None:
        """Until something arrived since the last call."""
        async with asyncio.timeout(timeout_seconds):
            await self.arrived.wait()
        self.arrived.clear()

    def close(self) -> None:
        for reply in self.replies:
            if reply.hold is not None:
                reply.hold.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _next(self, received: Received) -> Reply:
        with self._lock:
            self.received.append(received)
            reply = self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]
        self._loop.call_soon_threadsafe(self.arrived.set)
        return reply


@contextmanager
def running_receiver() -> Iterator[Receiver]:
    """A receiver for the length of the `with` block. Needs a running event loop."""
    receiver = Receiver()
    try:
        yield receiver
    finally:
        receiver.close()
