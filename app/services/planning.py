"""Plans: of a config that was sent, of a model on this machine, and of a fleet as it runs."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import psutil

from app.derive.slots import STATE, TOKEN, pool_sum
from app.errors import InvalidInput
from app.planner.fields import Finding, read_config
from app.planner.geometry import read_geometry
from app.planner.host import SlotSizes
from app.planner.model_files import ModelFiles, read_model
from app.planner.plan import Plan, make_plan, plan_slots_alone
from app.planner.profile import asked_by_profile
from app.planner.running import ToldLayout, layout_findings, same_layout, told_slots
from app.planner.size_text import size_text
from app.planner.wish import read_wish
from app.profiles.check import Draft, read_settings
from app.profiles.context import Platform
from app.profiles.normal import normal_flags
from app.scrape.names import SeriesKey
from app.services.profiles import Profiles
from app.services.readings import FRESH_SECONDS, read_gauges
from app.services.surroundings import DRIVER, no_fleet, state_settings
from app.store.database import Database
from app.store.queries.engines import EngineDefinition, all_definitions
from app.supervisor.loglines import LogLine

TOLD_BLOCK = re.compile(r"Setting attention block size to (\d+) tokens")
GAUGES = ("host_slots", "host_bytes", "cache_config")


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
    base_flags: Mapping[str, Any]
    """Flags of the fleet that a profile does not set."""
    base_environment: Mapping[str, Any]
    machine: Mapping[str, Any]
    """What is planned with whatever the profile: the platform, and the weights that lie beside the model."""
    profile: str
    version: int
    asked: dict[str, Any]
    """What is to be planned."""
    runs: dict[str, Any]
    """What its engine was started with, in the same words."""
    running_since: float | None
    files: ModelFiles | None
    """None when the model is not on this machine."""
    why_not: InvalidInput | None
    """Then the reason."""


class Planning:
    """Finds what a plan is made of; the plan itself is `app.planner`'s."""

    def __init__(self, database: Database, profiles: Profiles, logs: Logs) -> None:
        self._database = database
        self._profiles = profiles
        self._logs = logs
        self._logged_blocks: dict[tuple[str, float], int | None] = {}
        """By engine and start: reading a log to its beginning takes too long to do it while somebody types."""

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

    async def of_running(
        self, found: FleetModel, asked: Mapping[str, Any], now: float, told: ToldLayout | None = None
    ) -> Plan:
        """Plan a fleet's model; slots as its engine has them while it runs with slots of that size.

        Where the engine tells other sizes than the model's own fields, that is a finding. `told` spares asking
        again. Raises InvalidInput.
        """
        if found.files is None:
            raise found.why_not or InvalidInput("There is no model.", path="model")
        plan = _plan_files(found.files, asked)
        if not same_layout(plan.wish, read_wish(found.runs)):
            return plan
        told = told or await self.told_layout(found, now)
        differing = layout_findings(plan, told)
        if (slots := told_slots(plan, told)) is not None:
            plan = _plan_files(found.files, asked, slots)
        return replace(plan, findings=(*differing, *plan.findings))

    async def fleet_model(self, fleet: str | None) -> FleetModel:
        """The model and settings of a fleet; of the first one without a name. Raises NotFound."""
        async with self._database.session() as session:
            definitions = await all_definitions(session)
        chosen = [one for one in definitions if fleet in (None, "", one.fleet.name)]
        if not chosen:
            raise no_fleet(fleet)
        return await self._fleet_model(chosen[0])

    async def of_profile(self, name: str, number: int | None) -> FleetModel:
        """The model of the fleet that runs a profile version, or else of the first, with its settings.

        Raises NotFound.
        """
        version = await self._profiles.version(name, number)
        fleet = await self._fleet_of(version.runs_on)
        found = await self.of_settings(version.kv_transfer_config, version.flags, fleet)
        return replace(found, profile=name, version=version.number)

    async def _fleet_of(self, engines: Sequence[str]) -> str | None:
        async with self._database.session() as session:
            definitions = await all_definitions(session)
        return next((one.fleet.name for one in definitions if one.engine.name in engines), None)

    async def of_settings(
        self, kv_transfer_config: Mapping[str, Any], flags: Mapping[str, Any], fleet: str | None = None
    ) -> FleetModel:
        """A fleet's model with these settings, saved or not; the first fleet's without a name. Raises NotFound."""
        found = await self.fleet_model(fleet)
        asked = {**found.machine, **asked_by_profile(kv_transfer_config, {**found.base_flags, **flags})}
        return replace(found, asked=asked, profile="", version=0)

    async def of_draft(self, draft: Draft, fleet: str | None = None) -> FleetModel:
        """The same for texts as typed. Raises NotFound, and InvalidInput at the first text that is not read."""
        config, flags, unread = read_settings(draft)
        if unread:
            raise InvalidInput(unread[0].sentence, path=unread[0].path, values=unread[0].values)
        return await self.of_settings(config, flags, fleet)

    async def _fleet_model(self, one: EngineDefinition) -> FleetModel:
        version = await self._profiles.by_version_id(one.engine.running_version_id or one.version.id)
        files, why_not = await asyncio.to_thread(_find_model, one.fleet.model)
        base_flags = normal_flags(one.fleet.base_flags).value
        flags = {**base_flags, **version.flags}
        machine = _machine(files, (await self._profiles.context(one.fleet.name)).platform)
        asked = machine | asked_by_profile(version.kv_transfer_config, flags)
        return FleetModel(
            fleet=one.fleet.name,
            engine=one.engine.name,
            model=one.fleet.model,
            base_flags=base_flags,
            base_environment=one.fleet.environment,
            machine=machine,
            profile=version.profile,
            version=version.number,
            asked=asked,
            runs=asked,
            running_since=one.engine.pid_started_at,
            files=files,
            why_not=why_not,
        )

    async def told_layout(self, found: FleetModel, now: float) -> ToldLayout:
        """What the engine's own numbers and log tell, while it runs; nothing otherwise."""
        gauges = await self._gauges(found.engine, now)
        if not gauges:
            return ToldLayout()
        start = (found.engine, found.running_since or 0.0)
        if start not in self._logged_blocks:  # an engine with numbers has told it, or does not
            self._logged_blocks[start] = await asyncio.to_thread(self._logged_block, *start)
        block = self._logged_blocks[start]
        return ToldLayout(
            block_tokens=max(block or 0, _configured_block(gauges) or 0) or None,
            token_slot_bytes=_slot_bytes(gauges, TOKEN),
            state_slot_bytes=_slot_bytes(gauges, STATE),
        )

    async def _gauges(self, engine: str, now: float) -> dict[SeriesKey, float]:
        async with self._database.session() as session:
            ids = [one.engine.id for one in await all_definitions(session) if one.engine.name == engine]
            read = await read_gauges(session, ids, GAUGES, now)
        points = next(iter(read.values()), {})
        return {key: point.value for key, point in points.items() if now - point.at <= FRESH_SECONDS}

    def _logged_block(self, engine: str, since: float) -> int | None:
        """The enlarged block, from the log of the present start."""
        lines = self._logs.log_tail(engine, lines=1, search="Setting attention block size to")
        match = TOLD_BLOCK.search(lines[-1].text) if lines and (lines[-1].at or since) >= since else None
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


def _find_model(model: str) -> tuple[ModelFiles | None, InvalidInput | None]:
    if not Path(model).expanduser().is_absolute():
        return None, InvalidInput(
            "%(model)s is a hub name; paste its config.json.", path="model", values={"model": model}
        )
    try:
        return read_model(model), None
    except InvalidInput as error:
        return None, error


def _machine(files: ModelFiles | None, platform: Platform | None) -> dict[str, Any]:
    """What this machine and the model's directory tell of themselves. `platform` as far as the engine told it."""
    runs_on: Platform = platform or ("cuda" if DRIVER.exists() else "cpu")
    asked: dict[str, Any] = {"platform": runs_on}
    if files is not None:
        with suppress(InvalidInput):  # told when it is planned
            asked |= state_settings(read_geometry(files.config), runs_on)
    if files is not None and files.weights_bytes is not None:
        asked["weights_bytes"] = files.weights_bytes
    return asked


def _slot_bytes(gauges: Mapping[SeriesKey, float], pool: str) -> float | None:
    """Of one slot of a pool over all workers."""
    slots, held = pool_sum(gauges, "host_slots", pool), pool_sum(gauges, "host_bytes", pool)
    return held / slots if slots and held else None


def _configured_block(gauges: Mapping[SeriesKey, float]) -> int | None:
    """The block that the engine's scheduler counts in."""
    blocks = [key.label("block_size") for key in gauges if key.name == "cache_config"]
    return max((int(block) for block in blocks if block.isdigit()), default=None)
