"""How long charts take to read: a SQLite file as one engine fills it, every chart on every window.

Run: python -m benchmarks.series
"""

from __future__ import annotations

import asyncio
import random
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

from app.scrape.names import HISTOGRAM_PARTS, METRICS, SeriesKey
from app.services.charts import CHARTS, Charts, parse_window
from app.store.database import Database
from app.store.queries.samples import labels_text
from app.store.retention import MINUTE_SECONDS, RAW_SECONDS
from app.supervisor.states import EngineState
from app.supervisor.status import EngineStatus

NOW = 1_800_000_000.0
WINDOWS = ("5m", "1h", "6h", "24h", "7d", "15d")
REPEATS = 7
BUCKETS = ("0.1", "0.5", "1.0", "2.5", "5.0", "7.5", "10.0", "20.0", "40.0", "80.0", "160.0", "320.0", "640.0", "+Inf")
LABELS: dict[str, tuple[str, ...]] = {
    "source": ("local_compute", "local_cache_hit", "external_kv_transfer"),
    "pool": ("token", "state"),
    "group": ("all",),
    "outcome": ("hit", "state_missing", "token_missing", "absent"),
    "reason": ("lru", "superseded"),
    "le": BUCKETS,
}


ONE_ENGINE = """
INSERT INTO profiles VALUES (1, 'p', 0);
INSERT INTO profile_versions
    (id, profile_id, number, created_at, author, comment, kv_transfer_config, flags, environment)
    VALUES (1, 1, 1, 0, '', '', '{}', '{}', '{}');
INSERT INTO fleets VALUES (1, 'f1', 'm', 'm', 'python', 0);
INSERT INTO engines
    (id, fleet_id, name, port, profile_version_id, wanted, state, state_since, cause, created_at)
    VALUES (1, 1, 'e1', 1, 1, 'running', 'ready', 0, '', 0);
"""


class OneEngine:
    """A ready engine, as the supervisor would tell of it."""

    def statuses(self, fleet: str | None = None) -> list[EngineStatus]:
        """That engine."""
        return [
            EngineStatus(
                name="e1",
                fleet="f1",
                model="m",
                state=EngineState.READY,
                since=NOW,
                cause="",
                base_url="",
                port=1,
                pid=1,
                started_at=NOW - MINUTE_SECONDS,
                wanted_profile="p",
                wanted_version=1,
                running_version=1,
                phase=None,
                progress=None,
                restarts=0,
                next_try_at=None,
                leftover_processes=0,
                error_code=None,
            )
        ]


def series() -> Iterator[tuple[SeriesKey, str]]:
    """Every series a page of the real engine gives, with its kind."""
    for metric in METRICS:
        parts = HISTOGRAM_PARTS if metric.kind == "histogram" else ("",)
        for part in parts:
            names = [name for name in metric.labels if name != "le" or part == "_bucket"]
            for labels in _combinations(names):
                yield SeriesKey(metric.name + part, labels), "gauge" if metric.kind == "gauge" else "counter"


def _combinations(names: list[str]) -> Iterator[tuple[tuple[str, str], ...]]:
    if not names:
        yield ()
        return
    for value in LABELS[names[0]]:
        for rest in _combinations(names[1:]):
            yield tuple(sorted(((names[0], value), *rest)))


def fill(file: Path) -> int:
    """Write what fifteen days of scraping leave behind; the number of samples."""
    connection = sqlite3.connect(file)
    connection.executescript(ONE_ENGINE)
    connection.execute("INSERT INTO scrapes VALUES (1, 1, ?, ?, 1, '')", (NOW - MINUTE_SECONDS, NOW))
    for id_, (key, kind) in enumerate(series(), start=1):
        connection.execute("INSERT INTO series VALUES (?, 1, ?, ?, ?)", (id_, key.name, labels_text(key), kind))
        for table, length, step in (("samples", RAW_SECONDS, 2), ("minute_samples", MINUTE_SECONDS, 60)):
            connection.executemany(f"INSERT INTO {table} VALUES (?, ?, ?, ?)", _samples(id_, kind, length, step))  # noqa: S608
    connection.commit()
    count: int = connection.execute(
        "SELECT (SELECT count(*) FROM samples) + (SELECT count(*) FROM minute_samples)"
    ).fetchone()[0]
    connection.close()
    return count


def _samples(id_: int, kind: str, length: float, step: float) -> Iterator[tuple[int, float, float, float]]:
    chance, total = random.Random(id_), 0.0  # noqa: S311
    start = NOW - length
    for index in range(int(length / step) + 1):
        total += chance.randrange(1000)
        value = chance.random() if kind == "gauge" else total
        yield id_, start + index * step, value, value


async def measure(what: Callable[[], Awaitable[object]]) -> tuple[float, float]:
    """Median and slowest milliseconds of some runs."""
    times = []
    for _ in range(REPEATS):
        started = time.perf_counter()
        await what()
        times.append((time.perf_counter() - started) * 1000)
    return statistics.median(times), max(times)


async def main() -> None:
    """Fill, measure, print a table."""
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "deck.db"
        database = Database(f"sqlite+aiosqlite:///{file}")
        await database.migrate()
        started = time.perf_counter()
        count = await asyncio.to_thread(fill, file)
        size = file.stat().st_size / 1e6
        print(f"{count:,} samples, {size:.0f} MB, written in {time.perf_counter() - started:.1f} s")
        charts = Charts(database, OneEngine())
        print(f"{'':14}" + "".join(f"{window:>16}" for window in WINDOWS) + "   (median / slowest ms)")
        for name in (*CHARTS, "token_origin()", "headline()"):
            cells = [await _cell(charts, name, parse_window(window)) for window in WINDOWS]
            print(f"{name:14}" + "".join(f"{cell:>16}" for cell in cells))
        await database.close()


async def _cell(charts: Charts, name: str, window: float) -> str:
    async def once() -> object:
        if name == "token_origin()":
            return await charts.token_origin(window, NOW)
        if name == "headline()":
            return await charts.headline(window, NOW)
        return await charts.chart(name, window, NOW)

    middle, slowest = await measure(once)
    return f"{middle:.0f} / {slowest:.0f}"


if __name__ == "__main__":
    asyncio.run(main())
