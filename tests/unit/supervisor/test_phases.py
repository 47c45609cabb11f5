"""How far a start is."""

from __future__ import annotations

import pytest

from app.supervisor.phases import LAUNCHED, advance, shows_life

LOG = [
    "(APIServer pid=1) INFO 11-30 01:29:47 [api_utils.py:286] non-default args: {'port': 8999}",
    "(EngineCore pid=2) INFO 11-30 01:29:57 [core.py:133] Initializing a V1 LLM engine (v0.32.0) with config: x",
    "(EngineCore pid=2) INFO 11-30 01:29:58 [cpu_model_runner.py:68] Starting to load model /m...",
    "Loading safetensors checkpoint shards:  50% Completed | 1/2 [00:00<00:00, 60.52it/s]",
    "(EngineCore pid=2) INFO 11-30 01:29:59 [default_loader.py:502] Loading weights took 0.03 seconds",
    "(EngineCore pid=2) INFO 11-30 01:30:00 [kv_cache_utils.py:2327] CPU KV cache size: 54,720 tokens, Maximum",
    "(EngineCore pid=2) INFO 11-30 01:30:03 [core.py:402] init engine (profile, create kv cache, warmup model) took 2",
    "(APIServer pid=1) INFO 11-30 01:30:04 [entry.py:140] Starting vLLM server on http://127.0.0.1:8999",
    "INFO:     Application startup complete.",
]


def test_phases_go_forward() -> None:
    """Each line of a real start takes it on, and none takes it back."""
    phase, seen = LAUNCHED, [LAUNCHED.progress]
    for line in LOG:
        phase = advance(phase, line)
        seen.append(phase.progress)
    assert seen == sorted(set(seen)) and phase.sentence == "Waiting for a first token"
    assert advance(phase, LOG[0]) == phase


def test_percentages_move_the_bar() -> None:
    """A progress bar of the engine is one of the deck's."""
    lines = [f"Loading safetensors checkpoint shards: {share}% Completed" for share in (0, 40, 90)]
    shards = [advance(LAUNCHED, line).progress for line in lines]
    assert shards == sorted(set(shards))


@pytest.mark.parametrize(
    ("line", "alive"),
    [
        ("Loading safetensors checkpoint shards:  50%", True),
        ("anything new", True),
        ('INFO:     127.0.0.1:1 - "GET /health HTTP/1.1" 200 OK', False),
        ("INFO 11-30 [shm_broadcast.py:1] No available shared memory broadcast block found in 60 seconds.", False),
        ("   ", False),
    ],
)
def test_life(line: str, alive: bool) -> None:
    """What comes while nothing moves, or because the deck asked, does not extend a start."""
    assert shows_life(line) is alive
