"""The door against direct: the whole deck (`tierdeck up`) in front of a mock engine, same client, same run.

`python -m benchmarks.door [--json] [--seconds S] [--router PROGRAM]`

With `--router` the program of PyPI's `vllm-router` (Rust) is measured in the same turns.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil
import uvloop

CLIENTS = 16
ROUNDS = 4
SILENT_STREAMS = 500
INTERPRETER = '#!/bin/sh\nshift 2\nexec {python} -m benchmarks.mock_engine "$@"\n'


@dataclass(frozen=True)
class Side:
    """What was measured on one way to the engine."""

    first_byte_p50_ms: float
    first_byte_p99_ms: float
    requests_per_second: float


@dataclass(frozen=True)
class Result:
    """Direct, through the door, and what the door costs; through another router if one was named."""

    direct: Side
    door: Side
    router: Side | None
    router_ratio: float | None
    """The door's requests per second by the router's."""
    added_first_byte_ms: float
    throughput_ratio: float
    deck_cpu_ms_per_request: float
    silent_streams: int
    silent_streams_mb: float


class Client(asyncio.Protocol):
    """One connection that sends prepared requests and times the answers."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = transport

    async def ask(self, request: bytes) -> float:
        """Send; return the seconds to the first byte of the body once the answer is whole."""
        self._received = b""
        self._first: float | None = None
        self._done = asyncio.get_running_loop().create_future()
        self._sent = time.perf_counter()
        self._transport.write(request)  # type: ignore[attr-defined]
        return await self._done

    def data_received(self, data: bytes) -> None:
        """Look for the first byte and for the end."""
        self._received += data
        end = self._received.find(b"\r\n\r\n")
        if end < 0 or len(self._received) == end + 4:
            return
        if self._first is None:
            self._first = time.perf_counter() - self._sent
        if self._is_whole(end) and not self._done.done():
            self._done.set_result(self._first)

    def connection_lost(self, error: Exception | None) -> None:
        """An answer that broke off fails the benchmark."""
        if not self._done.done():
            self._done.set_exception(error or ConnectionResetError("the answer broke off"))

    def _is_whole(self, end: int) -> bool:
        head = self._received[:end].lower()
        at = head.find(b"content-length:")
        if at < 0:
            return self._received.endswith(b"0\r\n\r\n")
        return len(self._received) >= end + 4 + int(head[at + 15 :].split(b"\r\n", 1)[0])


def request(*, stream: bool) -> bytes:
    """A completion of 400 characters."""
    body = json.dumps({"model": "model", "prompt": "x" * 400, "stream": stream}).encode()
    return _head(body) + body


def _head(body: bytes) -> bytes:
    lines = "POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    return f"{lines}Content-Length: {len(body)}\r\n\r\n".encode()


@asynccontextmanager
async def connected(port: int) -> AsyncIterator[Client]:
    """A client on its own connection."""
    transport, client = await asyncio.get_running_loop().create_connection(Client, "127.0.0.1", port)
    try:
        yield client
    finally:
        transport.close()


async def first_bytes(port: int, seconds: float) -> list[float]:
    """One client, streams one after the other: the times to the first byte."""
    async with connected(port) as client:
        await client.ask(request(stream=True))
        until = time.perf_counter() + seconds
        times = []
        while time.perf_counter() < until:
            times.append(await client.ask(request(stream=True)))
        return times


async def throughput(port: int, seconds: float) -> tuple[int, float]:
    """Sixteen clients without streaming: requests, and requests per second."""
    until = time.perf_counter() + seconds

    async def one() -> int:
        count = 0
        async with connected(port) as client:
            while time.perf_counter() < until:
                await client.ask(request(stream=False))
                count += 1
        return count

    started = time.perf_counter()
    counts = await asyncio.gather(*(one() for _ in range(CLIENTS)))
    return sum(counts), sum(counts) / (time.perf_counter() - started)


async def silent_streams(port: int, deck: psutil.Process) -> float:
    """Megabytes that the deck grows by while it holds many streams that say nothing."""
    before = deck.memory_info().rss
    body = b'{"model": "silent", "stream": true}'
    writers = []
    for _ in range(SILENT_STREAMS):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(_head(body) + body)
        await reader.readuntil(b"\r\n\r\n")
        writers.append(writer)
    grown = deck.memory_info().rss - before
    for writer in writers:
        writer.close()
    return grown / 1e6


async def measure(
    direct_port: int, door_port: int, router_port: int | None, deck: psutil.Process, seconds: float
) -> Result:
    """Direct, through the door, through the router in turns, so that what else the machine does hits all."""
    ports = [port for port in (direct_port, door_port, router_port) if port is not None]
    firsts: dict[int, list[float]] = {port: [] for port in ports}
    rates: dict[int, list[float]] = {port: [] for port in ports}
    carried, cpu_seconds = 0, 0.0
    for _ in range(ROUNDS):
        for port in ports:
            firsts[port] += await first_bytes(port, seconds / ROUNDS)
            before = _cpu_seconds(deck)
            count, rate = await throughput(port, seconds / ROUNDS)
            rates[port].append(rate)
            if port == door_port:
                carried, cpu_seconds = carried + count, cpu_seconds + _cpu_seconds(deck) - before
    sides = [_side(firsts[port], rates[port]) for port in ports]
    direct, door, router = sides[0], sides[1], sides[2] if router_port else None
    return Result(
        direct=direct,
        door=door,
        router=router,
        router_ratio=door.requests_per_second / router.requests_per_second if router else None,
        added_first_byte_ms=door.first_byte_p50_ms - direct.first_byte_p50_ms,
        throughput_ratio=door.requests_per_second / direct.requests_per_second,
        deck_cpu_ms_per_request=cpu_seconds / carried * 1000,
        silent_streams=SILENT_STREAMS,
        silent_streams_mb=await silent_streams(door_port, deck),
    )


def _cpu_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _side(firsts: list[float], rates: list[float]) -> Side:
    cuts = statistics.quantiles(firsts, n=100)
    return Side(cuts[49] * 1000, cuts[98] * 1000, statistics.median(rates))


@contextmanager
def running_deck(directory: Path) -> Iterator[tuple[psutil.Process, int, int]]:
    """The deck with the mock in place of an engine: its process, the engine's port, its own port."""
    interpreter = directory / "python"
    interpreter.write_text(INTERPRETER.format(python=sys.executable))
    interpreter.chmod(0o755)
    engine_port, port = _free_port(), _free_port()
    settings = {
        "TIERDECK_DATA_DIR": str(directory / "data"),
        "TIERDECK_PORT": str(port),
        "TIERDECK_ENGINE_PORT": str(engine_port),
        "TIERDECK_ENGINE_PYTHON": str(interpreter),
        "TIERDECK_MODEL": "mock/model",
    }
    environment = {**os.environ, **settings, "PYTHONPATH": str(Path.cwd())}
    with (directory / "deck.log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "app.cli.main", "up", "--json"], env=environment, stdout=subprocess.PIPE, stderr=log
        )
        try:
            if process.stdout is None or not process.stdout.readline():
                raise RuntimeError((directory / "deck.log").read_text())
            yield psutil.Process(process.pid), engine_port, port
        finally:
            process.terminate()
            process.wait(60)


@contextmanager
def running_router(program: str | None, engine_port: int) -> Iterator[int | None]:
    """PyPI's vllm-router in front of the same mock: its port; None where none was named."""
    if program is None:
        yield None
        return
    port = _free_port()
    ports = ["--port", str(port), "--prometheus-port", str(_free_port())]
    worker = ["--worker-urls", f"http://127.0.0.1:{engine_port}", "--policy", "round_robin", "--log-level", "error"]
    command = [program, *ports, *worker]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # noqa: S603 - as asked
    try:
        _wait_for_answer(port, process)
        yield port
    finally:
        process.terminate()
        process.wait(60)


def _wait_for_answer(port: int, process: subprocess.Popen[bytes], seconds: float = 60) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until and process.poll() is None:
        with suppress(OSError, asyncio.TimeoutError):
            uvloop.run(asyncio.wait_for(first_bytes(port, 0.1), 2))
            return
        time.sleep(0.2)
    raise RuntimeError("the router does not answer")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def table(result: Result) -> str:
    """The result for people."""
    rows = [
        ("", "direct", "door", ""),
        (
            "first byte of a stream of 32 events, 1 client, median",
            f"{result.direct.first_byte_p50_ms:.2f} ms",
            f"{result.door.first_byte_p50_ms:.2f} ms",
            f"+{result.added_first_byte_ms:.2f} ms",
        ),
        (
            "the same, 99th percentile",
            f"{result.direct.first_byte_p99_ms:.2f} ms",
            f"{result.door.first_byte_p99_ms:.2f} ms",
            "",
        ),
        (
            f"requests/s, {CLIENTS} clients, not streaming",
            f"{result.direct.requests_per_second:,.0f}",
            f"{result.door.requests_per_second:,.0f}",
            f"x {result.throughput_ratio:.3f}",
        ),
        ("the deck's processor time for each of them", "", f"{result.deck_cpu_ms_per_request:.2f} ms", ""),
        (f"{result.silent_streams} open silent streams", "", f"{result.silent_streams_mb:.0f} MB", ""),
    ]
    if result.router is not None:
        at, asked = f"{result.router.first_byte_p50_ms:.2f} ms", f"{result.router.requests_per_second:,.0f}"
        rows.append(("the other router: first byte, median", "", at, ""))
        rows.append(("the other router: requests/s, and the door's by them", "", asked, f"x {result.router_ratio:.3f}"))
    return "\n".join(f"{name:<56}{direct:>12}{door:>12}{cost:>12}" for name, direct, door, cost in rows)


def main() -> None:
    """Command line entry."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.door", description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--seconds", type=float, default=8.0, help="for each way and measure")
    parser.add_argument("--router", help="the program vllm-router, to be measured beside")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory, running_deck(Path(directory)) as (deck, engine_port, port):
        uvloop.run(first_bytes(port, 0.5))  # waits at the door until the engine is ready
        with running_router(arguments.router, engine_port) as router_port:
            result = uvloop.run(measure(engine_port, port, router_port, deck, arguments.seconds))
    print(json.dumps(asdict(result)) if arguments.json else table(result))


if __name__ == "__main__":
    main()
