"""Fixtures for everyone: one real engine, started once for all the tests that need it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from app.demo.model import build_demo_model
from benchmarks.real_engine import EngineProcess, running_engine

# Examples are not timed: a busy machine is slow at times. All else is as Hypothesis has it.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")


@pytest.fixture(scope="session")
def demo_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small hybrid demo model, built once for the whole run."""
    return build_demo_model(tmp_path_factory.mktemp("model") / "demo")


@pytest.fixture(scope="session")
def real_engine_process(demo_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineProcess]:
    """The engine behind `real_engine`, for tests that look at its process or its log."""
    with running_engine(demo_model, tmp_path_factory.mktemp("engine") / "engine.log") as engine:
        yield engine


@pytest.fixture(scope="session")
def real_engine(real_engine_process: EngineProcess) -> str:
    """Base URL of one real vLLM engine that serves the model `demo`, shared by all tests of the run.

    It has the connector (1 GiB host tier) and about 54,000 tokens of "VRAM". Mark tests that use it
    `@pytest.mark.engine`; the first of them waits about half a minute for it. Do not stop it, and
    use prompts of your own, so that one test's cache is not another's.
    """
    return real_engine_process.base_url
