"""Prompts by chance that share beginnings, and end where blocks do."""

from __future__ import annotations

import random

BLOCK = 384
LONGEST = 2_300

Tokens = tuple[int, ...]


class Prompts:
    """Sessions that grow and fork, by chance but the same for the same seed."""

    def __init__(self, seed: str) -> None:
        self.rng = random.Random(seed)  # noqa: S311 - nothing secret
        self._sessions: list[Tokens] = []

    def next(self) -> tuple[str, Tokens]:
        """A kind and a prompt."""
        kinds = (
            ("new", "short", "boundary")
            if not self._sessions
            else ("new", "short", "boundary", *3 * ("grow", "fork", "again"))
        )
        kind = self.rng.choice(kinds)
        tokens = getattr(self, f"_{kind}")()[:LONGEST]
        if kind != "again":
            self._sessions = [*self._sessions, tokens][-12:]
        return kind, tokens

    def boundary_length(self, most_blocks: int) -> int:
        """At the end of a block, or one beside it."""
        return self.rng.randint(1, most_blocks) * BLOCK + self.rng.choice((-1, 0, 1))

    def fresh(self, length: int) -> Tokens:
        """Tokens that nobody has asked for."""
        return tuple(self.rng.randrange(3, 500) for _ in range(length))

    def _new(self) -> Tokens:
        return self.fresh(self.rng.randint(BLOCK, 2_500))

    def _short(self) -> Tokens:
        return self.fresh(self.rng.randint(1, BLOCK - 1))

    def _boundary(self) -> Tokens:
        return self.fresh(self.boundary_length(5))

    def _again(self) -> Tokens:
        return self.rng.choice(self._sessions)

    def _grow(self) -> Tokens:
        return self._again() + self.fresh(self.rng.randint(1, 2 * BLOCK))

    def _fork(self) -> Tokens:
        trunk = self._again()
        at = self.rng.choice((self.rng.randint(1, len(trunk)), self.boundary_length(max(len(trunk) // BLOCK, 1))))
        return trunk[:at] + self.fresh(self.rng.randint(1, BLOCK))
