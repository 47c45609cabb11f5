"""Quantiles of a histogram from what its buckets gained. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping


def quantile(share: float, buckets: Mapping[float, float]) -> float | None:
    """The value below which `share` (0-1) of the observations lie, as Prometheus estimates it.

    `buckets` maps each upper bound to the observations at or below it. Inside a bucket observations
    are taken as evenly spread. Beyond the last finite bound nothing is known, so that bound is the
    answer. None without observations or without the infinite bucket.
    """
    bounds = sorted(buckets)
    if len(bounds) < 2 or not math.isinf(bounds[-1]):
        return None
    counts = _never_falling([buckets[bound] for bound in bounds])
    if counts[-1] <= 0:
        return None
    rank = share * counts[-1]
    index = next(i for i, count in enumerate(counts) if count >= rank)
    if index == len(bounds) - 1:
        return bounds[-2]
    return _interpolate(bounds, counts, index, rank)


def _interpolate(bounds: list[float], counts: list[float], index: int, rank: float) -> float:
    upper = bounds[index]
    if index == 0:
        if upper <= 0:
            return upper
        lower, below = 0.0, 0.0
    else:
        lower, below = bounds[index - 1], counts[index - 1]
    inside = counts[index] - below
    return lower + (upper - lower) * ((rank - below) / inside) if inside > 0 else lower


def _never_falling(counts: list[float]) -> list[float]:
    """Buckets scraped at slightly different moments may cross; a larger bound never holds less."""
    highest = 0.0
    repaired = []
    for count in counts:
        highest = max(highest, count)
        repaired.append(highest)
    return repaired
