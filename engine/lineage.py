"""Whose boundary is whose: what a request goes on from, and what is learned from that. Standard library only.

No session has a name here. What is known of one (how often it came back, how often after a long time) lies
with the record of its newest boundary, and is carried on to the next one by the request that goes on from there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from engine.ghosts import Boundaries, Record, SeenBlocks
from engine.policies.reuse import LONG_GAP_SECONDS, bin_of, klass_of
from engine.policies.states import StatePolicy
from engine.prefix_tree import State
from engine.visits import Visit


class Lineage:
    """What is remembered of blocks and boundaries, stored or not."""

    def __init__(self, policy: StatePolicy, clock: Callable[[], float]) -> None:
        self._policy = policy
        self._clock = clock
        self._seen = SeenBlocks()
        self._boundaries = Boundaries(policy.aged)

    def see(self, chain: Sequence[bytes]) -> int:
        """A request has come with this chain; returns how many of its blocks were known before."""
        self._boundaries.let_age(self._clock())
        self._policy.request()
        return self._seen.see(chain)

    def adopt(self, state: State, chain: Sequence[bytes]) -> None:
        """A state of an earlier run at the end of this chain; those used longest ago come first."""
        self._seen.see(chain)
        if state.junction:
            self._seen.part(state.block.block_hash)
        state.klass = klass_of(state.junction, state.turns, state.block.end, state.long_gaps)
        if not state.superseded:
            record = Record(state.last_used, state.klass, state.turns, state.long_gaps)
            self._boundaries.set(state.block.block_hash, record, bin_of(self._clock() - state.last_used))
            self._policy.add(state)

    def parts_at(self, block_hash: bytes) -> bool:
        """Whether prefixes part behind this block."""
        return self._seen.parts_at(block_hash)

    def learn(self, visit: Visit, known: int) -> None:
        """Which boundary was used again, after how long, and whether VRAM had lost it."""
        depth = self._boundaries.deepest(visit.chain, known, max(visit.resumed - 1, 0))
        record = self._boundaries.pop(visit.chain[depth - 1]) if depth else None
        if record is None:
            return
        now, block_hash = self._clock(), visit.chain[depth - 1]
        age = now - record.at
        self._policy.used(record.klass, age, lost=visit.device < depth)
        if self.parts_at(block_hash):  # other sessions will come by here as well
            self._boundaries.set(block_hash, Record(now, record.klass, record.turns + 1, 0))
            self._policy.made(record.klass)
            visit.kept_record = block_hash
        else:
            visit.turns, visit.long_gaps = record.turns, record.long_gaps + (age > LONG_GAP_SECONDS)

    def enter(self, visit: Visit, state: State) -> None:
        """A state that a session may go on from: into the policy's order, and among the boundaries."""
        self._policy.remove(state)
        block_hash = state.block.block_hash
        state.long_gaps = 0 if state.junction else visit.long_gaps
        state.klass = klass_of(state.junction, state.turns, state.block.end, state.long_gaps)
        self._boundaries.set(block_hash, Record(state.last_used, state.klass, state.turns, state.long_gaps))
        if block_hash != visit.kept_record:
            self._policy.made(state.klass)
        self._policy.add(state)

    def passed(self, state: State) -> None:
        """Its session has a newer one."""
        self._policy.remove(state)
        self._boundaries.pop(state.block.block_hash)
