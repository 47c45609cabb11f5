"""Models that are not hybrids in the real engine: what comes back from the host is what a cold engine computes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.real_engine import DidNotStart, metrics, prompt, running_engine
from benchmarks.torture import ENVIRONMENT, ask, empty, host_tier
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


def test_sliding_windows_are_refused(tmp_path: Path) -> None:
    """What is not served exactly is not served: the start ends with a sentence that says so."""
    model = build(sliding_windows, tmp_path / "model")
    with (
        pytest.raises(DidNotStart, match="cannot serve sliding-window attention yet"),
        running_engine(model, tmp_path / "log", host_tier(**TIER), ENVIRONMENT, FLAGS),
    ):
        pass


def test_sessions_of_full_attention_come_back_as_they_were(tmp_path: Path) -> None:
    """A session whose blocks are in host memory alone gets the cold answer, all whole blocks from there."""
    model = build(full_attention, tmp_path / "model")
    with running_engine(model, tmp_path / "log", host_tier(**TIER), ENVIRONMENT, FLAGS) as engine:
        tokens = tuple(prompt(1, LENGTH))
        cold = ask(engine.base_url, tokens, 8)
        empty(engine.base_url)
        before = metrics(engine.base_url)[HITS,]
        back = ask(engine.base_url, tokens, 8)
        hits = metrics(engine.base_url)[HITS,] - before
    assert back.tokens == cold.tokens
    assert hits == LENGTH // BLOCK * BLOCK
