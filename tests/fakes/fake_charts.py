"""Charts and numbers that a played deck shows, one set for each scenario."""

from __future__ import annotations

import math
import random
import time
from dataclasses import replace

from app.derive.headline import Headline
from app.derive.lines import KINDS
from app.derive.points import drawing
from app.errors import InvalidInput
from app.services.charts import Chart, ChartLine, ChartMark, EngineNumbers, SlotUse, TokenOrigin
from app.supervisor.causes import Cause

HEADLINES = {
    "busy": Headline("good", "works", {"cached_share": 0.925, "vram_share": 0.865, "host_share": 0.06}),
    "pressed": Headline(
        "warning",
        "state_slots_full",
        {"state_used": 29, "state_total": 30, "evictions_per_minute": 14.2, "avoidable_tokens": 783_000},
    ),
    "empty": Headline("empty", "empty"),
    "idle": Headline("idle", "idle", {"last_at": time.time() - 7300, "last_cached_share": 0.63}),
    "starting": Headline("idle", "starting", {"cause": "Started by the deck."}),
    "down": Headline("down", "down", {"reason": "not_running", "cause": Cause.NO_MODEL % {"path": "/models/qwen"}}),
    "none": Headline("empty", "no_engine"),
}
BEAT_SECONDS = 2.0
EMPTY_REASONS = {
    "empty": "no_requests_yet",
    "idle": "idle",
    "starting": "starting",
    "down": "not_running",
    "none": "no_engine",
}


class FakeCharts:
    """Numbers of the field report, for one scenario. `shift` moves them, as new samples would."""

    def __init__(self, scenario: str) -> None:
        self.scenario = scenario
        self.shift = 0.0

    @property
    def has_traffic(self) -> bool:
        return self.scenario in {"busy", "pressed"}

    async def token_origin(
        self, window_seconds: float, now: float, fleet: str | None = None, engine: str | None = None
    ) -> TokenOrigin:
        frame = (window_seconds, now - window_seconds, now)
        if not self.has_traffic:
            idle = 0.0 if self.scenario == "idle" else None
            return TokenOrigin(*frame, idle, idle, idle, idle, None, False, EMPTY_REASONS[self.scenario])
        is_past = now < time.time() - 60
        total = 38.4e6 if is_past else 41.2e6 + self.shift
        shares = (0.859, 0.047, 0.094, 0.031) if is_past else (0.865, 0.060, 0.075, 0.019)
        vram, host, recomputed, avoidable = (total * share for share in shares)
        return TokenOrigin(*frame, vram + host + recomputed, vram, host, recomputed, avoidable, True, None)

    async def chart(self, chart: str, window_seconds: float, now: float, fleet: str | None = None) -> Chart:
        if chart not in KINDS:
            raise InvalidInput(f"There is no chart '{chart}'.", path="chart")
        kind, grid = KINDS[chart], drawing(window_seconds, now, BEAT_SECONDS).grid
        at = grid.ends
        lines = _lines(chart, len(at)) if self.has_traffic else []
        marks = [ChartMark(now - window_seconds * 0.42, "restart", "main-1 restarted")] if lines else []
        reason = None if lines else EMPTY_REASONS[self.scenario]
        frame = (window_seconds, grid.step, grid.from_, grid.to)
        return Chart(chart, kind.title, kind.unit, *frame, at, lines, marks, reason)

    async def slots(self, now: float, fleet: str | None = None) -> SlotUse:
        return SlotUse(3410, 6400, 29, 30, {"state": {"lru": 70.0}})

    async def headline(self, window_seconds: float, now: float, fleet: str | None = None) -> Headline:
        return HEADLINES[self.scenario]

    async def latest(self, engine: str, now: float) -> EngineNumbers:
        if self.has_traffic:
            return EngineNumbers(now, 4, 2 + self.shift, 0.832, 5.71, 0.4, 12)
        if self.scenario in {"empty", "idle"}:
            return EngineNumbers(now, 0, 0, 0.0)
        return EngineNumbers(stale_reason=EMPTY_REASONS[self.scenario])


def _lines(chart: str, count: int) -> list[ChartLine]:
    wave = random.Random(chart)
    noise = [wave.uniform(-1, 1) for _ in range(count)]
    ramp = [math.sin(place / count * 6) for place in range(count)]

    def line(key: str, label: str, unit: str, base: float, swing: float, grain: float) -> ChartLine:
        values = [max(0.0, base + swing * r + grain * n) for r, n in zip(ramp, noise, strict=True)]
        return ChartLine(key, label, unit, [None if 84 <= place < 90 else v for place, v in enumerate(values)])

    if chart == "token-origin":
        host = line("host", "Host hit", "share", 0.06, 0.02, 0.01)
        avoidable = line("avoidable", "Avoidable recompute", "share", 0.02, 0.01, 0.008)
        recomputed = line("recomputed", "Other recompute", "share", 0.06, 0.02, 0.02)
        rest = zip(host.values, avoidable.values, recomputed.values, strict=True)
        vram = [None if h is None else 1 - h - (a or 0) - (r or 0) for h, a, r in rest]
        return [ChartLine("vram", "VRAM hit", "share", vram), host, avoidable, recomputed]
    if chart == "slots":
        return [
            line("token-slots", "Token slots used", "share", 0.55, 0.1, 0.01),
            line("state-slots", "State slots used", "share", 0.9, 0.06, 0.02),
        ]
    if chart == "ttft":
        levels = (("p50", 0.9, 0.2, 0.1), ("p90", 5.7, 1, 0.6), ("p99", 14, 3, 2))
        return [line(key, key, "seconds", *numbers) for key, *numbers in levels]
    if chart == "load":
        whole = [
            line("running", "Running", "requests", 6, 3, 2),
            line("waiting", "Waiting", "requests", 1, 1.5, 1),
            line("preemptions", "Preemptions", "per minute", 0.1, 0.1, 0.3),
        ]
        return [replace(one, values=[None if v is None else float(round(v)) for v in one.values]) for one in whole]
    return [
        line("kv", "KV cache in VRAM", "share", 0.83, 0.1, 0.03),
        line("host", "Host tier", "share", 0.6, 0.2, 0.01),
    ]
