"""What one arena tells of its slots while they come and go, for memory that outlives the engine. Standard library
only.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from engine.page_arena import Run
from engine.policies.reuse import Learned
from engine.prefix_tree import Block, State


class ArenaRow(NamedTuple):
    """One slot as an earlier run left it. A block's `end` and `parent` place it in the tree, and a state's as well."""

    is_state: bool
    block_hash: bytes
    parent: bytes | None
    end: int  # tokens
    ready: int
    pages: tuple[Run, ...]
    used_at: float  # seconds since the epoch
    turns: int = 0
    long_gaps: int = 0
    junction: bool = False
    superseded: bool = False


class ArenaLedger(Protocol):
    """A row for each slot of which a part can be read. Rows are known by the first page of their slot."""

    def readable(self, slot: Block | State) -> None:
        """Other parts of it can be read than before: every worker has copied the last byte of one, or what one
        holds turned out to be spoilt.
        """

    def drop(self, pages: tuple[Run, ...]) -> None:
        """The slot is given up. Must be called before a worker hears of what comes there."""

    def used(self, state: State, idle_seconds: float) -> None:
        """It was used that long ago, or passed: a hint, on which nothing but the order of value depends."""

    def clear(self) -> None:
        """Nothing is there any more."""


class ArenaMemory(Protocol):
    """The scheduler's side of host memory that outlives the engine."""

    @property
    def ledger(self) -> ArenaLedger:
        """Where to tell what happens to slots."""

    def rows(self) -> list[ArenaRow]:
        """What an earlier run left, on pages that no other row has."""

    def learned(self) -> Learned | None:
        """What an earlier run had learned of reuse."""

    def copy_page(self, source: int, target: int) -> None:
        """Copy the bytes of one page, on every worker."""

    def settle(self) -> None:
        """Nothing lies behind the last page any more: give back what is there."""

    def close(self) -> None:
        """Let go of it; the contents stay."""
