"""`verify` in the real engine: a slot that changed behind its back is found, and nothing but time is lost."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.real_engine import metrics, prompt, running_engine
from benchmarks.torture import ENVIRONMENT, FLAGS, ask, empty, host_tier
from benchmarks.torture_prompts import BLOCK
from engine.residency_place import ID_VARIABLE, directory_of

pytestmark = pytest.mark.engine

BLOCKS = 3
HITS, FAILURES = "vllm:external_prefix_cache_hits_total", "tierdeck_host_verify_failures_total"


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The engine's slots as files, which a test can reach."""
    name = f"test-verify-{os.getpid()}"
    monkeypatch.setenv(ID_VARIABLE, name)
    yield directory_of(name)
    shutil.rmtree(directory_of(name), ignore_errors=True)


def flip(path: Path, at: int) -> None:
    """One bit of the running engine's memory."""
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1]))


def test_a_flipped_bit_is_found_and_the_engine_goes_on(demo_model: Path, tmp_path: Path, memory: Path) -> None:
    """The load that would bring it fails and is counted, its request is computed anew with the cold answer and stored
    anew, and the next time the session comes from the host, from slots that hold what they should.
    """
    tier = host_tier(residency="keep")
    with running_engine(demo_model, tmp_path / "log", tier, ENVIRONMENT, FLAGS) as engine:
        tokens = tuple(prompt(1, BLOCKS * BLOCK + 50))
        cold = ask(engine.base_url, tokens, 8)
        empty(engine.base_url)
        flip(memory / "engine-0" / "worker-0.token", 17)
        back = [ask(engine.base_url, tokens, 8)]
        found = metrics(engine.base_url)
        empty(engine.base_url)
        back.append(ask(engine.base_url, tokens, 8))
        after = metrics(engine.base_url)
        log = engine.log.read_text()
    assert [answer.tokens for answer in back] == 2 * [cold.tokens]
    assert found[FAILURES,] == after[FAILURES,] == 1
    assert after[HITS,] - found[HITS,] == BLOCKS * BLOCK
    assert "did not bring what had been stored" in log
