"""The profile of the demo engine: a big box in small, so that everything can be seen in minutes.

Two sessions of 30,000 tokens already push each other out of its "VRAM", and the host tier has room
for about thirty of them.
"""

from __future__ import annotations

from typing import Any, Final

GIB: Final = 1 << 30

DEMO_KV_TRANSFER_CONFIG: Final[dict[str, Any]] = {
    "kv_connector": "OffloadingConnector",
    # The one engine both stores and loads.
    "kv_role": "kv_both",
    "kv_connector_extra_config": {
        "spec_name": "TieringOffloadingSpec",
        # About a million tokens and their states: much more than the "VRAM", little for a laptop.
        "cpu_bytes_to_use": GIB,
        "eviction_policy": "lru",
        # A session's older states go first: only the newest is of use when the session grows.
        "demote_superseded_states": True,
        # Between the demo's long session (up to 30,000 tokens) and its many short ones. The longest
        # length of all would leave a short session's state no slot; a tiny one would waste memory on
        # states that are never needed.
        "mamba_state_slots_reference_tokens": 16_384,
    },
}

DEMO_FLAGS: Final[dict[str, Any]] = {
    # A session of 30,000 tokens and its answer.
    "max-model-len": 32_768,
    # The "VRAM": 152 blocks, about 54,000 tokens beside the states.
    "kv-cache-memory-bytes": 60_000_000,
    # On the CPU the scheduler does not learn that the block grew to fit a state (137,216 bytes a layer
    # at 512 bytes a token, rounded up to a multiple of 128). Left at the default of 128, states are cut
    # where nothing looks for them and half of the returning sessions are computed again.
    "block-size": 384,
    "dtype": "bfloat16",
    # Compiling would take longer than the whole demo.
    "enforce-eager": True,
    # Each answer says how many of its input tokens came from a cache.
    "enable-prompt-tokens-details": True,
    # The three flags that a hybrid model needs for its states to be kept and found again.
    "enable-prefix-caching": True,
    "mamba-cache-mode": "align",
    "prefix-cache-retention-interval": 0,
    # Each running request holds six blocks for its states; more would leave a long session no room.
    "max-num-seqs": 8,
    # Ten blocks a step: long prompts are prefilled fast, and short requests still get a turn each second.
    "max-num-batched-tokens": 4096,
}
