"""Whether new engines fit beside the old ones."""

from __future__ import annotations

import pytest

from app.rollouts.room import Asked, Free, no_room

GIB = 1 << 30


@pytest.mark.parametrize(
    ("asked", "free", "told"),
    [
        (Asked(1, 4 * GIB, 8 * GIB), Free(16 * GIB, 8 * GIB), ()),
        (Asked(2, 4 * GIB, 8 * GIB), Free(16 * GIB, 8 * GIB), ("2 new engines", "4 GiB", "8 GiB", "16 GiB")),
        (Asked(1, 4 * GIB, 0), Free(16 * GIB, 2 * GIB), ("4 GiB of shared memory", "2 GiB are free")),
        (Asked(1, 0, 0), Free(1, None), ()),
    ],
)
def test_refused_with_the_numbers(asked: Asked, free: Free, told: tuple[str, ...]) -> None:
    """Memory first, then the shared-memory mount that holds the tier."""
    text = no_room(asked, free).text
    assert bool(text) is bool(told)
    assert all(part in text for part in told), text
