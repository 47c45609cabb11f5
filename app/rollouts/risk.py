"""What of the host tier's contents a new version has no room for. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

from app.rollouts.said import NOTHING, Said, say


@dataclass(frozen=True)
class Contents:
    """What the engines hold now, all together; None = not told."""

    token_slots: float | None
    state_slots: float | None
    sessions: float | None
    """Sessions that could be restored."""


@dataclass(frozen=True)
class Room:
    """What they would have with the new version; None = the pool is not split off."""

    token_slots: float | None
    state_slots: float | None


@dataclass(frozen=True)
class AtRisk:
    """Of what is held now, how much will not come along; None with a reason where it cannot be told."""

    tokens: float | None
    sessions: float | None
    tokens_held: float | None
    sessions_held: float | None
    reason: Said


def at_risk(held: Contents, room: Room, tokens_per_slot: float | None, begins_empty: Said | None) -> AtRisk:
    """`begins_empty` says why nothing is carried over at all; None = the contents stay where they are."""
    tokens = _product(held.token_slots, tokens_per_slot)

    def told(lost_tokens: float | None, lost_sessions: float | None, reason: Said) -> AtRisk:
        return AtRisk(lost_tokens, lost_sessions, tokens, held.sessions, reason)

    if held.token_slots is None:
        return told(None, None, say("The engines do not tell what their host tier holds."))
    if begins_empty is not None:
        return told(tokens, held.sessions, begins_empty)
    if room.token_slots is None:
        return told(None, None, say("What the new version holds cannot be told from its settings alone."))
    over = max(0.0, held.token_slots - room.token_slots)
    share = min(1.0, _share(room.token_slots, held.token_slots), _share(room.state_slots, held.state_slots))
    lost = None if held.sessions is None else float(math.ceil(held.sessions * (1 - share)))
    reason = say("The least valuable go first, in proportion to the slots that are fewer.") if share < 1 else NOTHING
    return told(_product(over, tokens_per_slot), lost, reason)


def _share(room: float | None, held: float | None) -> float:
    return room / held if room is not None and held else 1.0


def _product(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one * other
