"""The real engine, killed in the middle of its work and started again: its sessions are where they were."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from benchmarks.real_engine import complete, metrics, prompt
from benchmarks.restart import HITS, Ending, Rig, end, whole_blocks

pytestmark = pytest.mark.engine

LENGTHS = (3_000, 8_000)


@pytest.mark.parametrize(
    ("policy", "policy_then"), [("lru", "lru"), ("value", "value"), ("lru", "value"), ("value", "lru")]
)
def test_sessions_outlive_a_killed_engine(tmp_path: Path, demo_model: Path, policy: str, policy_then: str) -> None:
    """SIGKILL of the worker while a prompt is stored, then a start with half the memory (and another split, where
    there is one) under the same policy or one that lays it out otherwise: all whole blocks of both sessions come from
    the host, the answers are the same, nothing else is left behind.
    """
    rig = Rig(tmp_path, demo_model, f"test-{os.getpid()}", policy)
    prompts = [prompt(900 + length, length) for length in LENGTHS]
    try:
        with rig.engine() as engine:
            cold = [complete(engine.base_url, tokens) for tokens in prompts]
            complete(engine.base_url, prompt(1, 900))  # a step later, the last stores are acknowledged
            end(engine, Ending("SIGKILL", "worker", "storing"), prompts[0], 2)
        smaller = {"cpu_bytes_to_use": "512MiB", "mamba_state_slots_reference_tokens": 16_384}
        with rig.engine(eviction_policy=policy_then, **smaller) as engine:
            before = metrics(engine.base_url).get(HITS, 0.0)
            back = [complete(engine.base_url, tokens) for tokens in prompts]
            served = metrics(engine.base_url)[HITS] - before
            said = engine.log.read_text()
            assert "contents outlive the engine" in said
            assert ("were taken over from another eviction_policy" in said) is (policy_then != policy)
            end(engine, Ending("SIGTERM", "API server", "idle"), prompts[0], 3)
        assert [answer.tokens for answer in back] == [answer.tokens for answer in cold]
        assert served == sum(whole_blocks(length) for length in LENGTHS)
        assert rig.left_over() == []
        assert rig.memory.exists()
    finally:
        rig.forget()
    assert not rig.memory.exists()
