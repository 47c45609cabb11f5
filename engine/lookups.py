"""What a request's lookup came to, in tokens; standard library only."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from engine import metric_names as names


def lookup_outcomes(
    start: int, hit_until: int, blocks_until: int, state_until: int, until: int
) -> Iterator[tuple[str, int]]:
    """Outcome and tokens, from where the device's own cache ends at `start`, to `until`."""
    bounds = _rising([start, hit_until, blocks_until, state_until, until])
    for outcome, (low, high) in zip(names.OUTCOMES, pairwise(bounds), strict=True):
        yield outcome, high - low


def _rising(bounds: list[int]) -> list[int]:
    """Each bound at least the one before and at most the last."""
    level, result = bounds[0], []
    for bound in bounds:
        level = max(level, min(bound, bounds[-1]))
        result.append(level)
    return result
