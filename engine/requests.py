"""What the manager remembers of a running request: its chain of blocks and what it holds."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from vllm.v1.kv_offload.base import OffloadKey, ReqContext

from engine.pool import Slot

#: Stands for a block that vLLM did not name. No block has this hash, so its chain is not whole.
UNKNOWN = b""
#: A key is a block hash with the group's number behind it, in four bytes. Slices that are made once: a request has
#: hundreds of keys.
HASH: Final = slice(None, -4)
GROUP: Final = slice(-4, None)


@dataclass(slots=True)
class RequestView:
    """One request. `chain` maps the end of each block, in tokens, to its hash."""

    context: ReqContext
    chain: dict[int, bytes] = field(default_factory=dict)
    first_looked_up: OffloadKey | None = None  # right behind what the device's own prefix cache has
    last_looked_up: OffloadKey | None = None
    counted: bool = False
    finished: bool = False
    stores_in_flight: int = 0
    held: dict[bytes, Slot] = field(default_factory=dict)
    #: After a reset vLLM offers a running request's blocks once more. Those that its windows have left behind it
    #: knows by numbers that may have been given to others.
    windows_stale: bool = False
    _seen: int = 0

    def end_of(self, key: OffloadKey) -> int:
        """The token position at which the block of `key` ends."""
        position = self.context.get_offload_key_position(key)
        if position is None:
            raise ValueError(f"request {self.context.req_id} does not know the position of key {key.hex()}")
        if position not in self.chain:
            self.chain[position] = key[HASH]
        return int(position)

    def parent_of(self, end_tokens: int, chunk_tokens: int) -> bytes | None:
        """The hash of the block before the one that ends at `end_tokens`; None for the first block."""
        before = (end_tokens - 1) // chunk_tokens * chunk_tokens
        return self.chain.get(before, UNKNOWN) if before else None

    def update_chain(self) -> None:
        """Take over the keys that vLLM has given positions since the last call.

        vLLM gives a position to every key of the request before it asks for any of them, but has no
        public way to list them. Should this one go, the chain is made of the keys it asks for.
        """
        positions = getattr(self.context, "_offload_key_positions", {})
        if len(positions) == self._seen:
            return
        chain = self.chain
        for key, position in islice(positions.items(), self._seen, None):
            if position not in chain:  # every group has a key there, with the same hash
                chain[position] = key[HASH]
        self._seen = len(positions)
