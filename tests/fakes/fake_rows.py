"""What is in the database of a deck whose engines are only played, by scenario."""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from app.alerts.delivery import DeliveryLoop
from app.alerts.machine import Memory
from app.events import Events
from app.services.alerts import Alerts
from app.services.profiles import Draft, Profiles
from app.store.database import Database
from app.store.models import AlertStateRow, DeliveryRow, EngineRow, FlipRow, WebhookRow
from app.store.queries import fleets
from tests.fakes import fake_requests

CONFIG = """{
  "kv_connector": "OffloadingConnector",
  "kv_role": "kv_both",
  "kv_connector_extra_config": {
    "spec_name": "TieringOffloadingSpec",
    "cpu_bytes_to_use": 68719476736,
    "eviction_policy": "lru",
    "demote_superseded_states": true,
    "mamba_state_slots_reference_tokens": 262144
  }
}"""
FLAGS = '{\n  "max-model-len": 262144,\n  "gpu-memory-utilization": 0.92,\n  "enable-prefix-caching": true\n}'

_seeded: dict[str, bytes] = {}


async def seeded_database(scenario: str) -> bytes:
    """A database file with the scenario's rows; made once, since each migration takes a second."""
    if scenario not in _seeded:
        with tempfile.TemporaryDirectory() as directory:
            database = Database(f"sqlite+aiosqlite:///{directory}/seeded.db")
            await database.migrate()
            await _seed(database, scenario)
            await database.close()
            _seeded[scenario] = (Path(directory) / "seeded.db").read_bytes()
    return _seeded[scenario]


async def _seed(database: Database, scenario: str) -> None:
    async with database.begin() as session:
        columns = {"model": "/models/qwen", "served_model_name": "qwen", "interpreter": sys.executable}
        profile = fleets.FirstProfile("agents", "Made on the first run.", {}, {"max-model-len": 262144})
        first = fleets.FirstFleet("main", columns, (fleets.FirstEngine("main-1", 8710),), profile)
        if scenario == "none" or not await fleets.seed(session, [first], time.time() - 90_000):
            return
    profiles = Profiles(database, Events())
    await profiles.save("agents", Draft(CONFIG, FLAGS), "admin", "A host tier of 64 GiB.")
    await profiles.save(
        "agents",
        Draft(CONFIG.replace("262144", "65536"), FLAGS),
        "admin",
        "Short sub-sessions: lower reference length.",
    )
    if scenario in {"busy", "pressed"}:
        async with database.begin() as session:
            await fake_requests.seed(session, time.time())
            engine = await session.get_one(EngineRow, 1)
            engine.running_version_id, engine.pid = 3, 1
            session.add(
                EngineRow(
                    fleet_id=1,
                    name="main-2",
                    port=8711,
                    profile_version_id=3,
                    running_version_id=3,
                    pid=2,
                    created_at=0,
                )
            )
    if scenario == "pressed":
        await _seed_alert(database)


async def _seed_alert(database: Database) -> None:
    """The rule fires, one receiver was told, another refused the message with status 200."""
    await Alerts(database, Events(), DeliveryLoop(database, Events())).open()
    now = time.time()
    said = "Host hits serve only 0.9 % of the input tokens while 41.0 % are recomputed."
    async with database.begin() as session:
        memory = Memory(is_firing=True, state="firing", since=now - 420, sentence=said, read_at=now)
        session.add(AlertStateRow(rule_id=1, fleet_id=1, state=memory.to_json(), updated_at=now))
        for name, channel in (("ops room", "feishu"), ("pager", "generic")):
            url = f"https://{channel}.example.org/hook/3f9a1c"
            session.add(WebhookRow(name=name, channel=channel, url=url, secret=None, keyword="", created_at=now))
        flip = FlipRow(rule_id=1, fleet_id=1, at=now - 420, old="ok", new="firing", sentence=said, evidence={})
        session.add(flip)
        await session.flush()
        refused = "code 19024: Key Words Not Found"
        for webhook, state, status, answer in ((1, "failed", 200, refused), (2, "delivered", 204, "")):
            session.add(
                DeliveryRow(
                    flip_id=flip.id,
                    webhook_id=webhook,
                    state=state,
                    attempts=1,
                    next_at=now,
                    last_at=now - 419,
                    status=status,
                    answer=answer,
                )
            )
