"""A profile version -> what the planner is asked with. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from app.planner.wish import EVERY_BLOCK
from engine.config import ARENA_POLICIES, ConfigError, parse_config
from engine.sizing import DEFAULT_REFERENCE_TOKENS

#: Engine flags that the planner understands, by the planner's own names.
FLAGS: Final = {
    "world_size": "tensor-parallel-size",
    "max_model_len": "max-model-len",
    "kv_dtype": "kv-cache-dtype",
    "state_dtype": "mamba-ssm-cache-dtype",
    "block_tokens": "block-size",
    "max_num_batched_tokens": "max-num-batched-tokens",
    "kv_cache_memory_bytes": "kv-cache-memory-bytes",
}
#: Values by which a flag leaves the choice to the engine.
LEFT_OUT: Final = (None, "auto", -1)
RETENTION_FLAG: Final = "prefix-cache-retention-interval"
UTILIZATION_FLAG: Final = "gpu-memory-utilization"


def asked_by_profile(kv_transfer_config: Mapping[str, Any], flags: Mapping[str, Any]) -> dict[str, Any]:
    """The planner's fields as a profile sets them; what it leaves out is left out."""
    asked = {name: flags[flag] for name, flag in FLAGS.items() if flags.get(flag) not in LEFT_OUT}
    if "kv_cache_memory_bytes" not in asked and flags.get(UTILIZATION_FLAG) is not None:
        asked["utilization"] = flags[UTILIZATION_FLAG]
    extra = kv_transfer_config.get("kv_connector_extra_config")
    return asked | (_host(extra, flags) if isinstance(extra, Mapping) else {})


def _policy(extra: Mapping[str, Any]) -> str:
    """As the connector itself decides it; a configuration that it refuses is planned as a split."""
    try:
        return parse_config(extra).eviction_policy
    except ConfigError:
        return "lru"


def _host(extra: Mapping[str, Any], flags: Mapping[str, Any]) -> dict[str, Any]:
    if extra.get("cpu_bytes_to_use") is None:
        return {}
    interval = flags.get(RETENTION_FLAG)
    asked = {
        "host_bytes": extra["cpu_bytes_to_use"],
        "reference_tokens": extra.get("mamba_state_slots_reference_tokens") or DEFAULT_REFERENCE_TOKENS,
        "retention_interval": EVERY_BLOCK if interval is None else interval,
    }
    asked["eviction_policy"] = _policy(extra)
    if asked["eviction_policy"] in ARENA_POLICIES:
        del asked["reference_tokens"]
    chunk = {"blocks_per_chunk": extra.get("blocks_per_chunk"), "chunk_tokens": extra.get("block_size")}
    return asked | {name: value for name, value in chunk.items() if value is not None}
