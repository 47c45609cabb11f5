"""Composition root: puts the deck together and owns its loops."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from fastapi import FastAPI

from app.alerts.delivery import DeliveryLoop
from app.alerts.loop import AlertLoop
from app.background import Loops
from app.config import Settings
from app.deck import Deck
from app.events import Events
from app.first_run import first_fleet, first_fleets
from app.proxy.door import Door
from app.scrape.loop import ScrapeLoop
from app.scrape.served import read_served
from app.services.alerts import Alerts
from app.services.charts import Charts
from app.services.deep_checks import DeepChecks
from app.services.engine_probe import EngineProbe
from app.services.engines import Engines
from app.services.fleets import Fleets
from app.services.planning import Planning
from app.services.preview import Previews
from app.services.profiles import Profiles
from app.services.request_origins import RequestOrigins
from app.services.requests import Requests
from app.services.rollouts import Rollouts
from app.services.signin import SignIn
from app.services.surroundings import Surroundings
from app.store.database import Database
from app.store.queries import fleets
from app.store.retention import RetentionLoop
from app.supervisor import residentmemory
from app.web.application import build_application
from engine.residency_place import directory_of
from engine.served import ServedRequest


def create_app(settings: Settings) -> FastAPI:
    """The deck as an ASGI application. Starting it migrates, adopts or starts engines, and runs the loops."""
    deck = _assemble(settings)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            await _open(deck, stack)
            yield

    return build_application(deck, lifespan)


def _assemble(settings: Settings) -> Deck:
    database, events = Database(settings.resolved_database_url), Events()
    engines = Engines(settings, database, events)
    probe = EngineProbe(settings.data_dir / "probes")
    surroundings = Surroundings(database, probe.known)
    profiles = Profiles(database, events, surroundings)
    planning = Planning(database, profiles, engines)
    fleet_service = Fleets(settings, database, events, engines, profiles)
    previews = Previews(settings, database, engines, profiles, planning, fleet_service)
    charts = Charts(database, engines, beat_seconds=settings.scrape_interval_seconds)
    delivery_loop = DeliveryLoop(database, events, settings)
    requests = Requests(database, events)
    return Deck(
        settings=settings,
        database=database,
        events=events,
        signin=SignIn(settings),
        engines=engines,
        fleets=fleet_service,
        profiles=profiles,
        deep_checks=DeepChecks(profiles, surroundings, probe),
        planning=planning,
        previews=previews,
        rollouts=Rollouts(database, events, engines, profiles, previews, fleet_service),
        charts=charts,
        alerts=Alerts(database, events, delivery_loop),
        door=Door(settings, engines, requests),
        requests=requests,
        scrape_loop=ScrapeLoop(settings, database, events, engines, watcher=engines),
        alert_loop=AlertLoop(
            database, events, charts, engines, scrape_interval_seconds=settings.scrape_interval_seconds
        ),
        delivery_loop=delivery_loop,
        retention_loop=RetentionLoop(database),
        loops=Loops(),
    )


async def _open(deck: Deck, stack: AsyncExitStack) -> None:
    """Open everything in order; `stack` closes it in the reverse one, also after a fault half-way."""
    _make_private(deck.settings.data_dir)
    await deck.database.migrate()
    stack.push_async_callback(deck.database.close)
    await _seed(deck)
    await deck.signin.open()
    await deck.alerts.open()
    stack.push_async_callback(deck.engines.close)
    await deck.engines.open()
    stack.push_async_callback(deck.requests.flush)
    stack.push_async_callback(deck.door.close)
    await deck.door.open()
    stack.push_async_callback(deck.rollouts.close)
    await deck.rollouts.open()
    stack.push_async_callback(deck.loops.close)
    deck.loops.start("scrape", deck.scrape_loop.run)
    deck.loops.start("alerts", deck.alert_loop.run)
    deck.loops.start("delivery", deck.delivery_loop.run)
    deck.loops.start("requests", deck.requests.run)
    deck.loops.start("request origins", _origins(deck).run)
    deck.loops.start("retention", deck.retention_loop.run)


def _origins(deck: Deck) -> RequestOrigins:
    def served(engine: str) -> Mapping[str, ServedRequest]:
        return read_served(directory_of(residentmemory.identifier(deck.settings.data_dir, engine)))

    return RequestOrigins(deck.database, deck.events, served)


async def _seed(deck: Deck) -> None:
    """Give a new deck its fleets; an only fleet that nobody edited is as the settings say at every start."""
    async with deck.database.session() as session:
        is_new, follows = await fleets.is_new(session), await fleets.only_follower(session) is not None
    if is_new:
        first = await first_fleets(deck.settings)
        async with deck.database.begin() as session:
            await fleets.seed(session, first, time.time())
    elif follows:
        described = await first_fleet(deck.settings)
        async with deck.database.begin() as session:
            await fleets.follow_settings(session, described)


def _make_private(directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    directory.chmod(0o700)
