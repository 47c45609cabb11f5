"""What a change of a profile means in bytes, slots, tokens and sessions, by the planner."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from app.errors import InvalidInput
from app.planner.profile import asked_by_profile
from app.profiles.memory import total_bytes
from app.services.planning import FleetModel, Planning
from app.services.profiles import VersionView
from app.supervisor.status import EngineStatus

#: In the order they are told.
NAMES: Final = ("host_total", "token_slots", "state_slots", "tokens_held", "restorable_sessions")


@dataclass(frozen=True)
class Consequence:
    """A number before and after; None = there is none on that side, or it cannot be told."""

    name: str
    old: float | None
    new: float | None


async def consequences(
    planning: Planning, old: VersionView, new: VersionView, now: float, engines: Sequence[EngineStatus]
) -> list[Consequence]:
    """The numbers that differ, for a fleet that runs one of the versions or else any; without a model at hand the
    bytes alone.
    """
    model = await _model(planning, {*old.runs_on, *new.runs_on}, engines)
    before, after = await _numbers(planning, model, old, now), await _numbers(planning, model, new, now)
    pairs = [Consequence(name, before.get(name), after.get(name)) for name in NAMES]
    return [one for one in pairs if one.old != one.new]


async def _model(planning: Planning, running: set[str], engines: Sequence[EngineStatus]) -> FleetModel | None:
    """The first fleet whose model is on this machine, those that run a version before the others."""
    fleets = [engine.fleet for engine in sorted(engines, key=lambda engine: engine.name not in running)]
    for fleet in dict.fromkeys(fleets):
        found = await planning.fleet_model(fleet)
        if found.files is not None:
            return found
    return None


async def _numbers(
    planning: Planning, model: FleetModel | None, version: VersionView, now: float
) -> dict[str, float | None]:
    host = total_bytes(version.kv_transfer_config, version.flags, version.environment)
    numbers: dict[str, float | None] = {"host_total": host or None}
    if model is None:
        return numbers
    machine = {name: model.asked[name] for name in ("platform", "weights_bytes") if name in model.asked}
    try:
        asked = machine | asked_by_profile(version.kv_transfer_config, version.flags)
        plan = await planning.of_running(model, asked, now)
    except InvalidInput:  # one that cannot be planned: the bytes are known all the same
        return numbers
    row = next((row for row in plan.host.rows if row.is_current), None) if plan.host is not None else None
    if row is not None:
        numbers |= {
            "token_slots": row.token_slots,
            "state_slots": row.state_slots,
            "tokens_held": row.tokens_held,
            "restorable_sessions": row.restorable_sessions,
        }
    return numbers
