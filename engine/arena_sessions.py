"""Which sessions one arena holds. Pure reading, from any thread: what changes meanwhile is seen as it was or as it is.
Standard library only.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from engine.one_arena import OneArena
from engine.prefix_tree import Block
from engine.snapshot import ResidentSession, session_id
from engine.yielding import Breath


def arena_sessions(arena: OneArena, running: Iterable[Block], page_bytes: int) -> list[ResidentSession]:
    """One per state (or mark) that no other one goes on from, and per running request that goes on from none of
    them. `running` are the last blocks that requests hold; `page_bytes` are over all workers.
    """
    now, reader = arena.clock(), _Reader(arena, page_bytes)
    wall = time.time() - now
    free = list(arena.leaves)
    order = sorted(free, key=lambda state: (not state.superseded, arena.policy.score(state, now)))
    found = [reader.session(state.block, wall + state.last_used, rank) for rank, state in enumerate(order)]
    for block in set(running):
        if block.live - (block.state is not None) <= 1:  # else another one goes on from there
            found.append(reader.session(block, wall + now, None))
    return found


@dataclass
class _Reader:
    """What is found about blocks on the way of one session serves the next one that shares them."""

    arena: OneArena
    page_bytes: int
    whole: dict[Block, bool] = field(default_factory=dict)
    breath: Breath = field(default_factory=Breath)

    def session(self, end: Block, used_at: float, rank: int | None) -> ResidentSession:
        self._see_whole(end)
        there = self._first_above(end, self.whole.__getitem__)
        boundary = self._first_above(there, self._can_go_on)
        state = end.state
        return ResidentSession(
            id=session_id((boundary or there or end).block_hash),
            tokens=there.end if there is not None else 0,
            restorable_tokens=boundary.end if boundary is not None else 0,
            used_at=used_at,
            bytes=self._own_pages(end) * self.page_bytes,
            superseded=state is not None and state.superseded,
            victim_rank=rank,
        )

    def _see_whole(self, end: Block) -> None:
        """Which blocks on the way can be read with all before them."""
        way: list[Block] = []
        at: Block | None = end
        while at is not None and at not in self.whole:
            self.breath.step()
            way.append(at)
            at = at.parent
        parts = self.arena.plan.token_parts
        readable = at is None or self.whole[at]
        for one in reversed(way):
            readable = self.whole[one] = readable and one.ready & parts == parts

    def _can_go_on(self, block: Block) -> bool:
        state, parts = block.state, self.arena.plan.state_parts
        return self.arena.marks or (state is not None and state.ready & parts == parts)

    def _first_above(self, block: Block | None, is_it: Callable[[Block], bool]) -> Block | None:
        at = block
        while at is not None and not is_it(at):
            at = at.parent
        return at

    def _own_pages(self, end: Block) -> int:
        """Of the blocks that no other session shares, with the states on them."""
        plan, pages = self.arena.plan, 0
        at: Block | None = end
        while at is not None and (at is end or at.live - (at.state is not None) <= 1):
            self.breath.step()
            pages += (plan.token_pages if at.stored else 0) + (plan.state_pages if at.state is not None else 0)
            at = at.parent
        return pages
