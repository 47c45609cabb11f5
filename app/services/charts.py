"""What the overview shows: origin of input tokens, charts, slots, the headline, each engine's numbers."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy.ext.asyncio import AsyncSession

from app.derive.coverage import Coverage
from app.derive.headline import Headline, headline
from app.derive.lines import KINDS, ChartKind, ChartLine, bucket_gains, is_empty
from app.derive.origin import SOURCE_METRICS
from app.derive.points import Drawing, Point, Tracks, drawing
from app.derive.quantiles import quantile
from app.derive.slots import SlotUse
from app.errors import InvalidInput, NotFound
from app.scrape.fetch import EngineStatuses
from app.scrape.names import SeriesKey
from app.services.facts import read_facts
from app.services.origins import TokenOrigin, token_origin_of, why_no_numbers
from app.services.readings import (
    FRESH_SECONDS,
    RECENT_SECONDS,
    FleetEngines,
    Reading,
    read_coverage,
    read_gains,
    read_gauges,
    read_slots,
    read_tracks,
)
from app.store.database import Database
from app.store.queries import fleets, samples, scrapes

__all__ = [
    "CHARTS",
    "Chart",
    "ChartLine",
    "ChartMark",
    "Charts",
    "EngineNumbers",
    "Headline",
    "SlotUse",
    "TokenOrigin",
    "parse_window",
]

CHARTS: tuple[str, ...] = tuple(KINDS)

LONGEST_WINDOW_SECONDS = 15 * 86400.0
#: A counter reset this close to the supervisor's own restart mark is the same event.
SAME_RESTART_SECONDS = 60.0

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "": 1.0}
_WINDOW = re.compile(r"(?P<number>\d{1,9}(?:\.\d{1,3})?)(?P<unit>[smhd]?)")
_GAUGES = ("requests_running", "requests_waiting", "kv_usage", "host_restorable_sessions")


@dataclass(frozen=True)
class ChartMark:
    """A restart, reset, rollout, alert or data fault on a chart."""

    at: float
    kind: str
    text: str


@dataclass(frozen=True)
class Chart:
    """A chart, ready to be drawn. `at` is where each bucket ends; shares look back `smoothed_seconds`."""

    chart: str
    title: str
    unit: str
    window_seconds: float
    step_seconds: float
    from_: float
    to: float
    at: list[float]
    lines: list[ChartLine]
    marks: list[ChartMark]
    empty_reason: str | None
    smoothed_seconds: float = 0.0

    def as_json(self) -> dict[str, Any]:
        """As answered by REST."""
        fields = asdict(self)
        return {"from" if name == "from_" else name: value for name, value in fields.items()}


@dataclass(frozen=True)
class EngineNumbers:
    """An engine's numbers as last seen, at `at`. `stale_reason` says why they are not the present ones."""

    at: float | None = None
    running: float | None = None
    waiting: float | None = None
    kv_usage: float | None = None
    ttft_p50_seconds: float | None = None
    preemptions_per_minute: float | None = None
    restorable_sessions: float | None = None
    slots: SlotUse | None = None
    stale_reason: str | None = None


class Charts:
    """Answers from the store; decides nothing by itself."""

    def __init__(self, database: Database, engines: EngineStatuses, beat_seconds: float = 2.0) -> None:
        self._database = database
        self._engines = engines
        self._beat_seconds = beat_seconds

    async def token_origin(
        self, window_seconds: float, now: float, fleet: str | None = None, engine: str | None = None
    ) -> TokenOrigin:
        """Where the input tokens of the window that ends now came from; of one engine, in service or not, by name."""
        async with self._database.session() as session:
            chosen = await self._fleet(session, fleet, now - window_seconds)
            if engine is not None:
                chosen = _one_of(chosen, engine, (await samples.engine_ids(session)).get(engine))
            ids = (*chosen.ids.values(), *chosen.left)
            readings = await read_gains(session, ids, SOURCE_METRICS, now - window_seconds, now)
        return token_origin_of(chosen, readings, window_seconds, now)

    async def chart(self, chart: str, window_seconds: float, now: float, fleet: str | None = None) -> Chart:
        """One of `CHARTS` over the window that ends now."""
        kind = KINDS.get(chart)
        if kind is None:
            raise InvalidInput(f"There is no chart '{chart}'; there are {', '.join(CHARTS)}.", path="chart")
        drawn = drawing(window_seconds, now, self._beat_seconds)
        async with self._database.session() as session:
            chosen = await self._fleet(session, fleet, drawn.grid.from_)
            ids = (*chosen.ids.values(), *chosen.left)
            tracks = await read_tracks(session, ids, kind.metrics, drawn)
            covered = await read_coverage(session, ids, drawn.grid.from_, now)
            marks = await scrapes.marks_between(session, ids, drawn.grid.from_, now)
        lines = kind.draw(list(tracks.values()), drawn.grid.count, drawn.smoothed) if tracks else []
        reason = _empty_reason(kind, chosen, tracks, list(covered.values())) if is_empty(lines) else None
        return _chart(chart, kind, window_seconds, drawn, lines, _drawn_marks(marks), reason)

    async def slots(self, now: float, fleet: str | None = None) -> SlotUse:
        """The host tier's slots now, and what was evicted in the last minutes."""
        async with self._database.session() as session:
            chosen = await self._fleet(session, fleet)
            return await read_slots(session, list(chosen.ids.values()), now)

    async def headline(self, window_seconds: float, now: float, fleet: str | None = None) -> Headline:
        """The state that the overview's sentence is about."""
        async with self._database.session() as session:
            chosen = await self._fleet(session, fleet, now - window_seconds)
            return headline(await read_facts(session, chosen, window_seconds, now))

    async def latest(self, engine: str, now: float) -> EngineNumbers:
        """One engine's numbers, of its present process alone; NotFound when there is no such engine."""
        async with self._database.session() as session:
            chosen = _only(await self._fleet(session, None), engine)
            id_, began = chosen.ids[engine], chosen.statuses[0].started_at or 0.0
            seen = (await read_gauges(session, [id_], _GAUGES, now))[id_]
            gauges = {key: point for key, point in seen.items() if point.at >= began}
            metrics = ("ttft_seconds_bucket", "preemptions")
            reading = (await read_gains(session, [id_], metrics, max(now - RECENT_SECONDS, began), now))[id_]
            slots = await read_slots(session, [id_], now)
        return _numbers(gauges, reading, slots, _stale_reason(chosen, reading.coverage, gauges, now))

    async def _fleet(self, session: AsyncSession, fleet: str | None, since: float | None = None) -> FleetEngines:
        """The engines of a fleet, or of all; with those that have left since `since`."""
        if fleet and await fleets.by_name(session, fleet) is None:
            raise NotFound(f"There is no fleet '{fleet}'.", path="fleet")
        ids = await samples.engine_ids(session)
        statuses = [status for status in self._engines.statuses(fleet or None) if status.name in ids]
        left = () if since is None else await fleets.left_since(session, fleet or None, since)
        own = {status.name: ids[status.name] for status in statuses}
        return FleetEngines(statuses, own, tuple(id_ for id_ in left if id_ not in own.values()))


def parse_window(text: str) -> float:
    """`5m`, `1h`, `24h`, `7d` or seconds -> seconds."""
    match = _WINDOW.fullmatch(text.strip())
    seconds = float(match["number"]) * _UNITS[match["unit"]] if match else 0.0
    if not 0 < seconds <= LONGEST_WINDOW_SECONDS:
        raise InvalidInput(
            f"'{text[:40]}' is not a window; write 5m, 1h, 24h, 7d or seconds, up to 15d.", path="window"
        )
    return seconds


def _empty_reason(
    kind: ChartKind, chosen: FleetEngines, tracks: Mapping[int, Tracks], covered: Sequence[Coverage]
) -> str:
    if not any(one.has_numbers for one in covered):
        return why_no_numbers(chosen, next((one.reason for one in covered if one.reason), None))
    if not any(tracks.values()):
        return "missing_metric"
    return "no_requests" if kind.needs_traffic else "no_data"


def _chart(
    name: str,
    kind: ChartKind,
    window_seconds: float,
    drawn: Drawing,
    lines: list[ChartLine],
    marks: list[ChartMark],
    empty_reason: str | None,
) -> Chart:
    at = drawn.grid.ends
    # The bucket that has only just begun is left out until its first sample is there.
    if lines and len(at) > 1 and all(line.values[-1] is None for line in lines) and _is_begun(drawn):
        at, lines = at[:-1], [ChartLine(one.key, one.label, one.unit, one.values[:-1]) for one in lines]
    return Chart(
        chart=name,
        title=kind.title,
        unit=kind.unit,
        window_seconds=window_seconds,
        step_seconds=drawn.grid.step,
        from_=drawn.grid.from_,
        to=drawn.grid.to,
        at=at,
        lines=lines,
        marks=marks,
        empty_reason=empty_reason,
        smoothed_seconds=drawn.smoothed * drawn.grid.step if kind.needs_traffic else 0.0,
    )


def _is_begun(drawn: Drawing) -> bool:
    grid = drawn.grid
    return grid.to < grid.from_ + grid.count * grid.step


def _drawn_marks(marks: Sequence[scrapes.Mark]) -> list[ChartMark]:
    """All marks, but not the counters' reset beside the restart that caused it."""
    restarts = [mark for mark in marks if mark.kind == "restart"]

    def is_told(mark: scrapes.Mark) -> bool:
        return mark.kind == "reset" and any(
            restart.engine_id == mark.engine_id and abs(mark.at - restart.at) <= SAME_RESTART_SECONDS
            for restart in restarts
        )

    return [ChartMark(mark.at, mark.kind, mark.text) for mark in marks if not is_told(mark)]


def _one_of(chosen: FleetEngines, engine: str, id_: int | None) -> FleetEngines:
    statuses = [one for one in chosen.statuses if one.name == engine]
    return FleetEngines(statuses, {} if id_ is None else {engine: id_})


def _only(chosen: FleetEngines, engine: str) -> FleetEngines:
    if engine not in chosen.ids:
        raise NotFound(f"There is no engine '{engine}'.", path="engine")
    return FleetEngines([one for one in chosen.statuses if one.name == engine], {engine: chosen.ids[engine]})


def _stale_reason(chosen: FleetEngines, covered: Coverage, gauges: Mapping[SeriesKey, Point], now: float) -> str | None:
    newest = max((point.at for point in gauges.values()), default=None)
    if newest is not None and now - newest <= FRESH_SECONDS:
        return None
    return why_no_numbers(chosen, covered.reason)


def _numbers(
    gauges: Mapping[SeriesKey, Point], reading: Reading, slots: SlotUse, stale_reason: str | None
) -> EngineNumbers:
    def value(name: str) -> float | None:
        point = gauges.get(SeriesKey(name))
        return None if point is None else point.value

    preemptions = reading.increases.get(SeriesKey("preemptions"))
    return EngineNumbers(
        at=max((point.at for point in gauges.values()), default=None),
        running=value("requests_running"),
        waiting=value("requests_waiting"),
        kv_usage=value("kv_usage"),
        ttft_p50_seconds=quantile(0.5, bucket_gains([reading.increases])),
        preemptions_per_minute=None if preemptions is None else preemptions * 60 / RECENT_SECONDS,
        restorable_sessions=value("host_restorable_sessions"),
        slots=slots,
        stale_reason=stale_reason,
    )
