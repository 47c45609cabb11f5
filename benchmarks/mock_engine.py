"""An upstream that costs next to nothing, so that what is measured is what stands in front of it.

Started by the deck like an engine: `python -m benchmarks.mock_engine ... --port N`.
"""

from __future__ import annotations

import argparse
import asyncio
import json

import uvloop

EVENTS = 32
ANSWER = json.dumps({"id": "mock", "object": "text_completion", "choices": [{"text": "x" * 300}]}).encode()
EVENT = b'data: {"id":"mock","object":"text_completion","choices":[{"index":0,"text":" word"}]}\n\n'
CHUNK = b"%x\r\n%s\r\n" % (len(EVENT), EVENT)
STREAM_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def whole(body: bytes, kind: bytes = b"application/json") -> bytes:
    """A complete answer."""
    return b"HTTP/1.1 200 OK\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n" % (kind, len(body)) + body


class Mock(asyncio.Protocol):
    """One connection. Requests do not overlap on it."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = transport
        self._received = b""

    def data_received(self, data: bytes) -> None:
        """Answer when a request is whole."""
        self._received += data
        end = self._received.find(b"\r\n\r\n")
        if end < 0:
            return
        head = self._received[:end].lower()
        at = head.find(b"content-length:")
        length = int(head[at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
        if len(self._received) < end + 4 + length:
            return
        body = self._received[end + 4 : end + 4 + length]
        self._received = self._received[end + 4 + length :]
        self._answer(head, body)

    def _answer(self, head: bytes, body: bytes) -> None:
        if head.startswith(b"get"):
            self._write(whole(b"# EOF\n", b"text/plain") if b"/metrics" in head else whole(b"{}"))
        elif b'"silent"' in body:
            self._write(STREAM_HEAD)
        elif b'"stream": true' in body:
            self._stream = asyncio.ensure_future(self._events())
        else:
            self._write(whole(ANSWER))

    async def _events(self) -> None:
        self._write(STREAM_HEAD)
        for _ in range(EVENTS):
            self._write(CHUNK)
            await asyncio.sleep(0)
        self._write(b"0\r\n\r\n")

    def _write(self, data: bytes) -> None:
        self._transport.write(data)  # type: ignore[attr-defined]


async def serve(port: int) -> None:
    """Serve for ever."""
    server = await asyncio.get_running_loop().create_server(Mock, "127.0.0.1", port, backlog=1024)
    print("Application startup complete.", flush=True)
    await server.serve_forever()


def main() -> None:
    """Command line entry; flags of a real engine are taken without a word."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    uvloop.run(serve(parser.parse_known_args()[0].port))


if __name__ == "__main__":
    main()
