"""A real engine for benchmarks and tests: started, asked, and stopped with its whole process tree."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
from prometheus_client.parser import text_string_to_metric_families

from app.demo.profile import DEMO_FLAGS
from app.supervisor.command import flag_arguments

READY_LINE = "Application startup complete"
START_LIMIT_SECONDS = 600.0
STOP_LIMIT_SECONDS = 60.0
ANSWER_LIMIT_SECONDS = 600.0

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


class DidNotStart(Exception):
    """The engine ended or never became ready; the end of its output says why."""


@dataclass(frozen=True)
class EngineProcess:
    """A running vLLM API server: where it answers, its main process and its whole output."""

    base_url: str
    process: subprocess.Popen[str]
    log: Path


@dataclass(frozen=True)
class Answer:
    """What came back: seconds to the first token, and the tokens."""

    ttft_seconds: float
    tokens: tuple[int, ...]


def engine_arguments(
    model: Path, port: int, kv_transfer_config: Mapping[str, Any] | None, flags: Mapping[str, Any] | None = None
) -> list[str]:
    """The demo engine's command line: 60 MB as "VRAM", which two 30,000-token prompts overfill."""
    connector = [] if kv_transfer_config is None else ["--kv-transfer-config", json.dumps(kv_transfer_config)]
    return [
        *(sys.executable, "-m", "vllm.entrypoints.openai.api_server"),
        *("--model", str(model), "--served-model-name", "demo", "--host", "127.0.0.1", "--port", str(port)),
        *flag_arguments(DEMO_FLAGS | dict(flags or {})),
        *connector,
    ]


@contextlib.contextmanager
def running_engine(
    model: Path,
    log: Path,
    kv_transfer_config: Mapping[str, Any] | None = HOST_TIER,
    environment: Mapping[str, str] | None = None,
    flags: Mapping[str, Any] | None = None,
) -> Iterator[EngineProcess]:
    """A real engine with a port of its own; on leaving, no process of its tree is left. `flags` change the demo's."""
    port = _free_port()
    process = subprocess.Popen(  # noqa: S603 - an argument list, no shell
        engine_arguments(model, port, kv_transfer_config, flags),
        env=_engine_environment() | dict(environment or {}),
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
            raise DidNotStart("The engine did not start:\n" + log.read_text()[-6000:])
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


def parallel(workers: int) -> tuple[dict[str, Any], dict[str, str]]:
    """Flags and environment of an engine with so many tensor parallel workers, each on a core of its own: left to
    itself, vLLM has all of them wait for each other on all cores.
    """
    if workers == 1:
        return {}, {}
    return {"tensor-parallel-size": workers}, {"VLLM_CPU_OMP_THREADS_BIND": "|".join(map(str, range(workers)))}


def prompt(seed: int, length: int) -> list[int]:
    """Random tokens: no two seeds share a block."""
    rng = random.Random(seed)  # noqa: S311 - nothing secret
    return [rng.randrange(3, 500) for _ in range(length)]


def complete(base_url: str, tokens: list[int], answer_tokens: int = 8, model: str = "demo") -> Answer:
    """Greedy completion of a prompt given as tokens, streamed."""
    body = {
        "model": model,
        "prompt": tokens,
        "max_tokens": answer_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "return_token_ids": True,
    }
    found: list[int] = []
    first: float | None = None
    began = time.perf_counter()
    with httpx.stream("POST", f"{base_url}/v1/completions", json=body, timeout=ANSWER_LIMIT_SECONDS) as response:
        response.raise_for_status()
        for line in _lines(response):
            if line.startswith(b"data: {"):
                first = first or time.perf_counter() - began
                found += json.loads(line[6:])["choices"][0].get("token_ids") or []
    if first is None:
        raise RuntimeError("the engine answered without a token")
    return Answer(first, tuple(found))


def _lines(response: httpx.Response) -> Iterator[bytes]:
    """Lines as server-sent events have them. httpx's own also end at U+0085, which the model may say."""
    rest = b""
    for part in response.iter_bytes():
        *lines, rest = (rest + part).split(b"\n")
        yield from lines


def metrics(base_url: str) -> dict[tuple[str, ...], float]:
    """Samples by name and the values of their own labels, in the order of the labels' names."""
    text = httpx.get(f"{base_url}/metrics", timeout=ANSWER_LIMIT_SECONDS).text
    found: dict[tuple[str, ...], float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = [value for key, value in sorted(sample.labels.items()) if key not in ("engine", "model_name")]
            found[sample.name, *labels] = sample.value
    return found


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
