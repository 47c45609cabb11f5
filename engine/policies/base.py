"""What a pool asks of an eviction policy."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from engine.pool import Slot


class EvictionPolicy(ABC):
    """An order over the slots that may go. The pool takes out what is in use and puts it back later, and never
    changes a slot's `superseded` or `again` while it is in the order.
    """

    #: As the metrics name it.
    name: ClassVar[str]

    @abstractmethod
    def add(self, slot: Slot) -> None:
        """The slot was used just now and may go from now on. It may be in the order already."""

    @abstractmethod
    def remove(self, slot: Slot) -> None:
        """The slot is in use. It is in the order."""

    @abstractmethod
    def victim(self) -> Slot | None:
        """Take the first one out of the order; None if there is none."""

    @abstractmethod
    def order(self) -> list[Slot]:
        """Those that may go, the next one first, as it stands now. Pure reading, from any thread."""

    @abstractmethod
    def clear(self) -> None:
        """Forget everything."""

    @abstractmethod
    def __len__(self) -> int:
        """How many may go."""

    def remembers(self, block_hash: bytes) -> bool:
        """A block is stored that was not there. True if it had been, not long ago."""
        return False
