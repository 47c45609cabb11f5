"""How a thread that has time leaves Python's lock to those that have none. Standard library only."""

from __future__ import annotations

import time
from typing import Final

_STEPS: Final = 500


class Breath:
    """Steps of a long count, with a pause every few hundred: some ten microseconds each."""

    def __init__(self) -> None:
        self._steps = 0

    def step(self) -> None:
        """One more."""
        self._steps += 1
        if self._steps % _STEPS == 0:
            time.sleep(0.0002)
