"""What one arena makes of the rows that an earlier run left: the same tree, as far as it is whole and fits.
Standard library only.

A row counts if all parts that are needed are there and all blocks before it count. Blocks that no state needs and
states whose prefix is broken are dropped, as they would be when their request ends.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import NamedTuple

from engine.arena_ledger import ArenaMemory, ArenaRow
from engine.one_arena import OneArena
from engine.page_arena import PageArena, Run
from engine.prefix_tree import Block, State


class Adopted(NamedTuple):
    """States (or chains, without linear layers) that are there again, and how many did not fit any more."""

    kept: int
    dropped: int


def adopt(arena: OneArena, memory: ArenaMemory, now: float | None = None) -> Adopted:
    """Take up what is there into an empty arena. `now` is in seconds since the epoch."""
    rows = memory.rows()
    _Rebuilt(arena, time.time() if now is None else now).take(rows)
    _drop_unused(memory, rows, arena)
    before = len(arena.states)
    _make_fit(arena, memory)
    arena.freed.clear()  # nobody was told that they were there
    memory.settle()
    return Adopted(len(arena.states), before - len(arena.states))


class _Rebuilt:
    """Blocks first, from the roots on; then what holds them."""

    def __init__(self, arena: OneArena, now: float) -> None:
        self._arena = arena
        self._now = now
        self._used_at: dict[Block, ArenaRow] = {}

    def take(self, rows: list[ArenaRow]) -> None:
        """Into tree, policy and ghosts, those used longest ago first."""
        plan, arena = self._arena.plan, self._arena
        states: list[State] = []
        for row in sorted(rows, key=_blocks_first):
            if row.is_state:
                states += self._state(row)
            elif row.ready & plan.token_parts == plan.token_parts:
                self._take_block(row)
        states += self._marks() if arena.marks else []
        for block in [block for block in arena.tree.blocks.values() if not block.live]:
            del arena.tree.blocks[block.block_hash]
            arena.tree.unstored -= not block.stored
        arena.stored_blocks = sum(block.stored for block in arena.tree.blocks.values())
        arena.leaves.update(state for state in states if state.is_leaf)
        for state in sorted(states, key=_last_used):
            self._enter(state)

    def _take_block(self, row: ArenaRow) -> None:
        tree, chunk = self._arena.tree, self._arena.plan.chunk_tokens
        parent = tree.blocks.get(row.parent) if row.parent is not None else None
        begins = 0 if row.parent is None else parent.end if parent is not None else -1
        if begins + chunk != row.end or row.block_hash in tree.blocks:
            return
        block = Block(row.block_hash, parent, row.end, stored=True, pages=row.pages, ready=row.ready)
        tree.blocks[row.block_hash] = block
        self._used_at[block] = row

    def _state(self, row: ArenaRow) -> list[State]:
        plan = self._arena.plan
        if row.ready & plan.state_parts != plan.state_parts:
            return []
        block = self._arena.tree.blocks.get(row.block_hash) or self._bare_block(row)
        if block is None or block.state is not None or block.end != row.end:
            return []
        return [self._put(State(block, self._then(row), row.pages, row.ready), row)]

    def _bare_block(self, row: ArenaRow) -> Block | None:
        """Where a block has no bytes of its own: without attention layers, or at a boundary inside a block."""
        tree, plan = self._arena.tree, self._arena.plan
        parent = tree.blocks.get(row.parent) if row.parent is not None else None
        way = row.end - (parent.end if parent is not None else 0)
        if plan.token_parts and way >= plan.chunk_tokens:
            return None
        block = tree.blocks[row.block_hash] = Block(row.block_hash, parent, row.end)
        tree.unstored += 1
        return block

    def _marks(self) -> list[State]:
        """Without linear layers marks stand for states: where there were some, and on the last block of each chain."""
        passed = {block.parent for block in self._used_at}
        ends = [(block, row) for block, row in self._used_at.items() if row.turns or block not in passed]
        return [self._put(State(block, self._then(row)), row) for block, row in ends]

    def _put(self, state: State, row: ArenaRow) -> State:
        state.turns, state.long_gaps = max(row.turns, 1), row.long_gaps
        state.junction, state.superseded = row.junction, row.superseded and self._arena.demotes
        state.block.state = state
        self._arena.states[state] = None
        self._arena.tree.hold(state.block)
        return state

    def _then(self, row: ArenaRow) -> float:
        return self._arena.clock() - max(self._now - row.used_at, 0.0)

    def _enter(self, state: State) -> None:
        arena, chunk = self._arena, self._arena.plan.chunk_tokens
        chain = _chain(state.block)
        if state.superseded:
            arena.superseded[state] = None
        arena.anchor(state, state.block.end - chunk if arena.marks else state.found_anchor())
        arena.lineage.adopt(state, chain)


def _blocks_first(row: ArenaRow) -> tuple[bool, int]:
    return row.is_state, row.end


def _last_used(state: State) -> float:
    return state.last_used


def _chain(block: Block) -> list[bytes]:
    chain = []
    at: Block | None = block
    while at is not None:
        chain.append(at.block_hash)
        at = at.parent
    chain.reverse()
    return chain


def _drop_unused(memory: ArenaMemory, rows: list[ArenaRow], arena: OneArena) -> None:
    kept = {slot.pages[0].first for slot in _slots(arena)}
    for row in rows:
        if row.pages[0].first not in kept:
            memory.ledger.drop(row.pages)


def _slots(arena: OneArena) -> list[Block | State]:
    """Everything that has pages."""
    slots: list[Block | State] = [*arena.tree.blocks.values(), *arena.states]
    return [slot for slot in slots if slot.pages]


def _make_fit(arena: OneArena, memory: ArenaMemory) -> None:
    """Evict as always until the rest fits, then move what lies behind the end to free pages."""
    slots, limit = _slots(arena), arena.plan.pages
    reach = max((run.first + run.pages for slot in slots for run in slot.pages), default=0)
    arena.pages = PageArena(max(reach, limit))
    arena.pages.occupy(run for slot in slots for run in slot.pages)
    while arena.pages.pages - arena.pages.free > limit and arena.evict_one():
        pass
    slots = _slots(arena)
    arena.pages = PageArena(limit)
    arena.pages.occupy(inside for slot in slots for run in slot.pages if (inside := _inside(run, limit)).pages)
    moving = [slot for slot in slots if any(run.first + run.pages > limit for run in slot.pages)]
    for slot in moving:
        _move(slot, arena.pages, memory)
    for state in arena.states if moving else ():
        memory.ledger.used(state, arena.clock() - state.last_used)


def _inside(run: Run, limit: int) -> Run:
    return Run(run.first, max(min(run.pages, limit - run.first), 0))


def _move(slot: Block | State, pages: PageArena, memory: ArenaMemory) -> None:
    """The pages that lie behind the end, and then the row."""
    limit, numbers = pages.pages, [page for run in slot.pages for page in range(run.first, run.first + run.pages)]
    outside = [at for at, page in enumerate(numbers) if page >= limit]
    taken = pages.take(len(outside))
    if taken is None:
        raise RuntimeError(f"{len(outside)} pages were to be free and are not")
    targets = [page for run in taken for page in range(run.first, run.first + run.pages)]
    for at, target in zip(outside, targets, strict=True):
        memory.copy_page(numbers[at], target)
        numbers[at] = target
    memory.ledger.drop(slot.pages)
    slot.pages = _runs(numbers)
    memory.ledger.readable(slot)


def _runs(numbers: Iterable[int]) -> tuple[Run, ...]:
    runs: list[Run] = []
    for page in numbers:
        if runs and runs[-1].first + runs[-1].pages == page:
            runs[-1] = Run(runs[-1].first, runs[-1].pages + 1)
        else:
            runs.append(Run(page, 1))
    return tuple(runs)
