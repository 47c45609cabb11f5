"""An engine's metrics page over real HTTP, and the deck's scrape loop and charts on a real database."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from app.config import Settings
from app.events import Events
from app.scrape.loop import ScrapeLoop
from app.services.charts import Charts
from app.store.database import Database
from app.supervisor.states import EngineState
from app.supervisor.status import EngineStatus
from tests.databases import T0, add_engine


class MetricsServer:
    """Serves `text` with `status` on every path."""

    def __init__(self, port: int) -> None:
        self.base_url = f"http://127.0.0.1:{port}"
        self.text, self.status = "", 200
        self.gate = threading.Event()
        self.gate.set()


@contextmanager
def metrics_server() -> Iterator[MetricsServer]:
    """A server of one page on a free port."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            page.gate.wait()
            self.send_response(page.status)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.end_headers()
            self.wfile.write(page.text.encode())

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    page = MetricsServer(server.server_address[1])
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield page
    finally:
        page.gate.set()
        server.shutdown()
        thread.join()
        server.server_close()


class Engines:
    """The supervisor's part that scraping looks at: one engine, its state set by the test."""

    def __init__(self, *statuses: EngineStatus) -> None:
        self.found = {status.name: status for status in statuses}

    def statuses(self, fleet: str | None = None) -> list[EngineStatus]:
        return [status for status in self.found.values() if fleet in {None, status.fleet}]

    def change(self, name: str, **changes: object) -> None:
        self.found[name] = replace(self.found[name], **changes)  # type: ignore[arg-type]


def status(base_url: str, name: str = "e1") -> EngineStatus:
    """A ready engine behind `base_url`."""
    return EngineStatus(
        name=name,
        fleet=f"f-{name}",
        model="m",
        state=EngineState.READY,
        since=T0,
        cause="ready",
        base_url=base_url,
        port=1,
        pid=42,
        started_at=T0 - 30,
        wanted_profile="p",
        wanted_version=1,
        running_version=1,
    )


@asynccontextmanager
async def one_engine(database: Database) -> AsyncIterator[Rig]:
    """A deck with one ready engine."""
    with metrics_server() as server:
        await add_engine(database)
        rig = Rig(database, Engines(status(server.base_url)), server)
        try:
            yield rig
        finally:
            await rig.close()


class Rig:
    """Time goes on only when the test says so."""

    def __init__(self, database: Database, engines: Engines, server: MetricsServer, interval: float = 2.0) -> None:
        self.database, self.engines, self.server, self.events = database, engines, server, Events()
        self.settings = Settings(scrape_interval_seconds=interval)
        self.now = T0
        self.charts = Charts(database, engines)
        self.loops: list[ScrapeLoop] = []
        self.restart_deck()

    def restart_deck(self) -> None:
        """Forget everything that is not in the database."""
        self.loop = ScrapeLoop(self.settings, self.database, self.events, self.engines)
        self.loops.append(self.loop)

    async def scrape(self, text: str | None = None, beats: int = 1, every: float = 2.0) -> None:
        """Some beats on, with a new page if given."""
        if text is not None:
            self.server.text = text
        for _ in range(beats):
            self.now += every
            await self.loop.scrape_once(self.now)

    async def close(self) -> None:
        """Give every connection back."""
        for loop in self.loops:
            await loop.close()


def page(
    vram: float = 0,
    host: float = 0,
    computed: float = 0,
    *,
    missed: float = 0,
    started: float = T0 - 30,
    more: str = "",
) -> str:
    """An engine's page with these input tokens counted so far."""
    return f"""\
process_start_time_seconds {started}
vllm:prompt_tokens_total{{engine="0"}} {vram + host + computed}
vllm:prompt_tokens_by_source_total{{engine="0",source="local_cache_hit"}} {vram}
vllm:prompt_tokens_by_source_total{{engine="0",source="external_kv_transfer"}} {host}
vllm:prompt_tokens_by_source_total{{engine="0",source="local_compute"}} {computed}
vllm:num_requests_running{{engine="0"}} 3
vllm:num_requests_waiting{{engine="0"}} 1
vllm:num_preemptions_total{{engine="0"}} 0
vllm:kv_cache_usage_perc{{engine="0"}} 0.5
tierdeck_host_slots{{pool="token",group="all"}} 100
tierdeck_host_slots_used{{pool="token",group="all"}} 40
tierdeck_host_slots{{pool="state",group="all"}} 30
tierdeck_host_slots_used{{pool="state",group="all"}} 30
tierdeck_host_lookup_tokens_total{{outcome="state_missing"}} {missed}
tierdeck_host_lookup_tokens_total{{outcome="hit"}} {host}
{more}"""
