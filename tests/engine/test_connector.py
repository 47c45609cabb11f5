"""The connector in the real engine: what was pushed out of VRAM comes back, exact and fast."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median

import psutil
import pytest

from benchmarks.real_engine import (
    HOST_TIER,
    DidNotStart,
    EngineProcess,
    complete,
    metrics,
    prompt,
    running_engine,
)
from engine.sizing import SlotPlan, plan_slots

pytestmark = pytest.mark.engine

LENGTH, BLOCK = 30_000, 384
LONG_SEEDS = (101, 102, 103)
WHOLE_BLOCKS = LENGTH // BLOCK * BLOCK


def test_sessions_pushed_out_of_vram_come_back_from_host_memory(real_engine: str) -> None:
    """Three prompts of 30,000 tokens, of which VRAM holds not two, and then the same again: the host serves
    all their whole blocks, the tokens are those of the cold run, and the first comes 20 times sooner.
    """
    prompts = [prompt(seed, LENGTH) for seed in LONG_SEEDS]
    before = metrics(real_engine)
    cold = [complete(real_engine, tokens) for tokens in prompts]
    pushed_out = metrics(real_engine)
    back = [complete(real_engine, tokens) for tokens in prompts]
    after = metrics(real_engine)

    assert [answer.tokens for answer in back] == [answer.tokens for answer in cold]
    assert _rise(pushed_out, after, "vllm:external_prefix_cache_hits_total") == 3 * WHOLE_BLOCKS
    assert _rise(pushed_out, after, "tierdeck_host_lookup_tokens_total", "hit") == 3 * WHOLE_BLOCKS
    assert _rise(before, pushed_out, "tierdeck_host_lookup_tokens_total", "absent") == 3 * WHOLE_BLOCKS
    ratios = [first.ttft_seconds / again.ttft_seconds for first, again in zip(cold, back, strict=True)]
    assert median(ratios) >= 20, ratios


def test_slots_and_sessions_are_on_the_metrics_page(real_engine: str) -> None:
    """What the deck scrapes: slots and used slots of both pools, bytes, sessions that could come back."""
    complete(real_engine, prompt(201, 5_000))
    found = metrics(real_engine)
    for pool in ("token", "state"):
        # Labels in alphabetical order: group, pool.
        assert found["tierdeck_host_slots", "all", pool] >= found["tierdeck_host_slots_used", "all", pool] > 0
        assert found["tierdeck_host_bytes", pool] > 0
        assert ("tierdeck_host_slots_pinned", "all", pool) in found
        assert found["tierdeck_host_evictions_total", pool, "lru"] >= 0
    assert found["tierdeck_host_restorable_sessions",] > 0
    total = found["tierdeck_host_bytes", "token"] + found["tierdeck_host_bytes", "state"]
    assert 0.99 * (1 << 30) < total <= 1 << 30


def test_every_length_gives_the_same_tokens_from_the_host(real_engine: str) -> None:
    """Shorter than a block, exactly at a boundary and beside it: cold, from VRAM and from host alike."""
    prompts = {length: prompt(300 + length, length) for length in (383, 384, 385, 767, 768, 769, 2000, 3000)}
    cold = {length: complete(real_engine, tokens).tokens for length, tokens in prompts.items()}
    warm = {length: complete(real_engine, tokens).tokens for length, tokens in prompts.items()}
    _push_out(real_engine)
    before = metrics(real_engine)
    back = {length: complete(real_engine, tokens).tokens for length, tokens in prompts.items()}
    hits = _rise(before, metrics(real_engine), "vllm:external_prefix_cache_hits_total")
    assert warm == cold
    assert back == cold
    # The last token of a prompt is always computed, so a block that ends with it cannot be a hit.
    assert hits == sum((length - 1) // BLOCK * BLOCK for length in prompts)


def test_the_engine_says_how_many_slots_it_has(real_engine_process: EngineProcess) -> None:
    """And that it runs this connector under the field report's names. How large a state is depends on the processor's
    kernels, so how many blocks fit beside the states does too.
    """
    complete(real_engine_process.base_url, prompt(401, 500))
    log, found = real_engine_process.log.read_text(), metrics(real_engine_process.base_url)
    tokens, states = (int(found["tierdeck_host_slots", "all", pool]) for pool in ("token", "state"))
    sizes = [found["tierdeck_host_bytes", pool] // count for pool, count in (("token", tokens), ("state", states))]
    assert plan_slots(1 << 30, 1, *sizes, BLOCK, 65_536, 0) == SlotPlan(tokens, states)
    assert states == 32
    assert f"Host tier: {tokens} token slots and {states} state slots" in log
    assert "Creating offloading spec with name: TieringOffloadingSpec" in log


def test_a_bad_configuration_ends_the_start_with_one_sentence(demo_model: Path, tmp_path: Path) -> None:
    """The key and what to write are in the log, and nothing is left behind."""
    bad = json.loads(json.dumps(HOST_TIER))
    bad["kv_connector_extra_config"]["cpu_bytes_to_use"] = "lots"
    with pytest.raises(DidNotStart) as caught, running_engine(demo_model, tmp_path / "log", bad):
        pass
    assert "cpu_bytes_to_use cannot be 'lots': write a number of bytes or a size such as \"64GiB\"" in str(caught.value)
    assert not [child for child in psutil.Process().children() if child.status() == psutil.STATUS_RUNNING]


def _push_out(base_url: str) -> None:
    """Enough other tokens to fill the VRAM: long sessions, which come from the host if it has them."""
    for seed in LONG_SEEDS:
        complete(base_url, prompt(seed, LENGTH), 1)


def _rise(before: dict[tuple[str, ...], float], after: dict[tuple[str, ...], float], *key: str) -> float:
    return after[key] - before.get(key, 0)
