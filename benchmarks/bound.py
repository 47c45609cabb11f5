"""The most that any host tier could save on a trace, knowing it all beforehand.

Each request may "buy" one boundary beyond what VRAM has. It then needs every block from there on held
since its last use, and the state at the boundary since it was last made. Blocks are held for one request
at a time, so what requests buy are disjoint intervals of memory over time, and the most valuable choice
that fits is a packing problem. Its Lagrangian dual, with a price of memory at some hundred instants, is an
upper bound whatever the prices are; they are improved step by step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from benchmarks.vram_model import Layout, Prompt, saved_seconds

INSTANTS: Final = 400
STEPS: Final = 400
#: Boundaries of one request that are looked at: the first and the newest ones; others gain nothing.
FIRST_BOUNDARIES: Final = 2
NEWEST_BOUNDARIES: Final = 4

Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]


@dataclass
class _Offers:
    """What can be bought. Buyers are requests that VRAM does not serve fully, numbered from 0."""

    bought_at: list[int] = field(default_factory=list)  # per buyer: the request's number in the trace
    block_since: list[int] = field(default_factory=list)  # all buyers' blocks, one after the other
    first_block: list[int] = field(default_factory=lambda: [0])
    buyer: list[int] = field(default_factory=list)  # per offer
    last_block: list[int] = field(default_factory=list)
    state_since: list[int] = field(default_factory=list)
    gain: list[float] = field(default_factory=list)


def upper_bound(requests: Sequence[Prompt], layout: Layout, host_bytes: int) -> float:
    """Seconds that no host tier of this size can save more of."""
    offers = _offers(requests, layout)
    if not offers.bought_at:
        return 0.0
    return _Dual(offers, len(requests), layout, host_bytes / layout.world_size).solve()


def _offers(requests: Sequence[Prompt], layout: Layout) -> _Offers:
    offers = _Offers()
    block_used: dict[bytes, int] = {}
    state_made: dict[bytes, int] = {}
    for number, prompt in enumerate(requests):
        if prompt.restorable > prompt.device:
            _offer(offers, prompt, number, block_used, state_made, layout.block_tokens)
        block_used.update(dict.fromkeys(prompt.chain, number))
        began = max(prompt.device, prompt.restorable)
        for depth in (began, prompt.known, len(prompt.chain)):
            if depth:
                state_made[prompt.chain[depth - 1]] = number
    return offers


def _offer(
    offers: _Offers,
    prompt: Prompt,
    number: int,
    block_used: dict[bytes, int],
    state_made: dict[bytes, int],
    block_tokens: int,
) -> None:
    chain, first = prompt.chain, prompt.device
    depths = [depth for depth in range(first + 1, prompt.restorable + 1) if chain[depth - 1] in state_made]
    if len(depths) > FIRST_BOUNDARIES + NEWEST_BOUNDARIES:
        depths = depths[:FIRST_BOUNDARIES] + depths[-NEWEST_BOUNDARIES:]
    for depth in depths:
        offers.buyer.append(len(offers.bought_at))
        offers.last_block.append(offers.first_block[-1] + depth - first - 1)
        offers.state_since.append(state_made[chain[depth - 1]])
        offers.gain.append(saved_seconds(depth * block_tokens, first * block_tokens))
    offers.block_since += [block_used[block] for block in chain[first : prompt.restorable]]
    offers.first_block.append(len(offers.block_since))
    offers.bought_at.append(number)


class _Dual:
    """Prices, what is bought at them, and how much memory that would take."""

    def __init__(self, offers: _Offers, requests: int, layout: Layout, worker_bytes: float) -> None:
        self._block_bytes, self._state_bytes = float(layout.token_block_bytes), float(layout.state_bytes)
        self._worker_bytes = worker_bytes
        instants = (np.arange(INSTANTS) + 0.5) * requests / INSTANTS
        self._gain = np.array(offers.gain)
        self._buyer: Ints = np.array(offers.buyer)
        self._last_block: Ints = np.array(offers.last_block)
        first_block: Ints = np.array(offers.first_block)
        self._first_block: Ints = first_block[self._buyer]
        bought: Ints = np.searchsorted(instants, np.array(offers.bought_at), side="right")
        self._block_from: Ints = np.searchsorted(instants, np.array(offers.block_since), side="right")
        self._block_until: Ints = np.repeat(bought, np.diff(first_block))
        self._state_from: Ints = np.searchsorted(instants, np.array(offers.state_since), side="right")
        self._state_until: Ints = bought[self._buyer]
        self._starts: Ints = np.flatnonzero(np.r_[True, self._buyer[1:] != self._buyer[:-1]])

    def solve(self) -> float:
        """The least bound found."""
        prices = np.zeros(INSTANTS)
        squares = np.zeros(INSTANTS)
        best = np.inf
        most = np.maximum.reduceat(self._gain, self._starts).sum()
        rate = 2.0 * most / (self._worker_bytes * INSTANTS)
        for step in range(STEPS):
            profit = self._profits(prices)
            best_profit = np.maximum.reduceat(profit, self._starts)
            best = min(best, float(prices.sum() * self._worker_bytes + np.maximum(best_profit, 0.0).sum()))
            excess = self._use(self._choices(profit, best_profit)) / self._worker_bytes - 1.0
            squares = 0.95 * squares + 0.05 * excess * excess
            prices = np.maximum(0.0, prices + rate / np.sqrt(1 + step / 8) * excess / np.sqrt(squares.mean() + 1e-3))
        return best

    def _profits(self, prices: Floats) -> Floats:
        """Of each offer: what it saves, less the rent of its memory."""
        until = np.r_[0.0, np.cumsum(prices)]
        rents = np.r_[0.0, np.cumsum(self._block_bytes * (until[self._block_until] - until[self._block_from]))]
        blocks = rents[self._last_block + 1] - rents[self._first_block]
        states = self._state_bytes * (until[self._state_until] - until[self._state_from])
        profits: Floats = self._gain - blocks - states
        return profits

    def _choices(self, profit: Floats, best_profit: Floats) -> Ints:
        """The best offer of each buyer for whom one is worth its price."""
        counts: Ints = np.diff(np.r_[self._starts, len(profit)])
        wanted: Ints = np.flatnonzero((profit >= np.repeat(best_profit, counts) - 1e-12) & (profit > 0))
        _, first = np.unique(self._buyer[wanted], return_index=True)
        chosen: Ints = wanted[first]
        return chosen

    def _use(self, chosen: Ints) -> Floats:
        """Memory in use at each instant."""
        changes = self._steps(self._state_from[chosen], self._state_until[chosen], self._state_bytes)
        lengths: Ints = self._last_block[chosen] - self._first_block[chosen] + 1
        starts: Ints = self._first_block[chosen] - np.r_[0, np.cumsum(lengths)[:-1]]
        blocks: Ints = np.repeat(starts, lengths) + np.arange(lengths.sum())
        changes += self._steps(self._block_from[blocks], self._block_until[blocks], self._block_bytes)
        use: Floats = np.cumsum(changes)[:INSTANTS]
        return use

    def _steps(self, begin: Ints, end: Ints, size: float) -> Floats:
        size_changes: Floats = size * (
            np.bincount(begin, minlength=INSTANTS + 1)[: INSTANTS + 1]
            - np.bincount(end, minlength=INSTANTS + 1)[: INSTANTS + 1]
        )
        return size_changes
