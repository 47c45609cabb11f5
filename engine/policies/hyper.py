"""A closed form in place of what `value` learns: often used, light and recent states stay."""

from __future__ import annotations

from typing import ClassVar

from engine.policies.states import Density, StatePolicy
from engine.prefix_tree import State

_TURN_POWER = 0.25
#: Differences in age that are smaller than this hardly count.
_SOFTENING_SECONDS = 900.0


class HyperPolicy(StatePolicy):
    """Looks at every state for each victim: simple, and fast enough for some thousands."""

    name: ClassVar[str] = "hyper"

    def __init__(self, density: Density) -> None:
        super().__init__(density)
        self._states: dict[State, None] = {}

    def add(self, state: State) -> None:
        """One more."""
        self._states[state] = None

    def remove(self, state: State) -> None:
        """One less."""
        self._states.pop(state, None)

    def changed(self, state: State) -> None:
        """Nothing is kept that depends on it."""

    def victim(self, now: float) -> State | None:
        """The least score of those that are not pinned."""
        free = (state for state in self._states if not state.pinned)
        return min(free, key=lambda state: self.score(state, now), default=None)

    def score(self, state: State, now: float) -> float:
        """Turns, savings per byte, age."""
        turns: float = state.turns**_TURN_POWER
        return turns * self._density(state) / (now - state.last_used + _SOFTENING_SECONDS)

    def clear(self) -> None:
        """Forget the states."""
        self._states.clear()
