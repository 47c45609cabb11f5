"""Whether new engines fit beside the old ones, by what is free now. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from app.profiles.sizes import size_text
from app.rollouts.said import NOTHING, Said, say


@dataclass(frozen=True)
class Asked:
    """What each of `count` new engines takes: its host tier, and what a process takes beside it (0 = not known)."""

    count: int
    tier_bytes: int
    process_bytes: int


@dataclass(frozen=True)
class Free:
    """What can be had now without ending anything; `shared_bytes` None = there is no such mount."""

    memory_bytes: int
    shared_bytes: int | None


def no_room(asked: Asked, free: Free) -> Said:
    """Why they do not fit, with the numbers; NOTHING when they do."""
    values = {
        "count": asked.count,
        "tier": size_text(asked.tier_bytes),
        "process": size_text(asked.process_bytes),
        "free": size_text(free.memory_bytes),
        "shared": size_text(free.shared_bytes or 0),
    }
    if asked.count * (asked.tier_bytes + asked.process_bytes) > free.memory_bytes:
        return say(
            "%(count)s new engines beside the old ones take %(tier)s of host tier and about %(process)s each; "
            "%(free)s of memory are free. Write rolling or in_place.",
            **values,
        )
    if free.shared_bytes is not None and asked.count * asked.tier_bytes > free.shared_bytes:
        return say(
            "%(count)s new engines beside the old ones take %(tier)s of shared memory each; %(shared)s are free. "
            "Write rolling or in_place.",
            **values,
        )
    return NOTHING
