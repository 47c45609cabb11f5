"""What one worker's slot is made of: which layer group lies where, and what cannot be served."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from engine.config import ARENA_POLICIES, ConfigError, TierConfig
from engine.page_arena import page_bytes, pages_of
from engine.sizing import SizingError, SlotPlan, plan_slots

PoolName = Literal["token", "state"]


@dataclass(frozen=True)
class GroupLayout:
    """One layer group of the engine. `index` is its place among the offloaded groups."""

    index: int
    group_id: int
    pool: PoolName
    tokens_per_block: int
    bytes_per_block: int
    part: int
    offset_bytes: int
    #: Not so for sliding windows, of which a session needs the last blocks alone, and for drafts.
    needed_everywhere: bool = True


@dataclass(frozen=True)
class HostLayout:
    """All groups, and the slots of both pools (bytes per worker)."""

    groups: tuple[GroupLayout, ...]
    blocks_per_chunk: int
    token_slot_bytes: int
    state_slot_bytes: int
    plan: SlotPlan
    pages: int = 0  # of one arena for both pools, which then have no slots of their own
    page_bytes: int = 0

    def pool_groups(self, pool: PoolName) -> tuple[GroupLayout, ...]:
        """The groups that share this pool's slots."""
        return tuple(group for group in self.groups if group.pool == pool)

    def needed_parts(self, pool: PoolName) -> int:
        """The parts without which a slot of this pool is of no use, as bits."""
        groups = self.pool_groups(pool)
        needed = [group.part for group in groups if group.needed_everywhere]
        return sum(needed or [group.part for group in groups])

    def known_parts(self, pool: PoolName) -> int:
        """All parts that there are, as bits."""
        return sum(group.part for group in self.pool_groups(pool))

    def slots(self, pool: PoolName) -> int:
        """How many slots the pool has."""
        return self.plan.token_slots if pool == "token" else self.plan.state_slots

    def slot_bytes(self, pool: PoolName) -> int:
        """Bytes of one slot on one worker."""
        return self.token_slot_bytes if pool == "token" else self.state_slot_bytes

    @property
    def worker_bytes(self) -> int:
        """Host memory of one worker."""
        if self.pages:
            return self.pages * self.page_bytes
        return sum(self.slots(pool) * self.slot_bytes(pool) for pool in ("token", "state"))

    @property
    def chunk_tokens(self) -> int:
        """Tokens of one token slot."""
        return self.groups[0].tokens_per_block * self.blocks_per_chunk


def host_layout(
    config: TierConfig,
    groups: Sequence[tuple[int, int, Any, int]],
    blocks_per_chunk: int,
    world_size: int,
    retention_interval: int | None,
    drafts: Collection[int] = (),
) -> HostLayout:
    """Lay out `groups` (group id, tokens per block, KV cache spec, layers), or refuse with the reason.

    `drafts` are the groups of a speculative draft model.
    """
    if blocks_per_chunk > 1 and any(is_window(spec) for _, _, spec, _ in groups):
        raise ConfigError(
            "The host tier can serve sliding-window attention in single blocks alone: "
            "remove blocks_per_chunk and block_size from kv_connector_extra_config."
        )
    if len({tokens for _, tokens, _, _ in groups}) > 1:
        raise ConfigError("The host tier cannot serve layer groups of different block sizes yet.")
    sizes = {"token": 0, "state": 0}
    parts = {"token": 0, "state": 0}
    laid: list[GroupLayout] = []
    for index, (group_id, tokens, spec, layers) in enumerate(groups):
        pool, block_bytes = _pool_of(spec), _unpadded_bytes(spec) * layers
        everywhere = not is_window(spec) and group_id not in drafts
        part = 1 << parts[pool]
        laid.append(GroupLayout(index, group_id, pool, tokens, block_bytes, part, sizes[pool], everywhere))
        parts[pool] += 1
        # A state is one block however many tokens a chunk has.
        sizes[pool] += block_bytes * (blocks_per_chunk if pool == "token" else 1)
    if config.eviction_policy in ARENA_POLICIES:
        pages, one_page_bytes = _pages(config, sizes, world_size)
        no_split = SlotPlan(0, 0)
        return HostLayout(
            tuple(laid), blocks_per_chunk, sizes["token"], sizes["state"], no_split, pages, one_page_bytes
        )
    plan = _plan(config, sizes, world_size, groups[0][1] * blocks_per_chunk, retention_interval)
    return HostLayout(tuple(laid), blocks_per_chunk, sizes["token"], sizes["state"], plan)


def _pages(config: TierConfig, sizes: dict[str, int], world_size: int) -> tuple[int, int]:
    """How many pages a worker's arena has, and their size; at least a block and a state must fit."""
    size = page_bytes(sizes["token"], sizes["state"])
    pages = config.cpu_bytes_to_use // world_size // size
    least = pages_of(sizes["token"], size) + pages_of(sizes["state"], size)
    if pages < least:
        raise _too_small(config, f"it holds no session: write at least {least * size * world_size} bytes")
    return pages, size


def _plan(
    config: TierConfig, sizes: dict[str, int], world_size: int, chunk_tokens: int, retention_interval: int | None
) -> SlotPlan:
    try:
        return plan_slots(
            config.cpu_bytes_to_use,
            world_size,
            sizes["token"],
            sizes["state"],
            chunk_tokens,
            config.mamba_state_slots_reference_tokens,
            retention_interval,
        )
    except SizingError as error:
        raise _too_small(config, str(error)) from error


def _too_small(config: TierConfig, why: str) -> ConfigError:
    key = "cpu_bytes_to_use"
    return ConfigError(
        f"kv_connector_extra_config: {key} is {config.cpu_bytes_to_use}, too little for this model; {why}.", key
    )


def is_window(spec: Any) -> bool:
    """Sliding-window attention: vLLM offers every block, and asks for the last ones of a session."""
    from vllm.v1.kv_cache_interface import SlidingWindowSpec

    return type(_representative(spec)) is SlidingWindowSpec


def _pool_of(spec: Any) -> PoolName:
    from vllm.v1.kv_cache_interface import FullAttentionSpec, MambaSpec, MLAAttentionSpec, SlidingWindowSpec

    spec = _representative(spec)
    kind = type(spec)
    if kind is MambaSpec:
        _check_states_are_kept(spec)
        return "state"
    # Subclasses mean something else by a block: these are known to be found by their hash.
    if kind in (FullAttentionSpec, MLAAttentionSpec, SlidingWindowSpec):
        return "token"
    raise ConfigError(
        f"The host tier cannot serve layers of kind {kind.__name__} yet, only full, sliding-window and linear "
        "attention: "
        "start without --kv-transfer-config."
    )


def _check_states_are_kept(spec: Any) -> None:
    if spec.mamba_cache_mode != "align":
        raise ConfigError(
            f'The host tier cannot serve states in cache mode "{spec.mamba_cache_mode}": '
            "start with --enable-prefix-caching --mamba-cache-mode align."
        )


def _unpadded_bytes(spec: Any) -> int:
    """Bytes of one layer's block without the padding that only aligns pages on the device."""
    from vllm.v1.kv_cache_interface import MambaSpec

    spec = _representative(spec)
    size = spec.state_content_size_bytes if isinstance(spec, MambaSpec) else spec.unpadded_page_size_bytes
    return int(size)


def _representative(spec: Any) -> Any:
    """Workers keep one spec per layer where the scheduler keeps one for all of them."""
    per_layer = getattr(spec, "kv_cache_specs", None)
    return next(iter(per_layer.values())) if per_layer else spec
