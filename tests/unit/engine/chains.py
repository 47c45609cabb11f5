"""Requests as vLLM's scheduler presents them to a manager, without vLLM's scheduler."""

from __future__ import annotations

from collections.abc import Sequence

from vllm.v1.kv_offload.base import LookupResult, OffloadKey, ReqContext, ScheduleEndContext, make_offload_key

from engine import metric_names as names
from engine.layout import GroupLayout, HostLayout
from engine.manager import TierManager
from engine.sizing import SlotPlan

CHUNK = 100
TOKEN_GROUP, STATE_GROUPS = 0, (1, 2)


def layout(token_slots: int = 8, state_slots: int = 4, blocks_per_chunk: int = 1) -> HostLayout:
    """One attention group and two of linear attention, blocks of 100 tokens."""
    groups = (
        GroupLayout(0, TOKEN_GROUP, "token", CHUNK, 64, 1, 0),
        GroupLayout(1, 1, "state", CHUNK, 48, 1, 0),
        GroupLayout(2, 2, "state", CHUNK, 48, 2, 48),
    )
    return HostLayout(groups, blocks_per_chunk, 64 * blocks_per_chunk, 96, SlotPlan(token_slots, state_slots))


class Clock:
    """Time that passes when told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Request:
    """A prompt made of named blocks; equal beginnings have equal keys, as with vLLM's hashes."""

    def __init__(self, manager: TierManager, name: str, blocks: str) -> None:
        self.manager = manager
        self.context = ReqContext(name)
        self.hashes = [blocks[:end].encode() for end in range(1, len(blocks) + 1)]
        for group in (TOKEN_GROUP, *STATE_GROUPS):
            for number, block_hash in enumerate(self.hashes, 1):
                self.context.set_offload_key_position(make_offload_key(block_hash, group), number * CHUNK)
        manager.on_new_request(self.context)

    def tokens(self, first: int = 0, last: int | None = None) -> list[OffloadKey]:
        """Keys of the attention group, for a range of blocks."""
        return [make_offload_key(block_hash, TOKEN_GROUP) for block_hash in self.hashes[first:last]]

    def states(self, number: int) -> list[OffloadKey]:
        """Keys of the linear groups at the end of block `number` (from 1)."""
        return [make_offload_key(self.hashes[number - 1], group) for group in STATE_GROUPS]

    def has(self, keys: Sequence[OffloadKey]) -> bool:
        """All of them can be read."""
        return all(self.manager.lookup(key, self.context) is LookupResult.HIT for key in keys)

    def store(self, keys: Sequence[OffloadKey]) -> list[OffloadKey]:
        """Prepare and complete; returns what was really stored."""
        output = self.manager.prepare_store(keys, self.context)
        assert output is not None
        self.manager.complete_store(set(output.keys_to_store), self.context)
        return output.keys_to_store

    def lookup_blocks(self, device_blocks: int = 0) -> int:
        """As the scheduler does: blocks until one is missing, then the deepest state within them."""
        found = device_blocks
        last = len(self.hashes) - 1  # the last token is always computed
        for key in self.tokens(device_blocks, last):
            if self.manager.lookup(key, self.context) is not LookupResult.HIT:
                break
            found += 1
        while found > device_blocks and not self.has(self.states(found)):
            found -= 1
        return found

    def load(self, device_blocks: int, found: int) -> None:
        """Load blocks up to `found` and the state there."""
        keys = [*self.tokens(device_blocks, found), *self.states(found)]
        self.manager.prepare_load(keys, self.context)
        self.manager.complete_load(set(keys), self.context)

    def begin(self) -> None:
        """It is scheduled for the first time."""
        self.manager.on_schedule_end(ScheduleEndContext([self.context.req_id], ()))

    def finish(self) -> None:
        """It has ended."""
        self.manager.on_request_finished(self.context)


def run(manager: TierManager, name: str, blocks: str, device_blocks: int = 0, states: Sequence[int] = ()) -> int:
    """One whole request; returns how many blocks came from the host. Keeps a state before its last block."""
    request = Request(manager, name, blocks)
    found = request.lookup_blocks(device_blocks)
    if found > device_blocks:
        request.load(device_blocks, found)
    request.begin()
    for number in states or (len(blocks) - 1,):
        for key in request.states(number):
            request.store([key])
    request.store(request.tokens())
    request.finish()
    return found - device_blocks


def counts(manager: TierManager) -> dict[tuple[str, ...], float]:
    """Counters and gauges since the last call, by name and labels, without zeros."""
    stats = manager.get_stats()
    values = stats.data["data"] if stats else {}
    found: dict[tuple[str, ...], float] = {}
    for name, by_labels in values.items():
        for labels, value in by_labels.items():
            if value:
                found[name, *labels] = value
    return found


def outcomes(manager: TierManager) -> dict[str, float]:
    """Lookup tokens by outcome since the last call, without zeros."""
    return {key[1]: value for key, value in counts(manager).items() if key[0] == names.LOOKUP_TOKENS}
