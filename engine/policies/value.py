"""The least valuable state goes first: how likely it is to be used again, times what it saves per byte."""

from __future__ import annotations

import heapq
import math
from typing import ClassVar

from engine.policies.reuse import BINS, EDGES, ReuseIndex, bin_of
from engine.policies.states import Density, StatePolicy
from engine.prefix_tree import Klass, State

_STALE_ENTRIES = 64


class _Group:
    """States of one class and age bin, for which the index is the same: the oldest, and the lightest."""

    def __init__(self, klass: Klass, age_bin: int, index: list[float]) -> None:
        self.klass = klass
        self.age_bin = age_bin
        self.index = index
        self.members: dict[State, None] = {}
        self.heap: list[tuple[float, int, State]] = []
        self.due = math.inf  # when the first one becomes too old for the bin, or earlier

    def add(self, state: State) -> None:
        """To the young end."""
        if not self.members:
            self.due = self._due(state)
        self.members[state] = None

    def _due(self, state: State) -> float:
        return state.last_used + EDGES[self.age_bin + 1] if self.age_bin < BINS - 1 else math.inf

    def aged(self, now: float) -> list[State]:
        """Those that are too old, the oldest first."""
        found = []
        for state in self.members:
            self.due = self._due(state)
            if self.due > now:
                break
            found.append(state)
        return found

    def push(self, density: float, state: State) -> None:
        heapq.heappush(self.heap, (density, state.ticket, state))
        if len(self.heap) > 4 * len(self.members) + _STALE_ENTRIES:
            self.heap = [entry for entry in self.heap if entry[2].ticket == entry[1]]
            heapq.heapify(self.heap)

    def lightest(self) -> tuple[float, State] | None:
        """The member that saves least per byte and is not pinned."""
        heap = self.heap
        if heap and heap[0][2].ticket == heap[0][1] and not heap[0][2].pinned:
            return heap[0][0], heap[0][2]
        return self._lightest_below()

    def _lightest_below(self) -> tuple[float, State] | None:
        heap, passed = self.heap, []
        found: tuple[float, State] | None = None
        while heap and found is None:
            density, ticket, state = heap[0]
            if state.ticket == ticket and not state.pinned:
                found = density, state
            else:
                entry = heapq.heappop(heap)
                if state.ticket == ticket:
                    passed.append(entry)
        for entry in passed:
            heapq.heappush(heap, entry)
        return found


class ValuePolicy(StatePolicy):
    """States in groups of one class and age bin. A victim costs one look at each group."""

    name: ClassVar[str] = "value"

    def __init__(self, density: Density) -> None:
        super().__init__(density)
        self.index = ReuseIndex()
        self._groups: dict[int, _Group] = {}  # by class and bin in one number
        self._tickets = 0
        self._aged_at = -1.0

    def request(self) -> None:
        """Counts fade a little."""
        self.index.request()

    def used(self, klass: Klass, age_seconds: float, lost: bool) -> None:
        """Learn how soon its like is used again."""
        self.index.used(klass, age_seconds, lost)

    def made(self, klass: Klass) -> None:
        """Learn how many there are."""
        self.index.made(klass)

    def add(self, state: State) -> None:
        """Into the youngest bin of its class."""
        self.remove(state)
        self._put(state, 0)

    def _put(self, state: State, age_bin: int) -> None:
        state.age_bin = age_bin
        key = state.klass * BINS + age_bin
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = _Group(state.klass, age_bin, self.index.index(state.klass))
        group.add(state)
        self._push(group, state)

    def _push(self, group: _Group, state: State) -> None:
        self._tickets += 1
        state.ticket = self._tickets
        group.push(self._density(state), state)

    def remove(self, state: State) -> None:
        """Out of its group; its entry in the heap is passed over later."""
        if state.age_bin < 0:
            return
        key = state.klass * BINS + state.age_bin
        members = self._groups[key].members
        del members[state]
        if not members:
            del self._groups[key]
        state.age_bin = state.ticket = -1

    def changed(self, state: State) -> None:
        """A new entry in the heap; the old one is passed over."""
        if state.age_bin >= 0:
            self._push(self._groups[state.klass * BINS + state.age_bin], state)

    def victim(self, now: float) -> State | None:
        """The least index times density."""
        self._age(now)
        best, victim = math.inf, None
        for group in self._groups.values():
            found = group.lightest()
            if found is not None:
                score = group.index[group.age_bin] * found[0]
                if score < best:
                    best, victim = score, found[1]
        return victim

    def _age(self, now: float) -> None:
        """Move on those that have become too old for their bin, older bins first so that queues stay in order."""
        if now == self._aged_at:
            return
        self._aged_at = now
        due = [group for group in self._groups.values() if group.due <= now]
        for group in sorted(due, key=_age_bin, reverse=True):
            for state in group.aged(now):
                self.remove(state)
                self._put(state, max(bin_of(now - state.last_used), group.age_bin + 1))

    def clear(self) -> None:
        """Forget the states, not what was learned."""
        for group in self._groups.values():
            for state in group.members:
                state.age_bin = state.ticket = -1
        self._groups.clear()


def _age_bin(group: _Group) -> int:
    return group.age_bin
