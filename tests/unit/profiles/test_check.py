"""What is told while a profile is typed: each finding with its severity, its path and the change that mends it."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.demo.profile import DEMO_FLAGS, DEMO_KV_TRANSFER_CONFIG
from app.profiles.check import Draft, check
from app.profiles.context import Box, Claim, Context
from app.profiles.finding import EXTRA
from app.profiles.memory import host_memory
from engine.config import ARENA_POLICIES, EVICTION_POLICIES, UNSERVED
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

# --- keys that nobody reads ---------------------------------------------------------------------------------------


def test_mistyped_keys_name_path_and_nearest_key_and_a_click_mends_them() -> None:
    """Two typos and a key in the wrong place are three errors; their fixes lead to a config without any."""
    extra = {"cpu_bytes_to_use": 10 * GIB, "evict_policy": "lru", "demote_superseded_state": True}
    transfer = config(extra, spec_name="TieringOffloadingSpec")
    found = checked(transfer)
    near = {"evict_policy": "eviction_policy", "demote_superseded_state": "demote_superseded_states"}
    for key, wanted in near.items():
        finding = at(found, key, "error")
        assert wanted in finding.message
    assert "kv_connector_extra_config.spec_name" in at(found, "kv-transfer-config.spec_name", "error").message
    mended = document(transfer)
    for finding in found.findings:
        if finding.severity == "error":
            mended = patched(mended, finding.fixes[0])
    again = checked(mended["kv_transfer_config"])
    assert again.is_valid, again.findings
    assert again.kv_transfer_config["kv_connector_extra_config"] == {
        "cpu_bytes_to_use": 10 * GIB,
        "eviction_policy": "lru",
        "demote_superseded_states": True,
        "spec_name": "TieringOffloadingSpec",
    }


def test_second_tier_key_is_known_to_another_spec() -> None:
    """The nearest key is told even where it belongs to a spec that the profile does not use."""
    found = checked(config({"cpu_bytes_to_use": 10 * GIB, "secondary_tier": [{"type": "fs"}]}))
    assert "secondary_tiers" in at(found, "secondary_tier", "error").message


@pytest.mark.parametrize("key", sorted(UNSERVED))
def test_what_the_own_spec_does_not_serve_is_an_error(key: str) -> None:
    """`store_threshold` and its like would be refused at start; the reason is told, and a click removes the key."""
    transfer = config({**OURS, key: 2})
    finding = at(checked(transfer), key, "error")
    assert UNSERVED[key] in finding.message
    assert key not in patched(document(transfer), finding.fixes[0])["kv_transfer_config"]["kv_connector_extra_config"]


def test_store_threshold_is_an_error_until_it_is_allowed() -> None:
    """vLLM's own spec of this name refuses it at start; the deck's takes it, so the profile may allow it."""
    transfer = config({**OURS, "store_threshold": 2})
    finding = at(checked(transfer), "store_threshold", "error")
    assert checked(patched(document(transfer), finding.fixes[0])["kv_transfer_config"]).findings == ()
    allow = tuple(patched(document(transfer), finding.fixes[1])["allow"])
    assert at(checked(transfer, allow=allow), "store_threshold").severity == "note"
    assert checked(config({"cpu_bytes_to_use": GIB, "store_threshold": 2})).is_valid
    assert checked(config({**OURS, "store_threshold": 1})).is_valid


def test_foreign_connector_needs_its_keys_allowed() -> None:
    """Keys of a connector that the deck does not know are errors until the profile allows them."""
    transfer = config({"my_key": 1}, "MyConnector", kv_connector_module_path="my.module")
    found = checked(transfer)
    finding = at(found, "my_key", "error")
    allow = patched(document(transfer), finding.fixes[0])["allow"]
    assert allow == [f"{EXTRA}.my_key"]
    assert checked(transfer, allow=tuple(allow)).is_valid
    assert at(checked(transfer, allow=tuple(allow)), "my_key").severity == "note"
    every = patched(document(transfer), finding.fixes[1])["allow"]
    assert checked(config({"a": 1, "b": 2}, "MyConnector"), allow=tuple(every)).is_valid


def test_keys_follow_connector_spec_and_engine_version() -> None:
    """The same key is right for one engine, spec or connector and an error for another."""
    blocks = config({"num_cpu_blocks": 1000})
    assert checked(blocks, engine_version=(0, 12)).is_valid
    assert (
        "counts blocks of each worker" in at(checked(blocks, engine_version=(0, 32)), "num_cpu_blocks", "error").message
    )
    size = config({"cpu_bytes_to_use": 2 * GIB})
    assert "0.14" in at(checked(size, engine_version=(0, 12)), "cpu_bytes_to_use", "error").message
    reference = config({"cpu_bytes_to_use": 2 * GIB, "mamba_state_slots_reference_tokens": 65536})
    finding = at(checked(reference), "mamba_state_slots_reference_tokens", "error")
    assert "TieringOffloadingSpec" in finding.message
    mended = patched(document(reference), finding.fixes[0])["kv_transfer_config"]
    assert checked(mended).is_valid
    assert not checked(config({"spec_name": "x"}, "NixlConnector")).is_valid


def test_old_block_count_is_flagged_beside_the_new_size() -> None:
    """A click removes it where the size is there already."""
    transfer = config({"num_cpu_blocks": 1000, "cpu_bytes_to_use": 10 * GIB})
    finding = at(checked(transfer), "num_cpu_blocks", "error")
    mended = patched(document(transfer), finding.fixes[0])["kv_transfer_config"]
    assert checked(mended).is_valid


# --- values -------------------------------------------------------------------------------------------------------


def test_policies_are_those_the_connector_serves() -> None:
    """Each policy of the connector is right; another is an error that offers the nearest."""
    for policy in EVICTION_POLICIES:
        assert checked(config({**OURS, "eviction_policy": policy})).is_valid
    finding = at(checked(config({**OURS, "eviction_policy": "lruu"})), "eviction_policy", "error")
    assert finding.fixes[0].operations[0].value == "lru"


@pytest.mark.parametrize(
    ("path", "transfer", "flags"),
    [
        ("kv-transfer-config.kv_role", config(kv_role="both"), {}),
        ("kv-transfer-config.kv_port", config(kv_port="x"), {}),
        ("kv-transfer-config.kv_connector", {"kv_connector": 1, "kv_role": "kv_both"}, {}),
        ("kv-transfer-config.kv_connector_extra_config", {**config(), "kv_connector_extra_config": []}, {}),
        ("demote_superseded_states", config({**OURS, "demote_superseded_states": "yes"}), {}),
        ("cpu_bytes_to_use", config({**OURS, "cpu_bytes_to_use": "lots"}), {}),
        ("cpu_bytes_to_use", config({**OURS, "cpu_bytes_to_use": -1}), {}),
        ("cpu_bytes_to_use", config({**OURS, "cpu_bytes_to_use": 1.5}), {}),
        ("cpu_bytes_to_use", config({**OURS, "cpu_bytes_to_use": None}), {}),
        ("cpu_bytes_to_use", config({**OURS, "cpu_bytes_to_use": True}), {}),
        ("cpu_bytes_to_use", config({"spec_name": "TieringOffloadingSpec"}), {}),
        ("block_size", config({**OURS, "block_size": 784, "blocks_per_chunk": 1}), {}),
        ("flags.max-model-len", config(), {"max-model-len": "many"}),
        ("flags.max-model-len", config(), {"max-model-len": 0}),
        ("flags.gpu-memory-utilization", config(), {"gpu-memory-utilization": 92}),
        ("flags.enable-prefix-caching", config(), {"enable-prefix-caching": "true"}),
        ("flags.mamba-cache-mode", config(), {"mamba-cache-mode": "aligned"}),
        ("flags.max_num_seqs", config(), {"max_num_seqs": 8}),
        ("flags.--block-size", config(), {"--block-size": 16}),
        ("flags.a", config(), {"a": {"b": 1}}),
        ("flags.port", config(), {"port": 1}),
    ],
)
def test_wrong_values_are_errors_at_their_path(path: str, transfer: Any, flags: dict[str, Any]) -> None:
    """Each with one error at the place, never another severity."""
    assert at(checked(transfer, flags), path, "error").message


@pytest.mark.parametrize("value", ["32768", 32768, "32k", "auto", -1])
def test_lengths_that_the_engine_takes_are_fine(value: Any) -> None:
    """The engine itself reads 32k and auto."""
    assert checked(flags={"max-model-len": value}).is_valid


def test_sizes_become_integers_with_a_note() -> None:
    """5 GiB and 5 GB are stored as their bytes; a number in quotes is never stored as text."""
    for text, size in (
        ("5 GiB", 5368709120),
        ("5 GB", 5000000000),
        ("5368709120", 5368709120),
        ("1.5TiB", 1649267441664),
    ):
        found = checked(config({**OURS, "cpu_bytes_to_use": text}))
        assert found.is_valid
        assert found.kv_transfer_config["kv_connector_extra_config"]["cpu_bytes_to_use"] == size
        finding = at(found, "cpu_bytes_to_use", "note")
        assert str(size) in finding.message
        assert finding.fixes[0].operations[0].value == size
    found = checked(flags={"kv-cache-memory-bytes": "60 MB", "max-num-seqs": "8"})
    assert found.flags == {"kv-cache-memory-bytes": 60_000_000, "max-num-seqs": 8}


def test_short_units_offer_what_was_probably_meant() -> None:
    """2g in quotes is no size that the engine knows."""
    finding = at(checked(config({**OURS, "cpu_bytes_to_use": "2g"})), "cpu_bytes_to_use", "error")
    assert "2 GiB" in finding.message
    assert finding.fixes[0].operations[0].value == 2 * GIB


def test_sizes_that_are_hardly_meant_are_named() -> None:
    """Below 1 GiB and above the machine's memory the warning names the number."""
    finding = at(checked(config({**OURS, "cpu_bytes_to_use": 10})), "cpu_bytes_to_use", "warning")
    assert "10 GiB" in finding.message
    assert finding.fixes[0].operations[0].value == 10 * GIB
    assert "500000000" in at(checked(config({**OURS, "cpu_bytes_to_use": 500_000_000})), "cpu_bytes_to_use").message
    above = at(checked(config({**OURS, "cpu_bytes_to_use": 600 * GIB})), "cpu_bytes_to_use", "warning")
    assert str(600 * GIB) in above.message
    assert "512 GiB" in above.message


# --- text ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "mended"),
    [
        ('{"a": 2g}', '{"a": 2147483648}'),
        ('{"a": 1.5GB}', '{"a": 1500000000}'),
        ('{"a": 1, # why\n"b": 2}', '{"a": 1, \n"b": 2}'),
        ('{"a": 1, /* why */ "b": 2}', '{"a": 1,  "b": 2}'),
        ('{"a": 1,}', '{"a": 1}'),
        ('{"a": [1, 2,\n]}', '{"a": [1, 2\n]}'),
    ],
)
def test_a_click_mends_text_that_is_nearly_json(text: str, mended: str) -> None:
    """Only the offending characters change."""
    (finding,) = checked(text).findings
    edit = finding.fixes[0].edit
    assert finding.line is not None
    assert finding.column is not None
    assert edit is not None
    assert text[: edit.start] + edit.text + text[edit.end :] == mended
    json.loads(mended)


MALFORMED = [
    "{",
    '{"kv_connector"',
    '{"kv_connector": "Offload',
    "[]",
    "null",
    '"text"',
    "17",
    "{'a': 1}",
    '{"a": 1} {"b": 2}',
    '{"a": NaN}',
    '{"a": Infinity}',
    '{"a": -Infinity}',
    '{"a": 1, "a": 2}',
    '{"a": {"b": 1, "b": 1}}',
    '{"a": 0x10}',
    '{"a": 01}',
    '{"a": .5}',
    '{"a": +1}',
    '{"a": True}',
    '{"a": None}',
    '{"a": undefined}',
    "{a: 1}",
    '{"a": 1,, "b": 2}',
    '{"a": "\n"}',
    '{"a": "\\x"}',
    '{"a": "\ud800"}'.encode("utf-8", "surrogatepass").decode("utf-8", "replace") + "x",
    "<<<<<<< HEAD\n{}\n=======\n{}\n>>>>>>> other",
    '{"a": 1\n<<<<<<< HEAD\n}',
    "<!DOCTYPE html><html></html>",
    "--kv-transfer-config '{}'",
    "kv_connector: OffloadingConnector",
    "{kv_connector:OffloadingConnector}",
    '{"a": ' * 5000,
    '{"a": ' + "9" * 5000 + "}",
    "\ufeff{}",
    '{"a": 1e400}',
    '{"a": -1e999}',
    '{"a": 99999999999999999999}',
    '{"a": "\\ud800"}',
    '{"\\udfff": 1}',
]


@pytest.mark.parametrize("text", MALFORMED)
def test_malformed_text_is_one_clear_error(text: str) -> None:
    """Whatever is pasted: one error with a sentence, never an exception."""
    found = checked(text)
    assert not found.is_valid
    assert [finding.severity for finding in found.findings] == ["error"]
    assert found.findings[0].message.endswith(".")
    assert not found.is_read


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
        max_leaves=8,
    ),
    st.sampled_from(["OffloadingConnector", "LMCacheConnectorV1", "MultiConnector", "Other", 3]),
    st.dictionaries(
        st.sampled_from(["block-size", "tensor-parallel-size", "max-model-len", "kv-cache-dtype"]),
        st.integers() | st.text(max_size=4),
    ),
)
def test_any_values_give_an_answer(extra: Any, connector: Any, flags: dict[str, Any]) -> None:
    """Wrong kinds and huge numbers anywhere are findings, never exceptions; every sentence can be told."""
    found = checked(
        {"kv_connector": connector, "kv_role": "kv_both", "kv_connector_extra_config": extra}, flags, model=HYBRID
    )
    assert all(finding.message for finding in found.findings)


# --- what does not go together ------------------------------------------------------------------------------------


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


def test_chunk_is_a_multiple_of_the_device_block() -> None:
    """`block_size` of the connector against the block that the engine will have."""
    found = checked(config({**OURS, "block_size": 500}), model=HYBRID)
    assert at(found, "block_size", "error").fixes[0].operations[0].value == 768
    assert checked(config({**OURS, "block_size": 768}), model=HYBRID).is_valid
    assert not checked(config({**OURS, "block_size": 24}), {"block-size": 16}).is_valid


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


# --- memory -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("transfer", "flags", "environment", "total", "text"),
    [
        (config({"cpu_bytes_to_use": 53687091200}), {"tensor-parallel-size": 2}, {}, 50, "25 GiB x 2 = 50 GiB"),
        (
            config({"lmcache.max_local_cpu_size": 50}, "LMCacheConnectorV1"),
            {"tensor-parallel-size": 2},
            {},
            100,
            "50 GiB x 2 = 100 GiB",
        ),
        (
            config({"use_layerwise": False}, "LMCacheConnectorV1"),
            {"tensor-parallel-size": 2},
            {"LMCACHE_MAX_LOCAL_CPU_SIZE": "50"},
            100,
            "50 GiB x 2 = 100 GiB",
        ),
        (config(), {"tensor-parallel-size": 4, "data-parallel-size": 2}, {}, 128, "16 GiB x 8 = 128 GiB"),
        (config(), {"data-parallel-size": 8, "data-parallel-size-local": 2}, {}, 128, "64 GiB x 2 = 128 GiB"),
        (
            config({"cpu_bytes_to_use_per_rank": 10 * GIB}, "SimpleCPUOffloadConnector"),
            {"tensor-parallel-size": 2},
            {},
            20,
            "10 GiB x 2 = 20 GiB",
        ),
        ({}, {"kv-offloading-size": 32, "tensor-parallel-size": 2}, {}, 32, "16 GiB x 2 = 32 GiB"),
        (
            config({"connectors": [config({"cpu_bytes_to_use": 8 * GIB})]}, "MultiConnector"),
            {"tensor-parallel-size": 2},
            {},
            8,
            "4 GiB x 2 = 8 GiB",
        ),
    ],
)
def test_total_against_per_rank(
    transfer: dict[str, Any], flags: dict[str, Any], environment: dict[str, Any], total: int, text: str
) -> None:
    """The same word means a total for one connector and a rank's part for another; both are spelled out."""
    (one,) = host_memory(transfer, flags, environment)
    assert one.total_bytes == total * GIB
    assert one.sum_text == text


@pytest.mark.parametrize(
    ("box", "words"),
    [
        (Box(32 * GIB), "32 GiB"),
        (Box(512 * GIB, limit_bytes=48 * GIB), "control group"),
        (Box(512 * GIB, shared_bytes=64 << 20), "/dev/shm"),
        (Box(100 * GIB, claims=(Claim("chat", "big v3", 60 * GIB),)), "chat (big v3) 60 GiB"),
    ],
    ids=["memory", "control group", "shared memory", "other fleets"],
)
def test_memory_that_is_not_there_is_told_with_both_numbers(box: Box, words: str) -> None:
    """The whole machine's need against memory, limit, mount, and what others ask for."""
    finding = at(checked(box=box), "cpu_bytes_to_use", "warning")
    assert words in finding.message
    assert "64 GiB" in finding.message


def test_every_engine_of_the_fleet_takes_its_own() -> None:
    """Two engines of a 64 GiB profile need 128 GiB."""
    found = checked(box=Box(100 * GIB), engines=2)
    assert "128 GiB" in at(found, "cpu_bytes_to_use", "warning").message


# --- what stays quiet ---------------------------------------------------------------------------------------------


def test_profiles_that_ship_are_clean() -> None:
    """The demo's own profile has nothing to say against it."""
    found = checked(DEMO_KV_TRANSFER_CONFIG, DEMO_FLAGS, model=HYBRID, platform="cpu")
    assert found.findings == ()


def test_the_published_configuration_is_taken_as_written() -> None:
    """The configuration of the field report, letter by letter."""
    text = (
        '{"kv_connector":"OffloadingConnector","kv_role":"kv_both","kv_connector_extra_config":'
        '{"spec_name":"TieringOffloadingSpec","cpu_bytes_to_use":68719476736,"eviction_policy":"lru",'
        '"demote_superseded_states":true,"mamba_state_slots_reference_tokens":65536}}'
    )
    assert checked(text).findings == ()
    assert checked(text).kv_transfer_config == json.loads(text)


def test_checking_is_quicker_than_typing() -> None:
    """Under 50 ms, with much to say."""
    draft = Draft(
        json.dumps(config({f"key_{n}": n for n in range(60)})), json.dumps({f"flag-{n}": n for n in range(60)})
    )
    context = Context(platform="cpu", model=HYBRID, box=Box(GIB))
    took = []
    for _ in range(5):
        began = time.perf_counter()
        check(draft, context)
        took.append(time.perf_counter() - began)
    assert min(took) < 0.05
