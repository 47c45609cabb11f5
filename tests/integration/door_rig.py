"""A door on a real server, engines that are only a state and an address, and a strict client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import h11
import uvicorn
import uvloop

from app.config import Settings
from app.proxy.door import Door
from app.proxy.heads import bounded_heads
from app.proxy.record import Record
from app.proxy.routes import DoorFirst
from app.supervisor.states import EngineState
from app.supervisor.status import EngineStatus

#: Imported by the tests of what touches sockets, which then run on each: the deck has uvloop, where there is one.
LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


def engine(port: int = 1, state: EngineState = EngineState.READY, **changes: Any) -> EngineStatus:
    """A status with nothing remarkable but what is asked for."""
    status = EngineStatus(
        name="main-1",
        fleet="main",
        model="demo",
        state=state,
        since=0.0,
        cause="",
        base_url=f"http://127.0.0.1:{port}",
        port=port,
        pid=None,
        started_at=None,
        wanted_profile="demo",
        wanted_version=1,
        running_version=None,
        phase=None,
        progress=None,
        restarts=0,
        next_try_at=None,
        leftover_processes=0,
        error_code=None,
        served_model_name="demo",
    )
    return replace(status, **changes)


class StatedEngines:
    """States that a test sets; whoever waits is told, as by the supervisor."""

    def __init__(self, *statuses: EngineStatus) -> None:
        self._statuses = list(statuses)
        self._changed = asyncio.Event()
        self.in_flight: Callable[[str], int] = lambda _: 0
        self.idle: Callable[[str], Awaitable[None]]

    def statuses(self) -> Sequence[EngineStatus]:
        return self._statuses

    async def changed(self) -> None:
        event = self._changed
        await event.wait()

    def become(self, *statuses: EngineStatus) -> None:
        self._statuses = list(statuses)
        event, self._changed = self._changed, asyncio.Event()
        event.set()


class Kept:
    """Records in a list, and the homes that a test says an earlier deck left."""

    def __init__(self, homes: Sequence[tuple[str, str]] = ()) -> None:
        self.records: list[Record] = []
        self._homes = homes

    def keep(self, record: Record) -> None:
        self.records.append(record)

    async def homes(self) -> Sequence[tuple[str, str]]:
        return self._homes


@dataclass
class Answer:
    """What a strict HTTP/1.1 parser made of a response."""

    status: int = 0
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    body: bytes = b""
    complete: bool = False

    def header(self, name: str) -> bytes | None:
        values = [value for key, value in self.headers if key == name.encode()]
        if len(values) > 1:
            raise AssertionError(f"{name} came {len(values)} times")
        return values[0] if values else None


@dataclass
class Served:
    """The running door."""

    door: Door
    engines: StatedEngines
    port: int
    ledger: Kept

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port)

    async def post(self, body: bytes, path: str = "/v1/completions", **headers: str) -> Answer:
        return await self.exchange("POST", path, body, headers)

    async def exchange(
        self, method: str, target: str, body: bytes = b"", headers: dict[str, str] | None = None
    ) -> Answer:
        """One request, its response read by h11, which refuses what is not HTTP."""
        reader, writer = await self.connect()
        client = h11.Connection(h11.CLIENT)
        sent = [("Host", "deck"), ("Content-Length", str(len(body))), *(headers or {}).items()]
        for event in (h11.Request(method=method, target=target, headers=sent), h11.Data(body), h11.EndOfMessage()):
            writer.write(client.send(event) or b"")
        try:
            return await read_answer(reader, client)
        finally:
            writer.close()


async def read_answer(reader: asyncio.StreamReader, client: h11.Connection) -> Answer:
    """Read until the end of the message, or until the transfer broke off (`complete` is False)."""
    answer = Answer()
    while True:
        event = client.next_event()
        if event is h11.NEED_DATA:
            data = await reader.read(65536)
            try:
                client.receive_data(data)
                event = client.next_event() if not data else None
            except h11.RemoteProtocolError:
                return answer
            if event is None or event is h11.NEED_DATA:
                continue
        if isinstance(event, h11.Response):
            answer.status, answer.headers = event.status_code, list(event.headers)
        elif isinstance(event, h11.Data):
            answer.body += bytes(event.data)
        elif isinstance(event, h11.EndOfMessage):
            answer.complete = True
            return answer
        elif isinstance(event, h11.ConnectionClosed):
            return answer


def request_bytes(body: bytes, *, length: int | None = None, path: str = "/v1/completions") -> bytes:
    """A POST as bytes; `length` lies about the body, so that it stays half sent."""
    head = f"POST {path} HTTP/1.1\r\nHost: deck\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body) if length is None else length}\r\n\r\n".encode() + body


@asynccontextmanager
async def serving(
    engines: StatedEngines, *, homes: Sequence[tuple[str, str]] = (), **settings: Any
) -> AsyncIterator[Served]:
    """A real server in front of a real door."""
    ledger = Kept(homes)
    door = Door(Settings(**settings), engines, ledger)
    app = DoorFirst()
    app.front = door
    plain: dict[str, Any] = {"lifespan": "off", "server_header": False, "date_header": False}
    config = uvicorn.Config(app, port=0, http=bounded_heads(door.refused_head), log_level="critical", **plain)
    server = uvicorn.Server(config)
    config.load()
    server.lifespan = config.lifespan_class(config)
    await door.open()
    await server.startup()
    loop = asyncio.create_task(server.main_loop())
    try:
        yield Served(door, engines, server.servers[0].sockets[0].getsockname()[1], ledger)
    finally:
        server.should_exit = True
        await loop
        await server.shutdown()
        await door.close()
