"""How the engines of a fleet are taken to a version: which ways there are, and which are open. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from app.rollouts.said import NOTHING, Said, say

Strategy = Literal["rolling", "in_place", "blue_green"]
STRATEGIES: tuple[Strategy, ...] = ("rolling", "in_place", "blue_green")


@dataclass(frozen=True)
class Member:
    """An engine of the fleet as a rollout finds it."""

    name: str
    serves: bool
    stopped_on_purpose: bool


def in_order(members: Sequence[Member]) -> list[Member]:
    """Engines that serve nobody first, as nothing is lost with them; those stopped on purpose last."""
    return sorted(members, key=lambda one: (one.stopped_on_purpose, one.serves, one.name))


def usual(members: Sequence[Member]) -> Strategy:
    """The one to take when none is named."""
    return "rolling" if len(wanted_of(members)) > 1 else "in_place"


def obstacle(strategy: Strategy, members: Sequence[Member], no_room: Said = NOTHING) -> Said:
    """Why a strategy is not open; NOTHING when it is. `no_room`: why new engines do not fit beside the old ones."""
    wanted = wanted_of(members)
    if strategy == "in_place":
        return NOTHING
    if not wanted:
        return say("No engine of the fleet is meant to run: write in_place.")
    if strategy == "blue_green":
        return no_room
    if len(wanted) > 1:
        return NOTHING
    sentence = (
        "%(engine)s is the only engine that is meant to run: with rolling none would serve meanwhile. "
        "Write in_place: requests wait at the door."
    )
    return say(sentence, engine=wanted[0].name)


def wanted_of(members: Sequence[Member]) -> list[Member]:
    """Those that are meant to run."""
    return [one for one in members if not one.stopped_on_purpose]
