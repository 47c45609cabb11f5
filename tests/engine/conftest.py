"""A processor without fast bfloat16 takes a multiple of the time; two engines that start beside traffic, more still."""

from __future__ import annotations

import pytest

LONGEST_SECONDS = 2400


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What hangs is told here too, only later."""
    for item in items:
        if item.get_closest_marker("engine"):
            item.add_marker(pytest.mark.timeout(LONGEST_SECONDS))
