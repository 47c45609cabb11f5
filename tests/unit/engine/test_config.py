"""`kv_connector_extra_config`: what is accepted, and what a mistake is told."""

import subprocess
import sys
from dataclasses import fields
from typing import Any

import pytest

from engine.config import ConfigError, TierConfig, parse_bytes, parse_config, reference

FIELD_REPORT: dict[str, Any] = {
    "spec_name": "TieringOffloadingSpec",
    "cpu_bytes_to_use": 68_719_476_736,
    "eviction_policy": "lru",
    "demote_superseded_states": True,
    "mamba_state_slots_reference_tokens": 65_536,
}


def test_the_field_reports_configuration_is_read_as_written() -> None:
    """Nothing has to be added or changed."""
    config = parse_config(FIELD_REPORT)
    assert config.cpu_bytes_to_use == 64 << 30
    assert config.mamba_state_slots_reference_tokens == 65_536
    assert config.offload_prompt_only


@pytest.mark.parametrize(
    ("text", "size"),
    [("64GiB", 64 << 30), ("64 GB", 64 * 10**9), ("1.5 tib", 3 << 39), ("1024", 1024), ("7 parsecs", None), ("", None)],
)
def test_sizes_have_units(text: str, size: int | None) -> None:
    """Powers of 1024 with an i, powers of 1000 without."""
    assert parse_bytes(text) == size


@pytest.mark.parametrize(
    ("change", "key", "advice"),
    [
        ({"cpu_bytes_to_us": 1}, "cpu_bytes_to_us", "did you mean cpu_bytes_to_use?"),
        ({"zzz": 1}, "zzz", "known keys are"),
        ({"cpu_bytes_to_use": 0}, "cpu_bytes_to_use", "more than 0"),
        ({"cpu_bytes_to_use": -5}, "cpu_bytes_to_use", "more than 0"),
        ({"cpu_bytes_to_use": "a lot"}, "cpu_bytes_to_use", '"64GiB"'),
        ({"cpu_bytes_to_use": True}, "cpu_bytes_to_use", "bytes"),
        ({"cpu_bytes_to_use": None}, "cpu_bytes_to_use", "bytes"),
        ({"eviction_policy": "value", "store_threshold": 2}, "store_threshold", "write 1 or remove it"),
        ({"eviction_policy": "fifo"}, "eviction_policy", 'write "lru"'),
        ({"demote_superseded_states": "yes"}, "demote_superseded_states", "true or false"),
        ({"offload_prompt_only": 1}, "offload_prompt_only", "true or false"),
        ({"mamba_state_slots_reference_tokens": 0}, "mamba_state_slots_reference_tokens", "1 or more"),
        ({"mamba_state_slots_reference_tokens": "64k"}, "mamba_state_slots_reference_tokens", "whole number"),
        ({"store_threshold": 0}, "store_threshold", "1 or more, such as 2"),
        ({"store_threshold": None}, "store_threshold", "1 or more, such as 2"),
        ({"transfer_threads": 1000}, "transfer_threads", "from 1 to 64"),
        ({"blocks_per_chunk": 2, "block_size": 768}, "block_size", "only one"),
        ({"secondary_tiers": []}, "secondary_tiers", "remove it"),
        ({"spec_name": "CPUOffloadingSpec"}, "spec_name", "TieringOffloadingSpec"),
        ({"spec_module_path": "os"}, "spec_module_path", "engine.spec"),
    ],
)
def test_a_mistake_is_one_sentence_with_the_key_and_what_to_write(
    change: dict[str, Any], key: str, advice: str
) -> None:
    """The engine ends with this sentence in its log."""
    with pytest.raises(ConfigError) as caught:
        parse_config(FIELD_REPORT | change)
    message = str(caught.value)
    assert caught.value.key == key
    assert key in message
    assert advice in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("given", "policy"),
    [
        ({}, "value"),
        ({"residency": "auto"}, "value"),
        ({"mamba_state_slots_reference_tokens": 65_536}, "lru"),
        ({"store_threshold": 2}, "lru"),
        ({"residency": "keep"}, "value"),
        ({"mamba_state_slots_reference_tokens": 65_536, "eviction_policy": "value"}, "value"),
    ],
)
def test_without_a_policy_there_is_no_split_unless_a_key_needs_one(given: dict[str, Any], policy: str) -> None:
    """Who writes nothing gets what needs no tuning; who writes a key of the split gets the split."""
    config = parse_config({"cpu_bytes_to_use": "1GiB"} | given)
    assert config.eviction_policy == policy
    assert config.residency == given.get("residency", "auto")


def test_the_size_is_required() -> None:
    """There is no default for how much memory to take."""
    with pytest.raises(ConfigError, match="cpu_bytes_to_use is missing"):
        parse_config({"spec_name": "TieringOffloadingSpec"})


def test_the_reference_names_every_key() -> None:
    """It is generated, so it cannot forget one."""
    for field in fields(TierConfig):
        assert f"`{field.name}`" in reference()


def test_the_shared_modules_need_nothing_but_the_standard_library() -> None:
    """The deck imports them where torch, numpy and vllm are not installed."""
    code = (
        "import sys; before = set(sys.modules)\n"
        "import engine.config, engine.sizing, engine.metric_names\n"
        "new = {name.split('.')[0] for name in set(sys.modules) - before}\n"
        "print(*sorted(new - set(sys.stdlib_module_names) - {'engine'}))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == ""
