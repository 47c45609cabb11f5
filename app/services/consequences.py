"""What a change of a profile means in bytes, slots, tokens and sessions, by the planner."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from app.errors import InvalidInput, NotFound
from app.profiles.memory import total_bytes
from app.services.planning import Planning
from app.services.profiles import VersionView

#: In the order they are told.
NAMES: Final = ("host_total", "token_slots", "state_slots", "tokens_held", "restorable_sessions")


@dataclass(frozen=True)
class Consequence:
    """A number before and after; None = there is none on that side, or it cannot be told."""

    name: str
    old: float | None
    new: float | None


async def consequences(planning: Planning, old: VersionView, new: VersionView, now: float) -> list[Consequence]:
    """The numbers that differ; without a model at hand, the bytes alone."""
    before, after = await _numbers(planning, old, now), await _numbers(planning, new, now)
    pairs = [Consequence(name, before.get(name), after.get(name)) for name in NAMES]
    return [one for one in pairs if one.old != one.new]


async def _numbers(planning: Planning, version: VersionView, now: float) -> dict[str, float | None]:
    host = total_bytes(version.kv_transfer_config, version.flags, version.environment)
    numbers: dict[str, float | None] = {"host_total": host or None}
    try:
        found = await planning.of_profile(version.profile, version.number)
        plan = await planning.of_running(found, found.asked, now)
    except (InvalidInput, NotFound):  # no fleet, no model at hand, or one that cannot be planned: bytes are known
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
