"""Models that are not hybrids in the real engine: what comes back from the host is what a cold engine computes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.real_engine import metrics, prompt, running_engine
from benchmarks.torture import ENVIRONMENT, Torture, ask, empty, host_tier, text
from tests.engine.small_models import build, full_attention, sliding_windows

pytestmark = pytest.mark.engine

BLOCK, LENGTH = 128, 3_000
HITS = "vllm:external_prefix_cache_hits_total"
FLAGS: dict[str, Any] = {
    "block-size": BLOCK,
    "max-model-len": 6_144,
    "kv-cache-memory-bytes": 24_000_000,
    "mamba-cache-mode": None,
    "prefix-cache-retention-interval": None,
}
TIER = {"cpu_bytes_to_use": 16_000_000, "mamba_state_slots_reference_tokens": None, "eviction_policy": "lru"}


@pytest.mark.parametrize("model_of", [full_attention, sliding_windows])
def test_sessions_come_back_as_they_were(model_of: Callable[[], Any], tmp_path: Path) -> None:
    """A session whose blocks are in host memory alone, and rounds of random prompts with far too little of it."""
    model = build(model_of, tmp_path / "model")
    with running_engine(model, tmp_path / "log", host_tier(**TIER), ENVIRONMENT, FLAGS) as engine:
        tokens = tuple(prompt(1, LENGTH))
        cold = ask(engine.base_url, tokens, 8)
        empty(engine.base_url)
        before = metrics(engine.base_url)[HITS,]
        back = ask(engine.base_url, tokens, 8)
        hits = metrics(engine.base_url)[HITS,] - before
        report = Torture(engine.base_url, seed=3).run(6)
    assert back.tokens == cold.tokens
    assert hits == LENGTH // BLOCK * BLOCK
    assert not report.wrong, text(report)
    assert report.counters["hits"] > 0
    assert report.counters["evictions"] > 0
    assert report.counters["verify_failures"] == 0
