"""A workload under construction: sessions that grow, are forked and ask."""

from __future__ import annotations

import math
import random

from benchmarks.trace import Ask, Trace

BLOCK_TOKENS = 784
MOST_REQUESTS = 20_000
MINUTE, HOUR, DAY = 60.0, 3600.0, 86400.0


class World:
    """Same seed, same workload."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rng = random.Random(seed)  # noqa: S311 - nothing secret
        self._asks: list[Ask] = []
        self._forks: dict[int, tuple[int, int]] = {}
        self._sessions = 0

    def session(self, like: Session | None = None, first_tokens: int | None = None) -> Session:
        """A new one, or one that begins as another does now (or with its first tokens)."""
        number = self._sessions
        self._sessions += 1
        if like is None:
            return Session(self, number, 0)
        tokens = like.tokens if first_tokens is None else min(first_tokens, like.tokens)
        self._forks[number] = like.number, tokens
        return Session(self, number, tokens)

    def about(self, median: float, sigma: float, least: float = 0.0, most: float = math.inf) -> float:
        """A number around `median` with a long tail upwards."""
        return min(most, max(least, median * math.exp(self.rng.gauss(0.0, sigma))))

    def between(self, least: float, most: float) -> float:
        """Any number between the two."""
        return self.rng.uniform(least, most)

    def chance(self, share: float) -> bool:
        """True that often."""
        return self.rng.random() < share

    def after(self, mean: float) -> float:
        """Time until something comes that comes at random."""
        return self.rng.expovariate(1.0 / mean)

    def asked(self, ask: Ask) -> None:
        """Note a request."""
        self._asks.append(ask)

    def trace(self, family: str, until: float = math.inf) -> Trace:
        """All requests in order of time."""
        asks = sorted((ask for ask in self._asks if ask.at <= until), key=lambda ask: ask.at)
        return Trace(family, self.seed, BLOCK_TOKENS, asks[:MOST_REQUESTS], self._forks)


class Session:
    """A prompt that only grows."""

    def __init__(self, world: World, number: int, tokens: int) -> None:
        self._world = world
        self.number = number
        self.tokens = tokens

    def grow(self, tokens: float) -> Session:
        """Something is added to it."""
        self.tokens += int(tokens)
        return self

    def ask(self, at: float, answer: float) -> None:
        """One request; the answer becomes part of the session."""
        self._world.asked(Ask(at, self.number, max(self.tokens, 1), int(answer)))
        self.grow(answer)
