"""Plans: of a config that was sent, of a model on this machine, and of a fleet as it runs."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import psutil

from app.derive.slots import STATE, TOKEN, pool_sum
from app.errors import InvalidInput, NotFound
from app.planner.fields import Finding, read_config
from app.planner.host import SlotSizes
from app.planner.model_files import ModelFiles, read_model
from app.planner.plan import Plan, make_plan, plan_slots_alone
from app.planner.profile import asked_by_profile
from app.planner.size_text import size_text
from app.planner.wish import read_wish
from app.scrape.names import SeriesKey
from app.services.profiles import Profiles
from app.services.readings import FRESH_SECONDS, read_gauges
from app.store.database import Database
from app.store.queries.engines import EngineDefinition, all_definitions
from app.supervisor.loglines import LogLine

#: Where the NVIDIA driver shows itself; without it an engine runs on the CPU.
DRIVER = Path("/proc/driver/nvidia/version")
TOLD_BLOCK = re.compile(r"Setting attention block size to (\d+) tokens")
GAUGES = ("host_slots", "host_bytes")


class Logs(Protocol):
    """Where an engine's log is read (`app.services.engines.Engines`)."""

    def log_tail(self, name: str, lines: int = 500, search: str = "", level: str = "") -> list[LogLine]:
        """The last lines that hold `search`."""


@dataclass(frozen=True)
class FleetModel:
    """A fleet's model and settings, as its first engine runs them."""

    fleet: str
    engine: str
    model: str
    profile: str
    version: int
    asked: dict[str, Any]
    files: ModelFiles | None
    """None when the model is not on this machine."""
    why_not: str
    """Then the reason."""


class Planning:
    """Finds what a plan is made of; the plan itself is `app.planner`'s."""

    def __init__(self, database: Database, profiles: Profiles, logs: Logs) -> None:
        self._database = database
        self._profiles = profiles
        self._logs = logs

    async def plan(self, asked: Mapping[str, Any], config: str | dict[str, Any] | None, model: str | None) -> Plan:
        """Plan a config that was sent or a model on this machine. Raises InvalidInput."""
        if config is not None and model is not None:
            raise InvalidInput("config and model are alternatives: send only one of them.", path="config")
        if model is not None:
            return _plan_files(await asyncio.to_thread(read_model, model), asked)
        if config is None:
            return _with_memory(plan_slots_alone(read_wish(asked)))
        parsed = read_config(config) if isinstance(config, str) else config
        return _with_memory(make_plan(parsed, read_wish(asked)))

    async def of_fleet(self, fleet: str | None, now: float) -> Plan:
        """Plan a fleet's own model with its own settings and, where it runs, its own slots."""
        found = await self.fleet_model(fleet)
        return await self.of_running(found, found.asked, now)

    async def of_running(self, found: FleetModel, asked: Mapping[str, Any], now: float) -> Plan:
        """Plan a fleet's model; slots as its engine has them while it runs. Raises InvalidInput."""
        if found.files is None:
            raise InvalidInput(found.why_not, path="model")
        plan = _plan_files(found.files, asked)
        running = await self._running_slots(found, plan, now)
        return plan if running is None else _plan_files(found.files, asked, running)

    async def fleet_model(self, fleet: str | None) -> FleetModel:
        """The model and settings of a fleet; of the first one without a name. Raises NotFound."""
        async with self._database.session() as session:
            definitions = await all_definitions(session)
        chosen = [one for one in definitions if fleet in (None, "", one.fleet.name)]
        if not chosen:
            raise NotFound(f"There is no fleet named {fleet!r}." if fleet else "There is no fleet.", path="fleet")
        return await self._fleet_model(chosen[0])

    async def of_profile(self, name: str, number: int | None) -> FleetModel:
        """The first fleet's model with the settings of a profile version. Raises NotFound."""
        version = await self._profiles.version(name, number)
        found = await self.fleet_model(None)
        asked = {**_surroundings(found.files), **asked_by_profile(version.kv_transfer_config, version.flags)}
        return replace(found, asked=asked, profile=name, version=version.number)

    async def _fleet_model(self, one: EngineDefinition) -> FleetModel:
        version = await self._profiles.by_version_id(one.engine.running_version_id or one.version.id)
        files, why_not = await asyncio.to_thread(_find_model, one.fleet.model)
        asked = {**_surroundings(files), **asked_by_profile(version.kv_transfer_config, version.flags)}
        return FleetModel(
            fleet=one.fleet.name,
            engine=one.engine.name,
            model=one.fleet.model,
            profile=version.profile,
            version=version.number,
            asked=asked,
            files=files,
            why_not=why_not,
        )

    async def _running_slots(self, found: FleetModel, plan: Plan, now: float) -> SlotSizes | None:
        """The slots' sizes as the engine's own numbers tell them, while it runs."""
        gauges = await self._gauges(found.engine, now)
        if plan.host is None or plan.model is None or plan.host.arena is not None:
            return None  # in an arena the pools' numbers say what is free, not how large a slot is
        token, state = _slot_bytes(gauges, TOKEN), _slot_bytes(gauges, STATE)
        if token is None:
            return None
        workers = plan.model.sizes.workers
        block = await asyncio.to_thread(self._told_block, found.engine) or plan.model.block_tokens
        chunk = plan.host.chunk_tokens // plan.model.block_tokens * block
        return SlotSizes(token / workers, (state or 0) / workers, chunk, workers)

    async def _gauges(self, engine: str, now: float) -> dict[SeriesKey, float]:
        async with self._database.session() as session:
            ids = [one.engine.id for one in await all_definitions(session) if one.engine.name == engine]
            read = await read_gauges(session, ids, GAUGES, now)
        points = next(iter(read.values()), {})
        return {key: point.value for key, point in points.items() if now - point.at <= FRESH_SECONDS}

    def _told_block(self, engine: str) -> int | None:
        lines = self._logs.log_tail(engine, lines=1, search="Setting attention block size to")
        match = TOLD_BLOCK.search(lines[-1].text) if lines else None
        return int(match[1]) if match else None


def _plan_files(files: ModelFiles, asked: Mapping[str, Any], running: SlotSizes | None = None) -> Plan:
    weights = asked.get("weights_bytes") or files.weights_bytes
    return _with_memory(make_plan(files.config, read_wish({**asked, "weights_bytes": weights}), running))


def _with_memory(plan: Plan) -> Plan:
    """Said when the host tier is larger than this machine."""
    there = psutil.virtual_memory().total
    if plan.wish.host is None or plan.wish.host.host_bytes <= there:
        return plan
    asked, has = size_text(plan.wish.host.host_bytes), size_text(there)
    message = f"The host tier is {asked}, this machine has {has} of memory."
    found = Finding("warning", "beyond_memory", "host_bytes", message, {"asked": asked, "there": has})
    return replace(plan, findings=(*plan.findings, found))


def _find_model(model: str) -> tuple[ModelFiles | None, str]:
    if not Path(model).expanduser().is_absolute():
        return None, f"{model} is a hub name; paste its config.json."
    try:
        return read_model(model), ""
    except InvalidInput as error:
        return None, error.message


def _surroundings(files: ModelFiles | None) -> dict[str, Any]:
    """What this machine and the model's directory tell of themselves."""
    asked: dict[str, Any] = {"platform": "cuda" if DRIVER.exists() else "cpu"}
    if files is not None and files.weights_bytes is not None:
        asked["weights_bytes"] = files.weights_bytes
    return asked


def _slot_bytes(gauges: Mapping[SeriesKey, float], pool: str) -> float | None:
    """Of one slot of a pool over all workers."""
    slots, held = pool_sum(gauges, "host_slots", pool), pool_sum(gauges, "host_bytes", pool)
    return held / slots if slots and held is not None else None
