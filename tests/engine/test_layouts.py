"""Models that are not hybrids in the real engine: what comes back from the host is what a cold engine computes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.real_engine import metrics, prompt, running_engine
from benchmarks.torture import ENVIRONMENT, LOGPROB_TOLERANCE, Torture, ask, empty, host_tier, text
from tests.engine.small_models import build, full_attention, sliding_windows

pytestmark = pytest.mark.engine

BLOCK, LENGTH = 128, 1_500
#: In fewer, chance may leave none with anything to find.
ROUNDS = 6
HITS = "vllm:external_prefix_cache_hits_total"
FLAGS: dict[str, Any] = {
    "block-size": BLOCK,
    "max-model-len": 6_144,
    "kv-cache-memory-bytes": 24_000_000,
    "mamba-cache-mode": None,
    "prefix-cache-retention-interval": None,
}
#: Sixteen thousand tokens of full attention and as many of windows: a third of what the rounds ask for.
TIER = {"cpu_bytes_to_use": 32_000_000, "mamba_state_slots_reference_tokens": None}


@pytest.mark.parametrize(
    ("model_of", "policy"), [(full_attention, "lru"), (sliding_windows, "lru"), (sliding_windows, "value")]
)
def test_sessions_come_back_as_they_were(model_of: Callable[[], Any], policy: str, tmp_path: Path) -> None:
    """A session whose blocks are in host memory alone: all whole blocks come from there, and the answer is the cold
    one, as are those to a few random prompts. These models' logits are close enough to meet: an engine without any
    connector gives other tokens too, where a prefix comes from its own cache.
    """
    model = build(model_of, tmp_path / "model")
    tier = host_tier(**TIER, eviction_policy=policy)
    with running_engine(model, tmp_path / "log", tier, ENVIRONMENT, FLAGS) as engine:
        tokens = tuple(prompt(1, LENGTH))
        cold = ask(engine.base_url, tokens, 8)
        empty(engine.base_url)
        before = metrics(engine.base_url)[HITS,]
        back = ask(engine.base_url, tokens, 8)
        hits = metrics(engine.base_url)[HITS,] - before
        empty(engine.base_url, host_too=True)  # a session that came back is worth more than a few new ones
        report = Torture(engine.base_url, seed=3, tie=LOGPROB_TOLERANCE).run(ROUNDS)
        full = tuple(prompt(2, LENGTH))
        cold_too = ask(engine.base_url, full, 8)
        empty(engine.base_url)
        before = metrics(engine.base_url)[HITS,]
        back_too = ask(engine.base_url, full, 8)
        hits_when_full = metrics(engine.base_url)[HITS,] - before
    assert cold.gap(back) <= LOGPROB_TOLERANCE
    assert cold_too.gap(back_too) <= LOGPROB_TOLERANCE
    assert hits == hits_when_full == LENGTH // BLOCK * BLOCK
    assert not report.wrong, text(report)
    assert report.counters["hits"] > 0
    assert report.counters["evictions"] > 0
    assert report.counters["verify_failures"] == 0
