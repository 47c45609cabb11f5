"""Blocks of tokens as a tree of prefixes, and the states that sit on some of them. Standard library only.

A block lives while something below it or on it is restorable: a state, or a running request. So blocks
that no state needs and states whose prefix is broken cannot pile up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from engine.page_arena import Run

#: Attention costs as much as everything else at this length; only the ratio matters here.
EVEN_TOKENS: Final = 500_000


def prefill_cost(tokens: int) -> float:
    """What computing a prompt anew costs, in the cost of one token of a short prompt."""
    return tokens + tokens * tokens / EVEN_TOKENS


#: States that are alike in how they are used again. A plain number, because it is looked up so often.
Klass: TypeAlias = int


@dataclass(slots=True, eq=False)
class Block:
    """One block of tokens. `live` counts the children that live, and 1 each for a state and a running request."""

    block_hash: bytes
    parent: Block | None
    end: int
    live: int = 0
    stored: bool = False  # it has its place in memory, filled or about to be
    pages: tuple[Run, ...] = ()
    ready: int = 0
    writing: int = 0
    state: State | None = None


@dataclass(slots=True, eq=False)
class State:
    """The state of all linear layers at the end of a block; what may be evicted."""

    block: Block
    last_used: float
    pages: tuple[Run, ...] = ()
    ready: int = 0
    writing: int = 0
    holds: int = 0
    turns: int = 1
    long_gaps: int = 0
    junction: bool = False
    superseded: bool = False
    anchor: int = 0  # tokens up to the next resident state above, which need not be computed anew
    gain: float = 0.0  # what computing from there to here costs
    own_blocks: int = 0  # from there to here, those that others need as well included
    klass: Klass = 0
    age_step: int = -1  # the policy's: which queue it stands in, and the number of its entry there
    ticket: int = -1
    density: float = 0.0  # as it was when it got that number

    @property
    def pinned(self) -> bool:
        """A transfer or a running request needs it: it must stay."""
        return bool(self.writing or self.holds)

    @property
    def is_leaf(self) -> bool:
        """Nothing below it is restorable: with it go the blocks that only it needs."""
        return self.block.live == 1

    def found_anchor(self) -> int:
        """Where the next state above sits that would stay, in tokens; 0 for none."""
        at = self.block.parent
        while at is not None and (at.state is None or at.state.superseded):
            at = at.parent
        return at.end if at is not None else 0

    def set_anchor(self, anchor: int) -> None:
        """What it saves is the way from there."""
        self.anchor = anchor
        self.gain = prefill_cost(self.block.end) - prefill_cost(anchor)


class PrefixTree:
    """Every operation takes amortised constant time per block that comes or goes."""

    def __init__(self, chunk_tokens: int, on_free: Callable[[list[Block]], None]) -> None:
        self.blocks: dict[bytes, Block] = {}
        self.unstored = 0  # blocks that have no memory yet
        self._chunk_tokens = chunk_tokens
        self._on_free = on_free

    def extend(self, chain: Sequence[bytes], depth: int) -> Block | None:
        """The block that ends `chain[:depth]`, made with all before it; hold it, or it is nobody's."""
        blocks, at = self.blocks, depth
        while at and chain[at - 1] not in blocks:
            at -= 1
        block = blocks[chain[at - 1]] if at else None
        for number in range(at, depth):
            block = self._make(chain[number], block, (number + 1) * self._chunk_tokens)
        return block

    def extend_to(self, chain: Sequence[bytes], block_hash: bytes, end: int) -> Block:
        """The same for any boundary of a prompt, also one inside a block."""
        block = self.blocks.get(block_hash)
        if block is None:
            block = self._make(block_hash, self.extend(chain, (end - 1) // self._chunk_tokens), end)
        return block

    def _make(self, block_hash: bytes, parent: Block | None, end: int) -> Block:
        block = self.blocks[block_hash] = Block(block_hash, parent, end)
        self.unstored += 1
        return block

    def hold(self, block: Block) -> Block | None:
        """One more reason to live; returns the first block above that had one already."""
        at: Block | None = block
        while at is not None:
            at.live += 1
            if at.live > 1:
                return at
            at = at.parent
        return None

    def release(self, block: Block) -> Block | None:
        """One reason less; frees what has none left, and returns the first block above that stays."""
        block.live -= 1
        if block.live:
            return block
        blocks, gone = self.blocks, [block]
        at = block.parent
        while at is not None:
            at.live -= 1
            if at.live:
                break
            gone.append(at)
            at = at.parent
        for freed in gone:
            del blocks[freed.block_hash]
            if not freed.stored:
                self.unstored -= 1
        self._on_free(gone)
        return at

    def deepest(self, chain: Sequence[bytes], depth: int) -> int:
        """How much of `chain[:depth]` is in the tree, in blocks."""
        blocks = self.blocks
        while depth and chain[depth - 1] not in blocks:
            depth -= 1
        return depth

    def clear(self) -> None:
        """Forget everything; nothing is freed one by one."""
        self.blocks.clear()
        self.unstored = 0
