"""Engines that share a device load one after the other.

Each measures the memory that is free while it loads, and takes its share of it; two that do so at once
count each other's weights as their own overhead. The next one begins when the one before has told the
size of its KV cache.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Set


class StartGate:
    """Knows who is loading, and on which devices. One for all engines of a deck."""

    def __init__(self) -> None:
        self._loading: dict[str, frozenset[str]] = {}
        self._change = asyncio.Event()

    def ahead_of(self, name: str, devices: Set[str]) -> str | None:
        """Who loads on one of `devices` now."""
        others = (other for other, taken in self._loading.items() if other != name and taken & devices)
        return next(others, None)

    async def enter(self, name: str, devices: Set[str], tell: Callable[[str], None]) -> None:
        """Wait until nobody else loads on `devices`; `tell` hears who is waited for."""
        while (other := self.ahead_of(name, devices)) is not None:
            tell(other)
            await self._change.wait()
        self.claim(name, devices)

    def claim(self, name: str, devices: Set[str]) -> None:
        """Load without asking: a process that was found loading cannot be held back."""
        self._loading[name] = frozenset(devices)

    def leave(self, name: str) -> None:
        """It has taken its share, or has ended. Leaving twice is nothing."""
        if self._loading.pop(name, None) is not None:
            self._change.set()
            self._change = asyncio.Event()
