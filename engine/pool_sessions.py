"""Which sessions the pools of a static split hold. Pure reading, from any thread."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from engine.layout import HostLayout, PoolName
from engine.pool import Slot, SlotPool
from engine.snapshot import ResidentSession, session_id
from engine.yielding import Breath


def pool_sessions(
    pools: Mapping[PoolName, SlotPool], layout: HostLayout, world_size: int, clock: Callable[[], float]
) -> list[ResidentSession]:
    """One per chain of blocks that is there from its beginning and that no other one goes on from."""
    reader, wall = _Reader(pools, layout, world_size), time.time() - clock()
    found = [reader.session(way, wall) for way in reader.ways() if way]
    return _ranked(found, reader)


def _way(end: Slot, tokens: SlotPool, breath: Breath) -> list[Slot]:
    """From the first block to the end, as far as all can be read; nothing if the beginning is missing."""
    way, at = [end], end
    while at.parent is not None:
        breath.step()
        above = tokens.slots.get(at.parent)
        if above is None:
            return []
        way.append(above)
        at = above
    way.reverse()
    parts = tokens.needed_parts
    return way[: next((at for at, slot in enumerate(way) if slot.ready & parts != parts), len(way))]


class _Reader:
    """Without attention layers a state is a chain by itself."""

    def __init__(self, pools: Mapping[PoolName, SlotPool], layout: HostLayout, world_size: int) -> None:
        self.boundaries: list[Slot | None] = []  # of the sessions, in their order
        self.ends = pools["state"] if layout.pool_groups("state") else pools["token"]
        self._tokens, self._states = pools["token"], pools["state"]
        self._bytes = {name: layout.slot_bytes(name) * world_size for name in pools}
        self._has_blocks = bool(layout.pool_groups("token"))
        self._slots = list((self._tokens if self._has_blocks else self._states).slots.values())
        self._children = Counter(slot.parent for slot in self._slots)

    def ways(self) -> Iterator[list[Slot]]:
        """Of each chain its blocks, from the first one on."""
        breath = Breath()
        for slot in self._slots:
            if not self._has_blocks:
                yield [slot]
            elif slot.block_hash not in self._children:
                yield _way(slot, self._tokens, breath)

    def session(self, way: list[Slot], wall: float) -> ResidentSession:
        boundary = next((slot for slot in reversed(way) if self.ends.whole(slot.block_hash)), None)
        state = self.ends.get(boundary.block_hash) if boundary is not None else None
        self.boundaries.append(state)
        return ResidentSession(
            id=session_id((boundary or way[-1]).block_hash),
            tokens=way[-1].end_tokens,
            restorable_tokens=boundary.end_tokens if boundary is not None else 0,
            used_at=wall + max(way[-1].last_used, state.last_used if state is not None else way[-1].last_used),
            bytes=self._own_bytes(way),
            superseded=state is not None and state.superseded,
            victim_rank=None,
        )

    def _own_bytes(self, way: list[Slot]) -> int:
        own = 0
        for slot in reversed(way):
            if slot is not way[-1] and self._children[slot.block_hash] > 1:
                break
            own += self._bytes["token"] * self._has_blocks
            if self._states.get(slot.block_hash) is not None:
                own += self._bytes["state"]
        return own


def _ranked(sessions: list[ResidentSession], reader: _Reader) -> list[ResidentSession]:
    """By when their boundary goes. What is in use is not in the order, and what cannot go on has nothing to lose."""
    places = {slot: place for place, slot in enumerate(reader.ends.policy.order())}
    going = sorted(
        (places[slot], at) for at, slot in enumerate(reader.boundaries) if slot is not None and slot in places
    )
    ranks = {at: rank for rank, (_, at) in enumerate(going)}
    return [replace(session, victim_rank=ranks.get(at)) for at, session in enumerate(sessions)]
