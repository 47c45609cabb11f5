"""A click on a fix mends what it is offered for, and never leads to the next error."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from app.profiles.check import Checked, Draft, check
from app.profiles.context import Context, ModelFacts
from app.profiles.finding import Finding
from engine.config import TierConfig
from tests.unit.profiles.drafts import GIB, HYBRID, LARGE_BOX, OURS, at, checked, config, document, patched

WRONG: tuple[Any, ...] = (
    *(0, "0", -1, "-1", 1, 9, 10, 92, 1.5, 1e300, 2**70, True, False, None, "", "true", "false", "yes", "no", "True"),
    *("x", "lruu", "1GB", "2g", "64 GiB", "FP8", "fp9", "cuda", [], ["x"], {}, {"a": 1}, [1], "kv_both", "32k"),
)
STOCK = {"cpu_bytes_to_use": 64 * GIB}
#: What may be said of the *other* field that a click writes or uncovers: each has a click of its own.
NEXT = ("belongs to", "not a multiple", "is missing")
BASES: list[tuple[dict[str, Any], str]] = [
    (OURS, "OffloadingConnector"),
    (STOCK, "OffloadingConnector"),
    (STOCK, "SimpleCPUOffloadConnector"),
    ({"max_local_cpu_size": 5}, "LMCacheConnectorV1"),
]
OUR_KEYS = tuple(TierConfig.__dataclass_fields__)
INSIDE = (
    *OUR_KEYS,
    *("num_cpu_blocks", "max_tracker_size", "secondary_tiers", "kv_role", "kv_port", "lazy_offload", "evict_policy"),
    *("blocksize", "cpu_byte_to_use", "verfy", "demote_superseded_state", "cpu_bytes_to_use_per_rank", "x y/z~"),
)
OUTSIDE = (
    *("kv_connector", "kv_role", "kv_port", "kv_buffer_device", "kv_buffer_size", "kv_rank", "engine_id"),
    *("enable_permute_local_kv", "kv_load_failure_policy", "kv_connector_extra_config", "spec_name", "block_size"),
    *("kv_connector_module_path", "kv_rol", "kvport", "verify", "blok_size", "cpu_bytes", "enable_permute_local", "z"),
)
FLAGS = (
    *("max-model-len", "gpu-memory-utilization", "kv-cache-memory-bytes", "kv-cache-dtype", "enable-prefix-caching"),
    *("mamba-cache-mode", "prefix-cache-retention-interval", "block-size", "max-num-seqs", "max-num-batched-tokens"),
    *("tensor-parallel-size", "data-parallel-size-local", "enable-chunked-prefill", "kv-offloading-size", "port"),
    *("--port", "max_num_seqs", "Enable_Prefix_Caching", "--enable-chunked-prefill", "no-enable-prefix-caching"),
)


def drafts() -> Iterator[dict[str, Any]]:
    """Every key and flag with every wrong value, and some that are right."""
    for value in WRONG:
        for extra, connector in BASES:
            yield from (document(config({**extra, key: value}, connector)) for key in INSIDE)
            yield from (document({**config(dict(extra), connector), key: value}) for key in OUTSIDE)
        yield from (document(config(), {name: value}) for name in FLAGS)
        yield from (document(config(), {name: value, "max-num-seqs": 64}) for name in FLAGS)
        yield from (document({}, {name: value}) for name in FLAGS)
        yield document(config(), {}, environment={"A": value, "TIERDECK_X": value, "VLLM_PLUGINS": value})


def told(draft: dict[str, Any], model: ModelFacts | None = None) -> Checked:
    """The document as a draft, checked."""
    transfer, flags, environment = (json.dumps(draft[part]) for part in ("kv_transfer_config", "flags", "environment"))
    return check(
        Draft(transfer, flags, environment, tuple(draft["allow"])), Context(platform="cuda", box=LARGE_BOX, model=model)
    )


def errors(found: Checked) -> dict[str, str]:
    """Path -> what is refused there."""
    return {one.path: one.message for one in found.findings if one.severity == "error"}


def led_to(draft: dict[str, Any], found: Checked, finding: Finding, model: ModelFacts | None) -> list[Any]:
    """Fixes of a finding after which something is refused that was not before, or still is."""
    before, bad = errors(found), []
    for fix in finding.fixes:
        after = errors(told(patched(draft, fix), model))
        new = {path: said for path, said in after.items() if path not in before or path == finding.path}
        is_next = all(any(words in said for words in NEXT) for said in new.values())
        if finding.path in after or not (is_next or fix.label.startswith("Add ")):
            bad.append((draft, finding.message, fix.label % fix.values, new))
    return bad


@pytest.mark.parametrize("model", [None, HYBRID], ids=["unknown", "hybrid"])
def test_no_fix_leads_to_the_next_error(model: ModelFacts | None) -> None:
    """Whatever was written: after the click nothing new is refused, there or elsewhere."""
    bad: list[Any] = []
    for draft in drafts():
        found = told(draft, model)
        for finding in found.findings:
            if finding.severity == "error":
                bad += led_to(draft, found, finding, model)
    assert bad == [], f"{len(bad)}: {bad[:5]}"


@pytest.mark.parametrize("value", [0, "0", -1])
@pytest.mark.parametrize("key", ["cpu_bytes_to_use", "block_size", "mamba_state_slots_reference_tokens"])
def test_a_number_is_not_mended_by_a_switch(key: str, value: Any) -> None:
    """Neither true nor false is a number; what has a default is left out, the size is written."""
    finding = at(checked(config({**OURS, key: value})), key, "error")
    assert finding.fixes
    assert all(not isinstance(one.value, bool) for fix in finding.fixes for one in fix.operations)


@pytest.mark.parametrize(("value", "near"), [(1.5, None), (9, None), (92, 0.92), (100, 1.0), (101, None), (-1, None)])
def test_only_what_looks_like_per_cent_is_read_as_such(value: float, near: float | None) -> None:
    """92 is 0.92; nobody can tell what 1.5 or 9 was meant to be."""
    fixes = at(checked(flags={"gpu-memory-utilization": value}), "flags.gpu-memory-utilization", "error").fixes
    assert [one.operations[0].value for one in fixes] == ([] if near is None else [near])


def test_a_key_is_not_renamed_to_one_that_refuses_its_value() -> None:
    """A size is no device; the click takes the old key away."""
    transfer = config(kv_buffer_size="1GB")
    finding = at(checked(transfer), "kv-transfer-config.kv_buffer_size", "error")
    assert patched(document(transfer), finding.fixes[0])["kv_transfer_config"] == config()


@pytest.mark.parametrize("value", ["false", "no", "x", 0, 3])
def test_a_switch_that_the_connector_needs_is_turned_on(value: Any) -> None:
    """Without a connector the operator's own word is taken."""
    on = at(checked(flags={"enable-prefix-caching": value}), "flags.enable-prefix-caching", "error")
    assert on.fixes[0].operations[0].value is True
    alone = at(checked("", {"enable-prefix-caching": "false"}), "flags.enable-prefix-caching", "error")
    assert alone.fixes[0].operations[0].value is False
