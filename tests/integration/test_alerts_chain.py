"""The whole way: an engine's metrics page, scraped, stored, judged, told to a receiver."""

from __future__ import annotations

import json
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from app.alerts.loop import AlertLoop
from app.config import Settings
from app.events import Events
from app.scrape.loop import ScrapeLoop
from app.services.charts import Charts
from app.supervisor.status import EngineStatus
from tests.fakes.receiver import running_receiver
from tests.integration.alerts_rig import T0, Rig, engine_status, opened_rig

BEAT_SECONDS = 10.0


class MetricsPage:
    """A /metrics page whose counters tests add to."""

    def __init__(self) -> None:
        self.tokens = {"local_compute": 0, "local_cache_hit": 0, "external_kv_transfer": 0}
        self.status = 200
        page = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(page.status)
                self.end_headers()
                self.wfile.write(page.text().encode())

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)

    def text(self) -> str:
        lines = ["# TYPE vllm:prompt_tokens_by_source_total counter"]
        for source, count in self.tokens.items():
            labels = f'engine="0",model_name="m",source="{source}"'
            lines.append(f"vllm:prompt_tokens_by_source_total{{{labels}}} {count}.0")
        return "\n".join([*lines, ""])

    def serve(self, vram: int, host: int, computed: int) -> None:
        self.tokens["local_cache_hit"] += vram
        self.tokens["external_kv_transfer"] += host
        self.tokens["local_compute"] += computed


class OneEngine:
    def __init__(self, port: int) -> None:
        base_url = f"http://127.0.0.1:{port}"
        self.status = replace(engine_status("main-1"), base_url=base_url, port=port, started_at=T0 - 10)

    def statuses(self, fleet: str | None = None) -> list[EngineStatus]:
        return [self.status]


@pytest.fixture
def page() -> Iterator[MetricsPage]:
    served = MetricsPage()
    thread = threading.Thread(target=served.server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    yield served
    served.server.shutdown()
    served.server.server_close()
    thread.join()


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    async with opened_rig(tmp_path) as opened:
        yield opened


async def test_host_hits_that_go_to_nothing_reach_the_webhook_and_come_back(rig: Rig, page: MetricsPage):
    """Good, bad, a scrape gap in the middle of bad, good again: one firing, one resolve."""
    engines = OneEngine(page.server.server_address[1])
    charts = Charts(rig.database, engines)
    loop = AlertLoop(rig.database, Events(), charts, engines, clock=rig.clock)
    scraping = ScrapeLoop(Settings(), rig.database, Events(), engines)

    async def live(seconds: float, vram: int, host: int, computed: int) -> None:
        for _ in range(int(seconds / BEAT_SECONDS)):
            rig.clock.now += BEAT_SECONDS
            page.serve(vram, host, computed)
            await scraping.scrape_once(rig.clock.now)
            await loop.evaluate_once(rig.clock.now)

    async def state() -> str:
        return (await rig.alerts.alerts())[0].state

    with running_receiver() as receiver:
        await rig.webhook(receiver.url())
        await live(60, 0, 0, 0)
        assert (await rig.alerts.alerts())[0].sentence == "No requests yet."
        await live(120, 6000, 3000, 1000)
        assert await state() == "ok"
        await live(480, 5000, 0, 5000)
        assert await state() == "firing"
        page.status = 503
        await live(300, 0, 0, 0)
        alert = await rig.alert()
        assert alert.state == "firing"
        assert "scrape of main-1 failed since" in alert.sentence
        assert "answered 503" in alert.sentence
        page.status = 200
        await live(480, 2000, 7000, 1000)
        assert await state() == "ok"
        assert await rig.delivery.send_due() == 2
        told = [json.loads(request.body)["state"] for request in receiver.received]
    assert told == ["firing", "ok"]
    await scraping.close()
