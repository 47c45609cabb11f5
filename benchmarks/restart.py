"""Sessions that come back after the engine was ended or killed: how much of what was in host memory is served.

`python -m benchmarks.restart` takes about a minute per repetition: each one ends the engine in another way (SIGTERM
or SIGKILL; API server, core or worker; idle, in the middle of a store or of a load) and starts it again. 18
repetitions are all kinds; a worker is a process of its own also where there is only one.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import math
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import httpx
import psutil

from app.demo.model import build_demo_model
from app.supervisor.processes import Process
from app.supervisor.sharedmemory import files_of, remove_unused
from benchmarks.real_engine import HOST_TIER, Answer, EngineProcess, complete, metrics, parallel, prompt, running_engine
from engine.config import EVICTION_POLICIES
from engine.residency_place import ID_VARIABLE, directory_of

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - the shared-memory mount itself is what is meant
HITS = ("vllm:external_prefix_cache_hits_total",)
#: Sessions that push each other out of a "VRAM" of some 20,000 tokens: what is loaded comes from the host.
LENGTHS = (4_000, 8_000, 12_000)
FLAGS = {"kv-cache-memory-bytes": 24_000_000, "max-model-len": 13_000}
BLOCK = 384
SETTLE_SECONDS = 2.0

SIGNALS = {"SIGTERM": signal.SIGTERM, "SIGKILL": signal.SIGKILL}
TARGETS = {"API server": "", "core": "VLLM::EngineCor", "worker": "VLLM::Worker"}
MOMENTS = ("idle", "storing", "loading")


@dataclass(frozen=True)
class Ending:
    """How an engine is ended."""

    signal: str
    target: str
    moment: str


@dataclass(frozen=True)
class Row:
    """One restart: tokens in whole blocks that were there before and came from the host after."""

    signal: str
    target: str
    moment: str
    resident_tokens: int
    served_tokens: float
    outputs_equal: bool
    host_seconds: float
    cold_seconds: float
    left_over: list[str]
    said: list[str]

    @property
    def share(self) -> float:
        """Of what was resident."""
        return self.served_tokens / self.resident_tokens


def endings(count: int, first: int = 0) -> list[Ending]:
    """As many as asked for, from all kinds in turn, beginning with kind number `first`."""
    kinds = [Ending(*kind) for kind in itertools.product(SIGNALS, TARGETS, MOMENTS)]
    # Neighbours differ in everything, so that a short run sees all kinds of each.
    order = [kinds[number * 5 % len(kinds)] for number in range(len(kinds))]
    return list(itertools.islice(itertools.cycle(order), first, first + count))


def find(pid: int, target: str) -> psutil.Process:
    """Which process is meant, of the engine whose API server has this pid; of several workers the last one."""
    main = psutil.Process(pid)
    if not TARGETS[target]:
        return main
    return [child for child in main.children(recursive=True) if TARGETS[target] in _title(child)][-1]


def _title(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.NoSuchProcess):
        return " ".join([process.name(), *process.cmdline()])
    return ""


def end(engine: EngineProcess, ending: Ending, resident: list[int], seed: int) -> None:
    """Begin what is to be interrupted, send the signal, and wait until every process has gone."""
    tree = [psutil.Process(engine.process.pid), *psutil.Process(engine.process.pid).children(recursive=True)]
    files = files_of(Process(each.pid, 0.0) for each in tree)
    victim = find(engine.process.pid, ending.target)
    with _busy(engine.base_url, ending.moment, resident, seed):
        victim.send_signal(SIGNALS[ending.signal])
        _, alive = psutil.wait_procs(tree, timeout=60)
        for process in alive:
            process.kill()
        psutil.wait_procs(alive, timeout=60)
    remove_unused(files)  # as the deck does: vLLM's own working files stay behind when it is killed


@contextlib.contextmanager
def _busy(url: str, moment: str, resident: list[int], seed: int) -> Iterator[None]:
    """A request under way: a new prompt is stored as it is computed, one from the host is loaded."""
    if moment == "idle":
        yield
        return
    tokens = prompt(seed, LENGTHS[-1]) if moment == "storing" else resident
    asking = threading.Thread(target=_ask, args=(url, tokens), daemon=True)
    asking.start()
    # What is tried is any moment of it: a store of this prompt takes seconds, a load a tenth of one.
    time.sleep(0.5 + seed % 7 * 0.4 if moment == "storing" else 0.02 + seed % 7 * 0.02)
    yield
    asking.join(60)


def _ask(url: str, tokens: list[int]) -> None:
    # It ends in the middle: that is the point. Instead of a choice, an engine on its way out sends an error.
    with contextlib.suppress(httpx.HTTPError, RuntimeError, KeyError):
        complete(url, tokens)


class Rig:
    """One model, one identity, engine after engine."""

    def __init__(self, directory: Path, model: Path, identifier: str, policy: str = "lru", workers: int = 1) -> None:
        self.model = model
        self.flags, self.environment = parallel(workers)
        self.log = directory / "engine.log"  # of the last start
        self.identifier = identifier
        self.config: dict[str, Any] = json.loads(json.dumps(HOST_TIER))
        self.config["kv_connector_extra_config"]["eviction_policy"] = policy

    @property
    def memory(self) -> Path:
        """Where the host memory lies."""
        return directory_of(self.identifier)

    @contextlib.contextmanager
    def engine(self, **extra: Any) -> Iterator[EngineProcess]:
        """A start of the engine."""
        config = self.config | {"kv_connector_extra_config": self.config["kv_connector_extra_config"] | extra}
        environment = self.environment | {ID_VARIABLE: self.identifier}
        with running_engine(self.model, self.log, config, environment, FLAGS | self.flags) as engine:
            yield engine

    def left_over(self) -> list[str]:
        """Host memory of ours that is not this engine's."""
        return sorted(_shared_files(self.identifier) - {self.memory.name})

    def forget(self) -> None:
        """Give everything back."""
        shutil.rmtree(self.memory, ignore_errors=True)


def _shared_files(identifier: str) -> set[str]:
    """Of this engine: other programs' come and go meanwhile."""
    return {path.name for path in SHARED_MEMORY.glob(f"tierdeck-{identifier}*")}


def whole_blocks(length: int) -> int:
    """Tokens of a prompt that can come from the host: the last token is always computed."""
    return (length - 1) // BLOCK * BLOCK


def run(rig: Rig, kinds: list[Ending], seconds: float = math.inf) -> list[Row]:
    """Fill the tier once; then end, start, ask for the same sessions, again and again, until `seconds` are over."""
    began = time.monotonic()
    prompts = [prompt(7000 + length, length) for length in LENGTHS]
    with rig.engine() as engine:
        cold = [complete(engine.base_url, tokens) for tokens in prompts]
        time.sleep(SETTLE_SECONDS)  # stores go on after the answer
        end(engine, kinds[0], prompts[0], 1)
    rows = []
    for number, ending in enumerate(kinds):
        with rig.engine() as engine:
            complete(engine.base_url, prompt(1, 300))  # the first request of an engine is slower
            before = metrics(engine.base_url).get(HITS, 0.0)
            back = [complete(engine.base_url, tokens) for tokens in prompts]
            served = metrics(engine.base_url)[HITS] - before
            rows.append(_row(ending, cold, back, served, rig))
            print(_line(rows[-1]), *rows[-1].said, sep="\n  ", file=sys.stderr, flush=True)
            last = number + 1 == len(kinds) or time.monotonic() - began > seconds
            end(engine, Ending("SIGTERM", "API server", "idle") if last else kinds[number + 1], prompts[0], number + 2)
        if last:
            break
    return rows


def _row(ending: Ending, cold: list[Answer], back: list[Answer], served: float, rig: Rig) -> Row:
    return Row(
        **asdict(ending),
        resident_tokens=sum(whole_blocks(length) for length in LENGTHS),
        served_tokens=served,
        outputs_equal=[answer.tokens for answer in back] == [answer.tokens for answer in cold],
        host_seconds=median(answer.ttft_seconds for answer in back),
        cold_seconds=median(answer.ttft_seconds for answer in cold),
        left_over=rig.left_over(),
        said=[line.strip() for line in rig.log.read_text().splitlines() if "Host tier:" in line and "WARNING" in line],
    )


def _line(row: Row) -> str:
    return (
        f"{row.signal:<8} {row.target:<11} {row.moment:<8} {row.share:>7.1%} {row.cold_seconds:>7.2f} "
        f"{row.host_seconds:>7.3f}  {'yes' if row.outputs_equal else 'NO'}"
    )


def main() -> int:
    """Command line entry; non-zero when an output differed or less than 95% came back."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.restart", description=__doc__)
    parser.add_argument("--repetitions", type=int, default=6)
    parser.add_argument("--first", type=int, default=0, help="kind of the first one; there are 18")
    parser.add_argument("--policy", default="value", choices=EVICTION_POLICIES)
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin no repetition after this time")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tierdeck-restart-") as directory:
        model = build_demo_model(Path(directory) / "demo")
        rig = Rig(Path(directory), model, f"restart-{os.getpid()}", arguments.policy)
        kinds = endings(arguments.repetitions, arguments.first)
        try:
            rows = run(rig, kinds, arguments.seconds)
        finally:
            rig.forget()
    if arguments.json:
        print(json.dumps([asdict(row) | {"share": row.share} for row in rows]))
    else:
        print("signal   to          moment   resident cold s  host s  same tokens")
        print("\n".join(_line(row) for row in rows))
    good = all(row.outputs_equal and row.share >= 0.95 and not row.left_over for row in rows)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
