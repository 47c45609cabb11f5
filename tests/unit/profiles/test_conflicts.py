"""Settings that do not go together: among themselves, with the model, and with what the fleet sets."""

from __future__ import annotations

from typing import Any

import pytest

from engine.config import ARENA_POLICIES, EVICTION_POLICIES
from tests.unit.profiles.drafts import (
    DENSE,
    GIB,
    HYBRID,
    LATENT,
    OURS,
    at,
    checked,
    config,
    document,
    patched,
    severities,
)


def test_two_sizes_of_kv_memory() -> None:
    """The engine passes over the share when there are bytes; a click keeps either."""
    flags = {"kv-cache-memory-bytes": 8 * GIB, "gpu-memory-utilization": 0.9}
    finding = at(checked(flags=flags), "flags.gpu-memory-utilization", "warning")
    assert patched(document(config(), flags), finding.fixes[0])["flags"] == {"kv-cache-memory-bytes": 8 * GIB}
    assert patched(document(config(), flags), finding.fixes[1])["flags"] == {"gpu-memory-utilization": 0.9}


def test_both_chunk_keys() -> None:
    """With the own spec and with the stock one."""
    for extra in (OURS, {"cpu_bytes_to_use": 64 * GIB}):
        transfer = config({**extra, "block_size": 768, "blocks_per_chunk": 2})
        finding = at(checked(transfer), "block_size", "error")
        kept = patched(document(transfer), finding.fixes[0])["kv_transfer_config"]["kv_connector_extra_config"]
        assert "block_size" not in kept
        assert kept["blocks_per_chunk"] == 2


@pytest.mark.parametrize("flags", [{"enable-prefix-caching": False}, {"no-enable-prefix-caching": True}])
def test_prefix_caching_off_under_a_connector(flags: dict[str, Any]) -> None:
    """Nothing stored could be found again; without a connector it is the operator's choice."""
    finding = at(checked(flags=flags), "flags.enable-prefix-caching", "error")
    mended = patched(document(config(), flags), finding.fixes[0])["flags"]
    assert mended == {"enable-prefix-caching": True}
    assert checked("", flags).is_valid


def test_hybrid_models_want_align() -> None:
    """Missing or other is a warning with the fix; for a dense model there is nothing to say."""
    for flags in ({}, {"mamba-cache-mode": "none"}):
        finding = at(checked(flags=flags, model=HYBRID), "flags.mamba-cache-mode", "warning")
        assert finding.fixes[0].operations[0].value == "align"
    assert "flags.mamba-cache-mode" not in severities(checked(model=DENSE))


def test_block_size_of_a_hybrid() -> None:
    """Missing on the CPU, no multiple, or too small for a state: each with the right number as fix."""
    hybrid = {"enable-prefix-caching": True, "mamba-cache-mode": "align"}
    missing = at(checked(flags=hybrid, model=HYBRID, platform="cpu"), "flags.block-size", "warning")
    assert missing.fixes[0].operations[0].value == 384
    assert "flags.block-size" not in severities(checked(flags=hybrid, model=HYBRID))
    small = at(
        checked(flags={**hybrid, "block-size": 128}, model=HYBRID, platform="cpu"), "flags.block-size", "warning"
    )
    assert small.fixes[0].operations[0].value == 384
    for platform, unit in (("cpu", 128), ("cuda", 16)):
        odd = at(
            checked(flags={**hybrid, "block-size": 390}, model=HYBRID, platform=platform), "flags.block-size", "error"
        )
        assert odd.fixes[0].operations[0].value % unit == 0
        assert odd.fixes[0].operations[0].value >= 390
    for good in (384, 768):
        found = checked(flags={**hybrid, "block-size": good}, model=HYBRID, platform="cpu")
        assert "flags.block-size" not in severities(found)


@pytest.mark.parametrize("key", ["kv_buffer_device", "kv_port", "kv_connector_extra_config", "enable_permute_local_kv"])
def test_null_where_the_engine_refuses_it(key: str) -> None:
    """Told where it stands; without the key the engine takes its own value. For other keys null is that."""
    finding = at(checked({**config(), key: None}), f"kv-transfer-config.{key}", "error")
    assert key in finding.message
    assert key not in patched(document({**config(), key: None}), finding.fixes[0])["kv_transfer_config"]
    assert checked({**config(), "engine_id": None, "kv_connector_module_path": None}).is_valid


def test_chunk_is_a_multiple_of_the_device_block() -> None:
    """`block_size` of the connector against the block that the engine will have."""
    found = checked(config({**OURS, "block_size": 500}), model=HYBRID)
    assert at(found, "block_size", "error").fixes[0].operations[0].value == 768
    assert checked(config({**OURS, "block_size": 768}), model=HYBRID).is_valid
    assert not checked(config({**OURS, "block_size": 24}), {"block-size": 16}).is_valid


def test_states_are_kept_at_ends_of_blocks() -> None:
    """An interval between two of them ends the engine's start; the next end is a click away."""
    name = "prefix-cache-retention-interval"
    path, hybrid = f"flags.{name}", {"enable-prefix-caching": True, "mamba-cache-mode": "align"}
    finding = at(checked(flags={**hybrid, name: 1000}, model=HYBRID), path, "error")
    assert "1000" in finding.message and "384" in finding.message
    mended = patched(document(config(), {**hybrid, name: 1000}), finding.fixes[0])["flags"]
    assert mended[name] == 1152 and severities(checked(flags=mended, model=HYBRID)) == {}
    assert at(checked({}, {name: 1000}, model=HYBRID), path, "error"), "also without a host tier"
    for good, block in ((0, {}), (768, {}), (1024, {"block-size": 512})):
        assert path not in severities(checked(flags={**hybrid, name: good, **block}, model=HYBRID))
    assert path not in severities(checked(flags={name: 1000})), "no model at hand"


def test_host_tier_smaller_than_vram() -> None:
    """Both known: all ranks of VRAM against the whole tier."""
    flags = {"kv-cache-memory-bytes": 40 * GIB, "tensor-parallel-size": 2}
    assert "80 GiB" in at(checked(flags=flags), "cpu_bytes_to_use", "warning").message
    assert "cpu_bytes_to_use" not in severities(checked(flags={"kv-cache-memory-bytes": 40 * GIB}))


@pytest.mark.parametrize(
    ("dtype", "platform", "model", "severity"),
    [
        ("nvfp4", "cpu", DENSE, "error"),
        ("int8_per_token_head", "cpu", None, "error"),
        ("fp8", "cpu", DENSE, "note"),
        ("fp8", "cuda", DENSE, "note"),
        ("fp8_inc", "cuda", DENSE, "error"),
        ("fp8_ds_mla", "cuda", DENSE, "error"),
        ("fp8_ds_mla", "cuda", LATENT, "note"),
        ("nvfp4", "cuda", LATENT, "error"),
        ("auto", "cpu", DENSE, None),
        ("bfloat16", "cuda", DENSE, None),
    ],
)
def test_quantised_cache_where_it_does_not_exist(dtype: str, platform: str, model: Any, severity: str | None) -> None:
    """By platform and by the model's attention; where it exists, a note says that answers change."""
    found = checked(flags={"kv-cache-dtype": dtype}, platform=platform, model=model)
    assert severities(found).get("flags.kv-cache-dtype") == severity


def test_size_by_flag_and_config_exclude_each_other() -> None:
    """The flag replaces the connector in silence."""
    assert at(checked(flags={"kv-offloading-size": 4}), "flags.kv-offloading-size", "error")


def test_lengths_beyond_the_model_and_references_beyond_the_length() -> None:
    """Both are told with the number to write."""
    long = at(checked(flags={"max-model-len": 524_288}, model=HYBRID), "flags.max-model-len", "warning")
    assert long.fixes[0].operations[0].value == 262_144
    transfer = config({**OURS, "mamba_state_slots_reference_tokens": 262_144})
    found = checked(transfer, {"max-model-len": 131_072})
    assert at(found, "mamba_state_slots_reference_tokens", "warning").fixes[0].operations[0].value == 131_072


@pytest.mark.parametrize("policy", EVICTION_POLICIES)
def test_reference_length_where_nothing_is_split(policy: str) -> None:
    """It decides the split of `lru` and `arc`; elsewhere a note says that it does nothing."""
    found = checked(config({**OURS, "eviction_policy": policy, "mamba_state_slots_reference_tokens": 65536}))
    expected = "note" if policy in ARENA_POLICIES else None
    assert severities(found).get("mamba_state_slots_reference_tokens") == expected


# --- with what the fleet sets -----------------------------------------------------------------------------------------


def test_the_fleet_s_flags_count_and_a_profile_wins() -> None:
    """What the fleet sets is not missing; where both say something, the profile's word is told."""
    base = {"enable-prefix-caching": True, "mamba-cache-mode": "align", "prefix-cache-retention-interval": 0}
    own = {"prefix-cache-retention-interval": 4096}
    assert severities(checked(model=HYBRID, base_flags=base)) == {}
    finding = at(checked(flags=own, model=HYBRID, base_flags=base), "flags.prefix-cache-retention-interval", "note")
    assert "0" in finding.message and "4096" in finding.message
    assert patched(document(config(), own), finding.fixes[0])["flags"] == {}
    left_out = at(checked(flags={"mamba-cache-mode": None}, base_flags=base), "flags.mamba-cache-mode", "note")
    assert "leaves it out" in left_out.message
    ranks = checked(base_flags={"tensor-parallel-size": 4}).host_memory[0].ranks
    assert ranks.every == 4


def test_the_fleet_s_devices_bound_the_ranks() -> None:
    """More ranks than devices cannot start; a profile cannot choose other devices."""
    finding = at(checked(flags={"tensor-parallel-size": 4}, devices=("0", "1")), "flags.tensor-parallel-size", "error")
    assert "4" in finding.message and "0, 1" in finding.message
    assert checked(flags={"tensor-parallel-size": 2}, devices=("0", "1")).is_valid
    own = checked(environment={"CUDA_VISIBLE_DEVICES": "3"}, devices=("0", "1"))
    assert "passed over" in at(own, "environment.CUDA_VISIBLE_DEVICES", "warning").message
    other = checked(environment={"A": "1", "B": "2"}, base_environment={"A": "0", "B": "2"})
    assert {path for path in severities(other) if path.startswith("environment")} == {"environment.A"}


def test_a_list_of_plugins_without_ours_is_refused_with_the_fix() -> None:
    """vLLM would take its own class behind the same name, and nothing would say so."""
    found = checked(environment={"VLLM_PLUGINS": "lora_filesystem_resolver"})
    assert "tierdeck" in at(found, "environment.VLLM_PLUGINS", "error").message
    assert checked(environment={"VLLM_PLUGINS": "lora_filesystem_resolver,tierdeck"}).is_valid
    assert not checked(base_environment={"VLLM_PLUGINS": "other"}).is_valid, "the fleet's variables count"
    assert checked({}, environment={"VLLM_PLUGINS": "other"}).is_valid, "no connector of ours is asked for"
