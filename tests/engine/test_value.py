"""The one arena in the real engine, as it is without any policy written: blocks and states in pages."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.real_engine import complete, metrics, prompt, running_engine

pytestmark = pytest.mark.engine

LENGTH, BLOCK = 30_000, 384
WHOLE_BLOCKS = LENGTH // BLOCK * BLOCK
TIER = {
    "kv_connector": "OffloadingConnector",
    "kv_role": "kv_both",
    "kv_connector_extra_config": {"spec_name": "TieringOffloadingSpec", "cpu_bytes_to_use": "80MiB"},
}


def test_a_session_comes_back_from_an_arena_that_was_full_meanwhile(demo_model: Path, tmp_path: Path) -> None:
    """An arena of not quite three sessions of 30,000 tokens. Short ones fill and fragment it first; then a long
    one, others that push it out of VRAM, and it comes back whole: from the host, with the tokens of the cold run.
    """
    with running_engine(demo_model, tmp_path / "log", TIER) as engine:
        for seed in range(8):
            complete(engine.base_url, prompt(700 + seed, 1_000 + 500 * seed), 1)
        tokens = prompt(600, LENGTH)
        cold = complete(engine.base_url, tokens)
        for seed in (601, 602):
            complete(engine.base_url, prompt(seed, LENGTH - 8_000), 1)
        before = metrics(engine.base_url)
        back = complete(engine.base_url, tokens)
        after = metrics(engine.base_url)
        log = engine.log.read_text()

    assert back.tokens == cold.tokens
    hits = "vllm:external_prefix_cache_hits_total"
    assert after[hits,] - before[hits,] == WHOLE_BLOCKS
    assert after["tierdeck_host_lookup_tokens_total", "hit"] == WHOLE_BLOCKS
    assert cold.ttft_seconds / back.ttft_seconds >= 10, (cold, back)
    assert "Host tier: one arena of" in log
    evicted = sum(value for key, value in after.items() if key[0] == "tierdeck_host_evictions_total")
    assert evicted > 0, "the arena was full"
    total = after["tierdeck_host_bytes", "token"] + after["tierdeck_host_bytes", "state"]
    assert 0.98 * (80 << 20) < total <= 80 << 20
