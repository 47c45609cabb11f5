"""The owner of what rules remember: looks at every fleet every few seconds, and stores what flipped."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Protocol

import structlog
from sqlalchemy.exc import IntegrityError

from app.alerts.kinds import kind_named
from app.alerts.machine import Flip, Memory, Step, step, switch_off
from app.alerts.observe import Origin, ScrapeRun, from_origin, scrape_gap, unknown
from app.alerts.phrases import Phrase
from app.alerts.rules import Judgement, Observation, Rule
from app.errors import TierdeckError
from app.events import Event, Events
from app.scrape.fetch import EngineStatuses
from app.store.database import Database
from app.store.models import AlertRuleRow, AlertStateRow, FleetRow, MarkRow
from app.store.queries import alerts as queries
from app.store.queries import fleets

log = structlog.get_logger(__name__)

STALE_SCRAPES = 5
STALE_SECONDS = 15.0
"""A fleet whose last good scrape is older than this, or than five intervals, has no data."""


class Origins(Protocol):
    """What is used of `app.services.charts.Charts`."""

    async def token_origin(self, window_seconds: float, now: float, fleet: str | None = None) -> Origin:
        """Where the input tokens of a window came from."""


@dataclass(frozen=True)
class _Watch:
    """One rule on one fleet, as read from the database."""

    rule: AlertRuleRow
    fleet: FleetRow
    seen: AlertStateRow | None

    @property
    def key(self) -> tuple[int, int]:
        return self.rule.id, self.fleet.id

    @property
    def memory(self) -> Memory:
        return Memory() if self.seen is None else Memory.from_json(self.seen.state)


class AlertLoop:
    """Evaluates the rules. A flip, its deliveries and its mark on the charts are one transaction."""

    def __init__(
        self,
        database: Database,
        events: Events,
        charts: Origins,
        engines: EngineStatuses,
        *,
        interval_seconds: float = 10.0,
        scrape_interval_seconds: float = 2.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._database = database
        self._events = events
        self._charts = charts
        self._engines = engines
        self._interval_seconds = interval_seconds
        self._stale_seconds = max(STALE_SECONDS, STALE_SCRAPES * scrape_interval_seconds)
        self._clock = clock

    async def run(self) -> None:
        """Look again and again, until cancelled."""
        while True:
            await self.evaluate_once(self._clock())
            await asyncio.sleep(self._interval_seconds)

    async def evaluate_once(self, now: float) -> None:
        """Look at every rule on every fleet. One that fails does not keep the others from being looked at."""
        for watch in await self._watches():
            try:
                await self._look(watch, now)
            except Exception as error:
                log.exception("rule not evaluated", rule=watch.rule.name, fleet=watch.fleet.name)
                await self._store(watch, step(watch.memory, _not_evaluated(error), now, math.inf), now)

    async def _watches(self) -> list[_Watch]:
        async with self._database.session() as session:
            states = await queries.states(session)
            every_fleet = await fleets.all_fleets(session)
            every_rule = await queries.rules(session)
        return [_Watch(rule, fleet, states.get((rule.id, fleet.id))) for rule in every_rule for fleet in every_fleet]

    async def _look(self, watch: _Watch, now: float) -> None:
        if watch.rule.enabled:
            rule = kind_named(watch.rule.kind).rule(watch.rule.parameters)
            judgement = rule.judge(await self._observe(rule, watch.fleet, now))
            await self._store(watch, step(watch.memory, judgement, now, rule.hold_seconds), now)
        elif watch.seen is not None and watch.memory != switch_off(watch.memory).memory:
            await self._store(watch, switch_off(watch.memory), now)

    async def _observe(self, rule: Rule, fleet: FleetRow, now: float) -> Observation:
        if rule.looks_at == "engines":
            return Observation(now, None, None, None, engines=tuple(self._engines.statuses(fleet.name)))
        async with self._database.session() as session:
            rows = await queries.newest_scrapes(session, fleet.id)
        runs = [ScrapeRun(engine, row.ok, row.first_at, row.last_at, row.reason) for engine, row in rows]
        gap = scrape_gap(runs, now, self._stale_seconds)
        if gap is not None:
            return unknown(now, gap)
        return from_origin(now, await self._charts.token_origin(rule.window_seconds, now, fleet.name))

    async def _store(self, watch: _Watch, made: Step, now: float) -> None:
        seen = None if watch.seen is None else watch.seen.updated_at
        try:
            async with self._database.begin() as session:
                if not await queries.replace_state(session, watch.key, made.memory.to_json(), now, seen):
                    return
                if made.flip is not None:
                    flip_id = await queries.add_flip(session, _new_flip(watch, made.flip, now))
                    await queries.address_to_all(session, flip_id, due_at=now)
                    session.add(MarkRow(engine_id=None, at=now, kind="alert", text=_mark(watch, made.flip)))
        except IntegrityError:
            log.info("another deck evaluated first", rule=watch.rule.name, fleet=watch.fleet.name)
            return
        self._tell(watch, made, now)

    def _tell(self, watch: _Watch, made: Step, now: float) -> None:
        if made.flip is not None:
            log.warning("alert", rule=watch.rule.name, fleet=watch.fleet.name, **_in_short(made.flip))
        if made.flip is None and made.memory.state == watch.memory.state:
            return
        data = {
            "rule": watch.rule.name,
            "fleet": watch.fleet.name,
            "state": made.memory.state,
            "sentence": made.memory.sentence,
            "at": now,
            "flip": None if made.flip is None else asdict(made.flip),
        }
        self._events.publish(Event("alert", str(watch.rule.id), data))


def _not_evaluated(error: Exception) -> Judgement:
    cause = error.message if isinstance(error, TierdeckError) else type(error).__name__
    return Judgement("no_data", Phrase.NOT_EVALUATED % {"why": cause}, None, {})


def _new_flip(watch: _Watch, flip: Flip, now: float) -> queries.NewFlip:
    return queries.NewFlip(watch.rule.id, watch.fleet.id, now, flip.old, flip.new, flip.sentence, flip.evidence)


def _mark(watch: _Watch, flip: Flip) -> str:
    word = "fires" if flip.new == "firing" else "resolved"
    return f"{watch.rule.name} / {watch.fleet.name} {word}: {flip.sentence}"


def _in_short(flip: Flip) -> dict[str, str]:
    return {"old": flip.old, "new": flip.new, "sentence": flip.sentence}
