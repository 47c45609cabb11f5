"""What the arena asks of a policy that chooses among states."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar

from engine.policies.reuse import Learned
from engine.prefix_tree import Klass, State

#: What a state saves per byte that its eviction would free.
Density = Callable[[State], float]


class StatePolicy(ABC):
    """Knows all states that may go one day; those that are pinned now are passed over."""

    name: ClassVar[str]

    def __init__(self, density: Density) -> None:
        self._density = density

    def request(self) -> None:  # noqa: B027 - only those that learn need this and the next three
        """A request has come."""

    def used(self, klass: Klass, age_seconds: float, lost: bool) -> None:  # noqa: B027
        """A boundary of this class was used again after that time; `lost`: VRAM no longer had it."""

    def made(self, klass: Klass) -> None:  # noqa: B027
        """A boundary of this class was made, or kept after it was used."""

    def aged(self, klass: Klass, age_bin: int) -> None:  # noqa: B027
        """A boundary of this class has reached this age unused."""

    def learned(self) -> Learned | None:
        """What there is to be kept for a later run; None for a policy that learns nothing. From any thread."""
        return None

    def resume(self, learned: Learned) -> None:  # noqa: B027
        """What an earlier run had learned; before any state is there."""

    @abstractmethod
    def add(self, state: State) -> None:
        """It was used just now."""

    @abstractmethod
    def remove(self, state: State) -> None:
        """It is gone, or first victim anyway. Nothing happens if it is not known."""

    @abstractmethod
    def changed(self, state: State) -> None:
        """What it saves, or what its eviction frees, has changed. Nothing happens if it is not known."""

    @abstractmethod
    def victim(self, now: float) -> State | None:
        """Who goes first; it stays known until it is removed. None if all are pinned."""

    @abstractmethod
    def score(self, state: State, now: float) -> float:
        """What it is worth; the least goes first. Pure reading, from any thread."""

    @abstractmethod
    def clear(self) -> None:
        """Forget the states, not what was learned."""
