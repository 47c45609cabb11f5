"""What a pool asks of an eviction policy."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple


class Victim(NamedTuple):
    """Who goes, and why, as the metrics say it."""

    block_hash: bytes
    reason: str


class EvictionPolicy(ABC):
    """An order over the slots that may go. The pool takes out what is in use and puts it back later."""

    @abstractmethod
    def add(self, block_hash: bytes, superseded: bool) -> None:
        """The slot may go from now on; it was used just now."""

    @abstractmethod
    def remove(self, block_hash: bytes) -> None:
        """The slot is in use or gone. Nothing happens if it is not in the order."""

    @abstractmethod
    def victim(self) -> Victim | None:
        """Take the first one out of the order; None if there is none."""

    @abstractmethod
    def clear(self) -> None:
        """Forget everything."""

    @abstractmethod
    def __len__(self) -> int:
        """How many may go."""
