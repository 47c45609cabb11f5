"""What the manager of one arena remembers of a running request."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from vllm.v1.kv_offload.base import OffloadKey, ReqContext

from engine.requests import HASH
from engine.visits import Visit

_NO_POSITIONS: Final[dict[OffloadKey, int]] = {}


@dataclass(slots=True)
class ArenaRequest:
    """One request, and its keys as far as vLLM has named them."""

    context: ReqContext
    visit: Visit = field(default_factory=Visit)
    looked_until: int = 0
    unwanted: int = -1  # where a state was not worth a place last: its other parts are not either
    counted: bool = False
    finished: bool = False
    transfers: int = 0
    windows_stale: bool = False  # as in RequestView
    #: The token at which each key's block ends, and how many of them are in the chain. vLLM gives a position to every
    #: key of a request before it asks for any of them, one layer group after the other, but has no public way to list
    #: them.
    positions: dict[OffloadKey, int] = field(init=False)
    seen: int = 0

    def __post_init__(self) -> None:
        self.positions = getattr(self.context, "_offload_key_positions", _NO_POSITIONS)

    def end_of(self, key: OffloadKey) -> int:
        """The token position at which the block of `key` ends."""
        end = self.context.get_offload_key_position(key)
        if end is None:
            raise ValueError(f"request {self.context.req_id} does not know the position of key {key.hex()}")
        return int(end)

    def update_chain(self, chunk: int) -> None:
        """Take over the hashes of blocks of `chunk` tokens that vLLM has given positions since the last call."""
        positions = self.positions
        if len(positions) == self.seen:
            return
        chain = self.visit.chain
        expected = (len(chain) + 1) * chunk
        more = next(reversed(positions.values())) // chunk - len(chain)
        ends = list(range(expected, expected + more * chunk, chunk))
        ahead = list(islice(positions.values(), self.seen, self.seen + len(ends) + 1))
        if ends and ahead in (ends, [*ends, expected]):  # as ever: these, then the next group begins where they did
            chain += [key[HASH] for key in islice(positions, self.seen, self.seen + more)]
            self.seen = len(positions)
            return
        for key, position in islice(positions.items(), self.seen, None):
            if position == expected:
                chain.append(key[HASH])
                expected += chunk
            elif position < expected and not position % chunk:
                break  # the next group: the same hashes again
        self.seen = len(positions)
