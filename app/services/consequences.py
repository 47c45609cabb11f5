"""What a change of a profile means in bytes, slots, tokens and sessions, by the planner."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from app.errors import InvalidInput
from app.planner.plan import Plan
from app.planner.profile import asked_by_profile
from app.planner.running import ToldLayout
from app.services.planning import FleetModel, Planning
from app.services.profiles import VersionView
from app.services.surroundings import host_bytes
from app.supervisor.status import EngineStatus
from engine.sizing import DEFAULT_REFERENCE_TOKENS

SESSIONS: Final = "restorable_sessions"
#: In the order they are told; then sessions, for each length that one of the versions is made for.
NAMES: Final = (
    "host_total",
    "bytes_per_token",
    "block_tokens",
    "vram_sequences",
    "token_slots",
    "state_slots",
    "tokens_held",
)


Numbers = dict[str | tuple[str, int], float | None]


@dataclass(frozen=True)
class Consequence:
    """A number before and after; None = there is none on that side, or it cannot be told."""

    name: str
    old: float | None
    new: float | None
    session_tokens: int | None = None
    """How long the sessions are that `restorable_sessions` counts."""


async def consequences(
    planning: Planning, old: VersionView, new: VersionView, now: float, engines: Sequence[EngineStatus]
) -> list[Consequence]:
    """The numbers that differ, for a fleet that runs one of the versions or else any; without a model at hand the
    bytes alone.
    """
    return [one for one in await both_sides(planning, old, new, now, engines) if one.old != one.new]


async def both_sides(
    planning: Planning, old: VersionView, new: VersionView, now: float, engines: Sequence[EngineStatus]
) -> list[Consequence]:
    """Like `consequences`, with those that stay the same."""
    model = await _model(planning, {*old.runs_on, *new.runs_on}, engines)
    before, after = _asked(model, old), _asked(model, new)
    lengths = sorted({*_lengths(before), *_lengths(after)})
    told = None if model is None else await planning.told_layout(model, now)
    one = await _numbers(planning, model, old, before, lengths, now, told)
    other = await _numbers(planning, model, new, after, lengths, now, told)
    numbers = [Consequence(name, one.get(name), other.get(name)) for name in NAMES]
    keys = [(SESSIONS, length) for length in lengths]
    return [*numbers, *(Consequence(SESSIONS, one.get(key), other.get(key), key[1]) for key in keys)]


async def _model(planning: Planning, running: set[str], engines: Sequence[EngineStatus]) -> FleetModel | None:
    """The first fleet whose model is on this machine, those that run a version before the others."""
    fleets = [engine.fleet for engine in sorted(engines, key=lambda engine: engine.name not in running)]
    for fleet in dict.fromkeys(fleets):
        found = await planning.fleet_model(fleet)
        if found.files is not None:
            return found
    return None


def _asked(model: FleetModel | None, version: VersionView) -> dict[str, Any]:
    """What the planner is asked with for a version on a fleet; nothing without a model."""
    if model is None:
        return {}
    settings = asked_by_profile(version.kv_transfer_config, {**model.base_flags, **version.flags})
    return {**model.machine, **settings}


def _lengths(asked: Mapping[str, Any]) -> set[int]:
    """The session length that a host tier is made for."""
    reference = asked.get("reference_tokens", DEFAULT_REFERENCE_TOKENS)
    return {reference} if "host_bytes" in asked and isinstance(reference, int) else set()


async def _numbers(
    planning: Planning,
    model: FleetModel | None,
    version: VersionView,
    asked: Mapping[str, Any],
    lengths: Sequence[int],
    now: float,
    told: ToldLayout | None,
) -> Numbers:
    fleet = ({}, {}) if model is None else (model.base_flags, model.base_environment)
    numbers: Numbers = {"host_total": host_bytes(version, *fleet) or None}
    if model is None:
        return numbers
    try:
        for length in lengths or (None,):
            plan = await planning.of_running(model, {**asked, "session_tokens": length}, now, told)
            numbers |= _of_model(plan, asked.get("kv_cache_memory_bytes")) | _of_slots(plan)
            if length is not None:
                numbers[SESSIONS, length] = _sessions(plan, length)
    except InvalidInput:  # one that cannot be planned: the bytes are known all the same
        return numbers
    return numbers


def _of_model(plan: Plan, kv_bytes: Any) -> Numbers:
    """`kv_bytes` is what each card sets aside, where the settings say it in bytes."""
    one = plan.model
    if one is None:
        return {}
    return {
        "bytes_per_token": one.geometry.bytes_per_token(one.sizes.kv_bytes),
        "block_tokens": one.block_tokens,
        "vram_sequences": kv_bytes // one.reserve(one.length) if isinstance(kv_bytes, int) else None,
    }


def _of_slots(plan: Plan) -> Numbers:
    """The pools of a split; an arena has none."""
    row = next((row for row in plan.host.rows if row.is_current), None) if plan.host is not None else None
    if row is None:
        return {}
    return {"token_slots": row.token_slots, "state_slots": row.state_slots, "tokens_held": row.tokens_held}


def _sessions(plan: Plan, length: int) -> float | None:
    """Sessions of this length that come back."""
    if plan.host is None:
        return None
    if plan.host.arena is not None:
        found = (row.restorable_sessions for row in plan.host.arena.rows if row.session_tokens == length)
    else:
        found = (row.restorable_sessions for row in plan.host.rows if row.is_current)
    return next(found, None)
