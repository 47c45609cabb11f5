"""From a key to the pool and part that it belongs to. The last byte of a key is its group's number."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from vllm.v1.kv_offload.base import OffloadKey, make_offload_key

from engine.layout import HostLayout, PoolName
from engine.pool import Slot, SlotPool
from engine.residency_index import NoLedger, PoolLedger


@dataclass(frozen=True, slots=True)
class GroupPlace:
    """Where the keys of one layer group are."""

    pool_name: PoolName
    pool: SlotPool
    slots: dict[bytes, Slot]  # the pool's own
    part: int
    is_token: bool
    from_the_start: bool  # vLLM looks up its blocks one after the other
    suffix: bytes
    ledger: PoolLedger
    kept: bool  # the ledger writes down what it is told

    def key(self, slot: Slot) -> OffloadKey:
        """The group's key of what sits in a slot."""
        return OffloadKey(slot.block_hash + self.suffix)


def group_places(
    layout: HostLayout, pools: Mapping[PoolName, SlotPool], ledgers: Mapping[PoolName, PoolLedger]
) -> dict[int, GroupPlace]:
    """By group number."""
    places = {}
    for group in layout.groups:
        pool, is_token = pools[group.pool], group.pool == "token"
        suffix, ledger = make_offload_key(b"", group.group_id), ledgers[group.pool]
        kept = not isinstance(ledger, NoLedger)
        places[group.group_id] = GroupPlace(
            group.pool,
            pool,
            pool.slots,
            group.part,
            is_token,
            is_token and group.needed_everywhere,
            suffix,
            ledger,
            kept,
        )
    return places
