"""What the arena is told of requests, and what it tells of slots. Standard library only."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from engine.prefix_tree import Block, State


@dataclass(frozen=True)
class ArenaPlan:
    """Sizes of one worker's arena. Parts are bits, one per layer group that shares a slot; these are the ones
    without which it is of no use.
    """

    pages: int
    token_pages: int
    state_pages: int
    token_parts: int
    state_parts: int
    chunk_tokens: int


@dataclass(slots=True, eq=False)
class Visit:
    """A request as the arena sees it. Depths are in blocks."""

    chain: list[bytes] = field(default_factory=list)
    device: int = 0
    resumed: int = 0  # where it goes on: the deeper one of what the device has and what can be restored
    turns: int = 0  # of its session so far, and how often that had been idle for long
    long_gaps: int = 0
    arrived: bool = False
    kept_record: bytes | None = None
    tip: Block | None = None
    asides: list[Block] = field(default_factory=list)
    held: list[State] = field(default_factory=list)
    made: list[State] = field(default_factory=list)

    def forget(self) -> None:
        """Nothing is held any more."""
        self.tip = None
        self.asides.clear()
        self.held.clear()
        self.made.clear()


class Freed(NamedTuple):
    """Slots that were given up together: of each the hash, and which parts of it had been readable."""

    pool: Literal["token", "state"]
    slots: list[tuple[bytes, int]]
    reason: str
    idle_seconds: float
