"""However much is pasted, an answer comes between two strokes."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from app.profiles.bounds import MOST_ENTRIES, MOST_TEXT, MOST_TOLD
from app.profiles.check import Draft, check
from app.profiles.context import Box, Context
from app.profiles.engine_checks import check_engine
from app.profiles.finding import EXTRA
from tests.unit.profiles.drafts import GIB, HYBRID, OURS, at, checked, config


def keys(count: int, word: str = "cpu_bytes_to_use_") -> dict[str, int]:
    """Keys that nobody reads and that look like one that is read."""
    return {f"{word}{n}": n for n in range(count)}


def joined(count: int, inside: int) -> dict[str, Any]:
    """Many connectors with many unknown keys each."""
    return config({"connectors": [config({**OURS, **keys(inside)}) for _ in range(count)]}, "MultiConnector")


LARGE = {
    "unknown keys": Draft(json.dumps(config({**OURS, **keys(400)})), ""),
    "unknown keys at the top": Draft(json.dumps({**config(), **keys(400, "kv_connector_")}), ""),
    "10,000 keys": Draft(json.dumps(config({**OURS, **keys(10_000)})), ""),
    "600 keys": Draft(json.dumps(config({**OURS, **keys(600)})), ""),
    "connectors": Draft(json.dumps(joined(12, 30)), ""),
    "more connectors": Draft(json.dumps(joined(40, 8)), ""),
    "flags": Draft("", json.dumps({**keys(480, "max_num_"), "a": 1})),
    "variables": Draft("", "", json.dumps({f"a-{n}": n for n in range(480)})),
    "numbers": Draft("", json.dumps({"a": [1] * 10_000})),
    "a long text": Draft("{" * 2_000_000, ""),
    "a long key": Draft(json.dumps(config({**OURS, "cpu_bytes_to_use" * 1500: 1})), ""),
    "allowed": Draft(json.dumps(config(keys(400))), "", "", tuple(f"{EXTRA}.{n}" for n in range(10_000))),
}


@pytest.mark.parametrize("draft", LARGE.values(), ids=LARGE)
def test_checking_is_quick_whatever_is_pasted(draft: Draft) -> None:
    """Under 50 ms, and refused."""
    context = Context(platform="cuda", model=HYBRID, box=Box(GIB))
    took = []
    for _ in range(5):
        began = time.perf_counter()
        found = check(draft, context)
        took.append(time.perf_counter() - began)
    assert not found.is_valid
    assert min(took) < 0.05


def test_the_first_unknown_keys_are_told_and_the_rest_counted() -> None:
    """Each of the first with its nearest known key; one finding for all others."""
    found = checked(config({**OURS, **keys(MOST_TOLD + 5)}))
    told = [one for one in found.findings if one.path.startswith(f"{EXTRA}.")]
    assert len(told) == MOST_TOLD
    assert "5 more keys" in at(found, EXTRA, "error").message
    assert checked(config({**OURS, **keys(100)}), allow=(f"{EXTRA}.*",)).is_valid


@pytest.mark.parametrize("part", ["flags", "environment"])
def test_more_than_somebody_writes_is_refused(part: str) -> None:
    """By the number of keys, and by the length of the text."""
    many: dict[str, Any] = {part: {f"a{n}": "1" for n in range(MOST_ENTRIES + 1)}}
    assert str(MOST_ENTRIES) in at(checked(**many), part, "error").message
    long: dict[str, Any] = {part: {"a": "x" * MOST_TEXT}}
    assert str(MOST_TEXT) in at(checked(**long), part, "error").message


def test_unknown_flags_are_bounded_too() -> None:
    """Where the engine's interpreter told its flags."""
    known = {f"max-num-{n}": {"takes_value": True, "choices": None} for n in range(250)}
    found = check_engine(checked(flags={f"max-nun-{n}": n for n in range(400)}), known, None, None, None)
    assert len(found) == MOST_TOLD + 1
    assert found[-1].path == "flags"


@pytest.mark.parametrize("platform", ["cuda", "cpu"])
@pytest.mark.parametrize(("dtype", "near"), [("fp9", "fp8"), ("FP8", "fp8"), ("bf16", "bfloat16"), ("zzz", "auto")])
def test_a_type_of_kv_that_nobody_knows_is_an_error(dtype: str, near: str, platform: str) -> None:
    """With the nearest that vLLM takes."""
    finding = at(checked(flags={"kv-cache-dtype": dtype}, platform=platform), "flags.kv-cache-dtype", "error")
    assert finding.fixes[0].operations[0].value == near


@pytest.mark.parametrize("dtype", ["fp8", "turboquant_k8v4", "int8_per_token_head", "nvfp4"])
def test_types_of_kv_that_vllm_takes_are_not_refused(dtype: str) -> None:
    """Also those that the form does not offer."""
    assert checked(flags={"kv-cache-dtype": dtype}).is_valid
