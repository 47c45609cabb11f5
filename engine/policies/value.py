"""The least valuable state goes first: how likely it is to be used again, times what it saves per byte."""

from __future__ import annotations

import math
from bisect import bisect_right
from heapq import heapify, heappop, heappush
from operator import attrgetter
from typing import ClassVar

from engine.policies.reuse import STEP_ENDS, STEPS, Learned, ReuseIndex, step_of
from engine.policies.states import Density, StatePolicy
from engine.prefix_tree import Klass, State

_STALE_ENTRIES = 64


class _Group:
    """States of one class and step of age, for which the index is the same: the oldest, and the lightest."""

    def __init__(self, klass: Klass, step: int, index: list[float]) -> None:
        self.klass = klass
        self.step = step
        self.index = index
        self.members: dict[State, None] = {}
        self.heap: list[tuple[float, int, State]] = []
        self.due = math.inf  # when the first one becomes too old for the step, or earlier

    def add(self, state: State, ticket: int) -> None:
        """To the young end."""
        if not self.members:
            self.due = self._due(state)
        self.members[state] = None
        state.age_step = self.step
        self.push(state, ticket)

    def _due(self, state: State) -> float:
        return state.last_used + STEP_ENDS[self.step] if self.step < STEPS - 1 else math.inf

    def aged(self, now: float) -> list[State]:
        """Those that are too old, the oldest first."""
        found: list[State] = []
        latest = now - STEP_ENDS[self.step]
        for state in self.members:
            if state.last_used > latest:
                self.due = self._due(state)
                break
            found.append(state)
        return found

    def age(self, step: int) -> None:
        """It has one member, which is that old now."""
        self.step = step
        for state in self.members:
            state.age_step = step
            self.due = self._due(state)

    def push(self, state: State, ticket: int) -> None:
        """An entry in the heap; the one before is passed over from now on."""
        state.ticket = ticket
        heappush(self.heap, (state.density, ticket, state))
        if len(self.heap) > 4 * len(self.members) + _STALE_ENTRIES:
            self.heap = [entry for entry in self.heap if entry[2].ticket == entry[1]]
            heapify(self.heap)

    def lightest(self) -> tuple[float, State] | None:
        """The member that saves least per byte and is not pinned."""
        heap, passed = self.heap, []
        found: tuple[float, State] | None = None
        while heap and found is None:
            density, ticket, state = heap[0]
            if state.ticket == ticket and not state.pinned:
                found = density, state
            else:
                entry = heappop(heap)
                if state.ticket == ticket:
                    passed.append(entry)
        for entry in passed:
            heappush(heap, entry)
        return found


def _step_of(state: State, least: int, now: float) -> int:
    return min(bisect_right(STEP_ENDS, now - state.last_used, least), STEPS - 1)


class ValuePolicy(StatePolicy):
    """States in groups of one class and step of age. A victim costs one look at each group."""

    name: ClassVar[str] = "value"

    def __init__(self, density: Density) -> None:
        super().__init__(density)
        self.index = ReuseIndex()
        self._groups: dict[int, _Group] = {}  # by class and step in one number
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

    def aged(self, klass: Klass, age_bin: int) -> None:
        """Learn how many wait in vain."""
        self.index.aged(klass, age_bin)

    def learned(self) -> Learned:
        """What the index has counted."""
        return self.index.learned()

    def resume(self, learned: Learned) -> None:
        """Count on from there."""
        self.index.resume(learned)

    def add(self, state: State) -> None:
        """Into the youngest step of its class."""
        self.remove(state)
        state.density = self._density(state)
        self._put(state, 0)

    def _put(self, state: State, step: int) -> None:
        self._tickets += 1
        key = state.klass * STEPS + step
        (self._groups.get(key) or self._new_group(key, state.klass, step)).add(state, self._tickets)

    def _new_group(self, key: int, klass: Klass, step: int) -> _Group:
        group = self._groups[key] = _Group(klass, step, self.index.index(klass))
        return group

    def remove(self, state: State) -> None:
        """Out of its group; its entry in the heap is passed over later."""
        if state.age_step < 0:
            return
        key = state.klass * STEPS + state.age_step
        members = self._groups[key].members
        del members[state]
        if not members:
            del self._groups[key]
        state.age_step = state.ticket = -1

    def changed(self, state: State) -> None:
        """A new entry in the heap; the old one is passed over."""
        if state.age_step < 0:
            return
        density = self._density(state)
        if density != state.density:
            state.density = density
            self._tickets += 1
            self._groups[state.klass * STEPS + state.age_step].push(state, self._tickets)

    def victim(self, now: float) -> State | None:
        """The least index times density."""
        self._age(now)
        best, victim = math.inf, None
        for group in self._groups.values():
            density, ticket, state = group.heap[0]  # it has members, so it has entries
            if state.ticket != ticket or state.writing or state.holds:
                found = group.lightest()
                if found is None:
                    continue
                density, state = found
            score = group.index[group.step] * density
            if score < best:
                best, victim = score, state
        return victim

    def score(self, state: State, now: float) -> float:
        """Index times density."""
        index = self.index.known(state.klass)
        step = step_of(max(now - state.last_used, 0.0))
        return index[step] * self._density(state) if index is not None else 0.0

    def _age(self, now: float) -> None:
        """Move on those that have become too old for their step, older ones first so that queues stay in order."""
        if now == self._aged_at:
            return
        self._aged_at = now
        due = [group for group in self._groups.values() if group.due <= now]
        for group in sorted(due, key=attrgetter("step"), reverse=True):
            members, next_step = group.members, group.step + 1
            aged = group.aged(now)
            if len(aged) == len(members) == 1 and self._age_whole(group, _step_of(aged[0], next_step, now)):
                continue
            for state in aged:
                del members[state]
                self._put(state, _step_of(state, next_step, now))
            if not members:
                del self._groups[group.klass * STEPS + group.step]

    def _age_whole(self, group: _Group, step: int) -> bool:
        """Most groups have one member, and mostly nobody is where it goes; True if that was so."""
        key = group.klass * STEPS
        if key + step in self._groups:
            return False
        self._groups[key + step] = self._groups.pop(key + group.step)
        group.age(step)
        return True

    def clear(self) -> None:
        """Forget the states, not what was learned."""
        for group in self._groups.values():
            for state in group.members:
                state.age_step = state.ticket = -1
        self._groups.clear()
