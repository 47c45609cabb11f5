"""Fixtures for everyone: one real engine, started once for all the tests that need it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from app.demo.model import build_demo_model

READY_LINE = "Application startup complete"
START_LIMIT_SECONDS = 240.0
STOP_LIMIT_SECONDS = 60.0

#: The field report's configuration, with 1 GiB instead of 64.
HOST_TIER: dict[str, Any] = {
    "kv_connector": "OffloadingConnector",
    "kv_role": "kv_both",
    "kv_connector_extra_config": {
        "spec_name": "TieringOffloadingSpec",
        "cpu_bytes_to_use": 1 << 30,
        "eviction_policy": "lru",
        "demote_superseded_states": True,
        "mamba_state_slots_reference_tokens": 65536,
    },
}


@dataclass(frozen=True)
class EngineProcess:
    """A running vLLM API server: where it answers, its main process and its whole output."""

    base_url: str
    process: subprocess.Popen[str]
    log: Path


def engine_arguments(model: Path, port: int, kv_transfer_config: Mapping[str, Any]) -> list[str]:
    """The demo engine's command line: 60 MB as "VRAM", which two 30,000-token prompts overfill."""
    return [
        *(sys.executable, "-m", "vllm.entrypoints.openai.api_server"),
        *("--model", str(model), "--served-model-name", "demo", "--host", "127.0.0.1", "--port", str(port)),
        *("--max-model-len", "32768", "--kv-cache-memory-bytes", "60000000", "--block-size", "384"),
        *("--enforce-eager", "--dtype", "bfloat16", "--enable-prefix-caching"),
        *("--mamba-cache-mode", "align", "--prefix-cache-retention-interval", "0"),
        *("--kv-transfer-config", json.dumps(kv_transfer_config)),
    ]


@contextlib.contextmanager
def running_engine(
    model: Path, log: Path, kv_transfer_config: Mapping[str, Any] = HOST_TIER
) -> Iterator[EngineProcess]:
    """A real engine with a port of its own; on leaving, no process of its tree is left."""
    port = _free_port()
    process = subprocess.Popen(
        engine_arguments(model, port, kv_transfer_config),
        env=_engine_environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    ready = threading.Event()
    reader = threading.Thread(target=_keep_output, args=(process, log, ready), daemon=True)
    reader.start()
    try:
        if not ready.wait(START_LIMIT_SECONDS) or process.poll() is not None:
            pytest.fail("The engine did not start:\n" + log.read_text()[-6000:])
        yield EngineProcess(f"http://127.0.0.1:{port}", process, log)
    finally:
        stop_tree(process)
        reader.join(STOP_LIMIT_SECONDS)


def stop_tree(process: subprocess.Popen[str]) -> None:
    """SIGTERM to the main process; SIGKILL to whatever of its tree is there after the limit."""
    tree = _tree(process.pid)
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(signal.SIGTERM)
    _, alive = psutil.wait_procs(tree, timeout=STOP_LIMIT_SECONDS)
    for left_over in alive:
        with contextlib.suppress(psutil.NoSuchProcess):
            left_over.kill()
    psutil.wait_procs(alive, timeout=STOP_LIMIT_SECONDS)
    process.wait(STOP_LIMIT_SECONDS)


def _tree(pid: int) -> list[psutil.Process]:
    try:
        main = psutil.Process(pid)
        return [main, *main.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def _keep_output(process: subprocess.Popen[str], log: Path, ready: threading.Event) -> None:
    """Write the output to `log`; set `ready` at the line that says so, or when the output ends."""
    output = process.stdout
    with log.open("w") as file:
        for line in output or ():
            file.write(line)
            file.flush()
            if READY_LINE in line:
                ready.set()
    ready.set()


def _engine_environment() -> dict[str, str]:
    return os.environ | {
        "HF_HUB_OFFLINE": "1",
        "PYTHONUNBUFFERED": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_NO_USAGE_STATS": "1",
    }


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


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
