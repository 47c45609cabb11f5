"""An upstream that says exactly the bytes it is told to, and knows what became of each connection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field


@dataclass
class Exchange:
    """One request as it arrived, with the connection to answer it on."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    head: bytes = b""
    body: bytes = b""
    closed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def request_line(self) -> str:
        return self.head.split(b"\r\n")[0].decode()

    @property
    def headers(self) -> dict[str, str]:
        lines = self.head.decode().split("\r\n")[1:]
        return {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines) if name}

    async def say(self, raw: bytes) -> None:
        self.writer.write(raw)
        await self.writer.drain()

    async def chunk(self, data: bytes) -> None:
        await self.say(b"%x\r\n%s\r\n" % (len(data), data))

    def close(self) -> None:
        self.writer.close()

    async def read_body(self) -> None:
        """Read what the head announced."""
        if length := self.headers.get("content-length"):
            self.body = await self.reader.readexactly(int(length))
        elif self.headers.get("transfer-encoding") == "chunked":
            while size := int(await self.reader.readline(), 16):
                self.body += (await self.reader.readexactly(size + 2))[:-2]
            await self.reader.readline()

    async def until_closed(self) -> None:
        """Wait until the other side hangs up."""
        try:
            while await self.reader.read(65536):
                pass
        except ConnectionError:
            pass
        self.closed.set()


Script = Callable[[Exchange], Awaitable[None]]


@dataclass
class Upstream:
    """Plays `script` for each request. `exchanges` is what came, in order."""

    script: Script
    port: int = 0
    exchanges: list[Exchange] = field(default_factory=list)
    arrived: asyncio.Queue[Exchange] = field(default_factory=asyncio.Queue)
    reads_body: bool = True

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection: one request after the other."""
        try:
            while not writer.is_closing():
                head = await reader.readuntil(b"\r\n\r\n")
                exchange = Exchange(reader, writer, head[:-4])
                self.exchanges.append(exchange)
                if self.reads_body:
                    await exchange.read_body()
                self.arrived.put_nowait(exchange)
                await self.script(exchange)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def running(script: Script, *, reads_body: bool = True) -> AsyncIterator[Upstream]:
    """Serve on a free port of the loopback."""
    upstream = Upstream(script, reads_body=reads_body)
    server = await asyncio.start_server(upstream.serve, "127.0.0.1", 0, limit=1 << 20)
    upstream.port = server.sockets[0].getsockname()[1]
    try:
        yield upstream
    finally:
        server.close()
        for exchange in upstream.exchanges:
            exchange.writer.close()
