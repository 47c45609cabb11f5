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
from app.profiles.context import Box, Context
from app.profiles.finding import EXTRA
from engine.config import EVICTION_POLICIES, UNSERVED
from tests.unit.profiles.drafts import (
    GIB,
    HYBRID,
    OURS,
    at,
    checked,
    config,
    document,
    patched,
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


@pytest.mark.parametrize(
    ("text", "stored"), [("32k", 32_000), ("32K", 32_768), ("1.5m", 1_500_000), ("8G", 8 * GIB), ("64 KiB", None)]
)
def test_short_numbers_are_stored_as_the_engine_reads_them(text: str, stored: int | None) -> None:
    """Small letters count in thousands, capitals in powers of two; then lengths are compared like any other."""
    found = checked(flags={"max-num-batched-tokens": text})
    assert found.is_valid is (stored is not None)
    if stored is not None:
        assert found.flags["max-num-batched-tokens"] == stored
        assert at(found, "flags.max-num-batched-tokens", "note")
    assert not checked(flags={"max-model-len": "25.6K"}).is_valid, "the engine takes no fraction of 1024"
    assert at(checked(flags={"max-model-len": "1M"}, model=HYBRID), "flags.max-model-len", "warning")


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
    '{"a"\ufeff: 1}',
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
