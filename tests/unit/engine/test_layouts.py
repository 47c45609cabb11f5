"""Every layout of layers that is served, and what a session needs of each."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    MLAAttentionSpec,
    SlidingWindowSpec,
)
from vllm.v1.kv_offload.base import LookupResult, OffloadKey, ReqContext, make_offload_key

from engine import metric_names as names
from engine.config import ConfigError, TierConfig
from engine.layout import HostLayout, host_layout
from engine.manager import TierManager
from engine.value_manager import ValueManager
from tests.unit.engine.chains import CHUNK, Clock, counts

SHAPE = {"num_kv_heads": 2, "head_size": 64, "dtype": torch.bfloat16}
FULL = FullAttentionSpec(block_size=CHUNK, **SHAPE)
WINDOW = SlidingWindowSpec(block_size=CHUNK, sliding_window=2 * CHUNK, **SHAPE)
MLA = MLAAttentionSpec(block_size=CHUNK, num_kv_heads=1, head_size=576, dtype=torch.bfloat16)
LOCAL = ChunkedLocalAttentionSpec(block_size=CHUNK, attention_chunk_size=4 * CHUNK, **SHAPE)
BLOCK_BYTES = 2 * 2 * 64 * 2 * CHUNK


def lay(
    *specs: Any, slots: int = 8, blocks_per_chunk: int = 1, drafts: tuple[int, ...] = (), policy: str = "lru"
) -> HostLayout:
    """One layer per group, and room for so many slots."""
    size = sum(spec.page_size_bytes for spec in specs) * blocks_per_chunk
    groups = [(number, CHUNK, spec, 1) for number, spec in enumerate(specs)]
    return host_layout(TierConfig(slots * size, eviction_policy=policy), groups, blocks_per_chunk, 1, None, drafts)


class Session:
    """A prompt of named blocks in some groups."""

    def __init__(self, manager: TierManager | ValueManager, name: str, blocks: str, groups: int) -> None:
        self.manager = manager
        self.context = ReqContext(name)
        self.hashes = [blocks[:end].encode() for end in range(1, len(blocks) + 1)]
        for group in range(groups):
            for number, key in enumerate(self.keys(group), 1):
                self.context.set_offload_key_position(key, number * CHUNK)
        manager.on_new_request(self.context)

    def keys(self, group: int, first: int = 0, last: int | None = None) -> list[OffloadKey]:
        return [make_offload_key(block_hash, group) for block_hash in self.hashes[first:last]]

    def store(self, keys: list[OffloadKey]) -> None:
        output = self.manager.prepare_store(keys, self.context)
        assert output is not None
        self.manager.complete_store(set(output.keys_to_store), self.context)

    def found(self, group: int) -> list[bool]:
        return [self.manager.lookup(key, self.context) is LookupResult.HIT for key in self.keys(group)]

    def finish(self) -> None:
        self.manager.on_request_finished(self.context)


def test_several_groups_of_full_attention_share_a_slot() -> None:
    """Each is answered for itself; a session counts when all of them are there."""
    layout = lay(FULL, FULL)
    assert layout.token_slot_bytes == 2 * BLOCK_BYTES
    manager = TierManager(layout, clock=Clock())
    session = Session(manager, "r", "abc", 2)
    session.store(session.keys(0))
    assert session.found(0) == [True] * 3
    assert session.found(1) == [False] * 3
    found = counts(manager)
    assert (names.RESTORABLE_SESSIONS,) not in found
    assert found[names.SLOTS_USED, "token", names.ALL_GROUPS] == 3
    session.store(session.keys(1))
    session.finish()
    found = counts(manager)
    assert found[names.RESTORABLE_SESSIONS,] == 1
    assert (names.SLOTS_USED, "token", names.ALL_GROUPS) not in found, "no more slots than before"


def test_of_a_sliding_window_only_the_last_blocks_are_needed() -> None:
    """vLLM may store the window's blocks at the end alone: the session counts as whole all the same."""
    manager = TierManager(lay(FULL, WINDOW), clock=Clock())
    session = Session(manager, "r", "abcd", 2)
    session.store([*session.keys(0), *session.keys(1, 2)])
    session.finish()
    assert counts(manager)[names.RESTORABLE_SESSIONS,] == 1
    back = Session(manager, "back", "abcd", 2)
    assert back.found(0) == [True] * 4
    assert back.found(1) == [False, False, True, True]
    manager.prepare_load([*back.keys(0), *back.keys(1, 2)], back.context)
    found = counts(manager)
    assert found[names.LOOKUP_TOKENS, "hit"] == 4 * CHUNK
    assert found[names.SLOTS_PINNED, "token", names.ALL_GROUPS] == 4


@pytest.mark.parametrize("policy", ["lru", "value"])
def test_after_a_reset_a_running_requests_windows_are_not_stored(policy: str) -> None:
    """vLLM offers all its blocks again, and knows those before the window by numbers that others may have by now."""
    manager = manager_of(policy)
    running = Session(manager, "running", "abcd", 2)
    running.store([*running.keys(0), *running.keys(1)])
    manager.reset_cache()
    running.store([*running.keys(0), *running.keys(1)])
    assert running.found(0) == [True] * 4
    assert running.found(1) == [False] * 4
    running.finish()
    later = Session(manager, "later", "abcd", 2)
    later.store([*later.keys(0), *later.keys(1)])
    assert later.found(1) == [True] * 4


def manager_of(policy: str) -> TierManager | ValueManager:
    """For a group of full attention and one of windows."""
    layout = lay(FULL, WINDOW, policy=policy)
    return TierManager(layout, clock=Clock()) if policy == "lru" else ValueManager(layout, policy, clock=Clock())


def test_windows_alone_are_served_as_well() -> None:
    """Then every block counts."""
    layout = lay(WINDOW)
    assert layout.needed_parts("token") == 1
    manager = TierManager(layout, clock=Clock())
    session = Session(manager, "r", "abc", 1)
    session.store(session.keys(0))
    session.finish()
    assert counts(manager)[names.RESTORABLE_SESSIONS,] == 1


def test_latent_attention_is_a_token_group_without_padding() -> None:
    """One latent of 576 values per token and layer."""
    layout = lay(MLA)
    assert [group.pool for group in layout.groups] == ["token"]
    assert layout.token_slot_bytes == 576 * 2 * CHUNK


def test_a_drafts_missing_last_block_does_not_break_the_session() -> None:
    """vLLM leaves it out while it may change."""
    manager = TierManager(lay(FULL, FULL, drafts=(1,)), clock=Clock())
    session = Session(manager, "r", "abc", 2)
    session.store([*session.keys(0), *session.keys(1, 0, 2)])
    session.finish()
    assert counts(manager)[names.RESTORABLE_SESSIONS,] == 1


@pytest.mark.parametrize(
    ("specs", "blocks_per_chunk", "reason"),
    [
        ((FULL, WINDOW), 2, "remove blocks_per_chunk"),
        ((LOCAL,), 1, "ChunkedLocalAttentionSpec"),
    ],
)
def test_what_is_not_served_is_refused(specs: tuple[Any, ...], blocks_per_chunk: int, reason: str) -> None:
    """In one sentence, at the start."""
    with pytest.raises(ConfigError, match=reason):
        lay(*specs, blocks_per_chunk=blocks_per_chunk)


def test_groups_of_different_blocks_are_refused() -> None:
    """A chunk would not mean the same tokens in all of them."""
    with pytest.raises(ConfigError, match="different block sizes"):
        host_layout(TierConfig(1 << 20), [(0, 16, FULL, 1), (1, 32, FULL, 1)], 1, 1, None)
