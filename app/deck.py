"""The deck as one object: what the web layer and the command line act on."""

from __future__ import annotations

from dataclasses import dataclass

from app.alerts.delivery import DeliveryLoop
from app.alerts.loop import AlertLoop
from app.background import Loops
from app.config import Settings
from app.events import Events
from app.proxy.door import Door
from app.scrape.loop import ScrapeLoop
from app.services.alerts import Alerts
from app.services.charts import Charts
from app.services.deep_checks import DeepChecks
from app.services.engines import Engines
from app.services.fleets import Fleets
from app.services.planning import Planning
from app.services.preview import Previews
from app.services.profiles import Profiles
from app.services.requests import Requests
from app.services.rollouts import Rollouts
from app.services.signin import SignIn
from app.store.database import Database
from app.store.retention import RetentionLoop


@dataclass(frozen=True)
class Deck:
    """Everything the routes may use. Built in `app.main`, closed by its lifespan."""

    settings: Settings
    database: Database
    events: Events
    signin: SignIn
    engines: Engines
    fleets: Fleets
    profiles: Profiles
    planning: Planning
    deep_checks: DeepChecks
    previews: Previews
    rollouts: Rollouts
    charts: Charts
    alerts: Alerts
    door: Door
    requests: Requests
    scrape_loop: ScrapeLoop
    alert_loop: AlertLoop
    delivery_loop: DeliveryLoop
    retention_loop: RetentionLoop
    loops: Loops
