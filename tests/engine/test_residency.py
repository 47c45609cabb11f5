"""The real engine, killed in the middle of its work and started again: its sessions are where they were."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from benchmarks.real_engine import EngineProcess, complete, metrics, prompt
from benchmarks.restart import HITS, SHARED_MEMORY, Ending, Rig, end, whole_blocks

pytestmark = pytest.mark.engine

LENGTHS = (3_000, 8_000)
WHOLE = sum(whole_blocks(length) for length in LENGTHS)
PROMPTS = [prompt(900 + length, length) for length in LENGTHS]
KILLED = Ending("SIGKILL", "worker", "storing")
HALF: dict[str, Any] = {"cpu_bytes_to_use": "512MiB", "mamba_state_slots_reference_tokens": 16_384}
PROFILES: tuple[tuple[str, dict[str, Any]], ...] = (("lru", HALF), ("value", HALF), ("value", {}), ("lru", HALF))
TAKEN_OVER = "were taken over from another eviction_policy"


def ask(engine: EngineProcess) -> tuple[list[tuple[int, ...]], float]:
    """The answers to both sessions, and how many of their tokens came from the host."""
    before = metrics(engine.base_url).get(HITS, 0.0)
    answers = [complete(engine.base_url, tokens).tokens for tokens in PROMPTS]
    return answers, metrics(engine.base_url).get(HITS, 0.0) - before


def talking() -> set[str]:
    """Through these, workers on one machine exchange what they computed."""
    return {path.name for path in SHARED_MEMORY.glob("vllm_dist_*")}


@pytest.mark.parametrize(("workers", "profiles"), [(1, PROFILES), (2, PROFILES[1:])], ids=["one", "two"])
def test_sessions_outlive_engines_that_are_killed_one_after_the_other(
    tmp_path: Path, demo_model: Path, workers: int, profiles: tuple[tuple[str, dict[str, Any]], ...]
) -> None:
    """SIGKILL of the (last) worker while a prompt is stored, again and again, and each time a start with another
    profile: half the memory and another split, one arena in its place, an arena as large as before, and a split again.
    Each time all whole blocks of both sessions come from the host, and the answers are the same; nothing else is left
    behind. With two workers, each has its own part of every slot, and they talk through files of vLLM's own.
    """
    working_files = talking()
    rig = Rig(tmp_path, demo_model, f"test-{os.getpid()}", workers=workers)
    try:
        with rig.engine() as engine:
            cold, _ = ask(engine)
            complete(engine.base_url, prompt(1, 900))  # a step later, the last stores are acknowledged
            end(engine, KILLED, PROMPTS[0], 2)
        policy_before = "lru"
        for number, (policy, profile) in enumerate(profiles):
            with rig.engine(eviction_policy=policy, **profile) as engine:
                assert ask(engine) == (cold, WHOLE), (number, policy)
                said = engine.log.read_text()
                assert "contents outlive the engine" in said
                assert (TAKEN_OVER in said) is (policy != policy_before)
                policy_before = policy
                is_last = number + 1 == len(profiles)
                end(engine, Ending("SIGTERM", "API server", "idle") if is_last else KILLED, PROMPTS[0], 3 + number)
        assert rig.left_over() == []
        assert talking() <= working_files
        assert rig.memory.exists()
    finally:
        rig.forget()
    assert not rig.memory.exists()
