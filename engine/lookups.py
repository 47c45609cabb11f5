"""What a request's lookup came to, in tokens; standard library only."""

from __future__ import annotations

from collections.abc import Iterator

from engine import metric_names as names


def lookup_outcomes(
    start: int, hit_until: int, blocks_until: int, state_until: int, until: int
) -> Iterator[tuple[str, int]]:
    """Outcome and tokens, from where the device's own cache ends at `start`, to `until`: those that had any."""
    for outcome, bound in zip(names.OUTCOMES, (hit_until, blocks_until, state_until, until), strict=True):
        end = min(bound, until)
        if end > start:
            yield outcome, end - start
            start = end
