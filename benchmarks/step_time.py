"""What storing to the host costs the engine's steps: two engines side by side, one without a connector.

Each prompt is new, so that every step of its prefill stores what the step before has computed. The two are asked in
turn, never at once, and each of them first half of the time.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from app.demo.model import build_demo_model
from benchmarks.real_engine import HOST_TIER, complete, metrics, prompt, running_engine

LENGTH, ANSWER = 8_000, 48
#: A tier that the first prompts fill, so that stores evict and no memory is touched for the first time.
HOST_BYTES = 40_000_000
WARM_UP = 5
KINDS = ("without", "with")


class Seconds(NamedTuple):
    """Of one request: the prefill and each token of the answer."""

    prefill: float
    token: float


def ask(base_url: str, tokens: list[int]) -> Seconds:
    """One request."""
    began = time.perf_counter()
    answer = complete(base_url, tokens, ANSWER)
    return Seconds(answer.ttft_seconds, (time.perf_counter() - began - answer.ttft_seconds) / (ANSWER - 1))


def measure(urls: dict[str, str], rounds: int) -> dict[str, Any]:
    """Medians of both engines, and of the ratios of neighbours in time."""
    for number in range(WARM_UP):
        for url in urls.values():
            ask(url, prompt(number, LENGTH))
    stored = _stored(urls["with"])
    found: dict[str, list[Seconds]] = {kind: [] for kind in KINDS}
    for number in range(rounds):
        tokens = prompt(1_000 + number, LENGTH)
        for kind in KINDS if number % 2 else reversed(KINDS):
            found[kind].append(ask(urls[kind], tokens))
    row: dict[str, Any] = {"rounds": rounds, "stored_bytes": _stored(urls["with"]) - stored}
    for part in Seconds._fields:
        without, with_ = ([getattr(seconds, part) for seconds in found[kind]] for kind in KINDS)
        row[f"{part}_without_seconds"], row[f"{part}_with_seconds"] = median(without), median(with_)
        row[f"{part}_ratio"] = median(one / other for one, other in zip(with_, without, strict=True))
    return row


def _stored(base_url: str) -> float:
    return metrics(base_url)["vllm:kv_offload_store_bytes_total",]


def main() -> int:
    """Command line entry."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.step_time", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    extra = {**HOST_TIER["kv_connector_extra_config"], "cpu_bytes_to_use": HOST_BYTES}
    tiers = {"without": None, "with": HOST_TIER | {"kv_connector_extra_config": extra}}
    with tempfile.TemporaryDirectory(prefix="tierdeck-step-") as directory, ExitStack() as engines:
        model = build_demo_model(Path(directory) / "demo")
        urls = {
            kind: engines.enter_context(running_engine(model, Path(directory) / f"{kind}.log", tier)).base_url
            for kind, tier in tiers.items()
        }
        row = measure(urls, arguments.rounds)
    print(json.dumps(row) if arguments.json else table(row))
    return 0


def table(row: dict[str, Any]) -> str:
    """For people."""
    lines = [f"{'':<24} {'without':>10} {'with':>10} {'ratio':>7}"]
    for part, what in (("prefill", f"prefill, {LENGTH} tokens"), ("token", "token of the answer")):
        without, with_ = row[f"{part}_without_seconds"] * 1e3, row[f"{part}_with_seconds"] * 1e3
        lines.append(f"{what:<24} {without:>7.1f} ms {with_:>7.1f} ms {row[f'{part}_ratio']:>7.3f}")
    return "\n".join([*lines, f"({row['rounds']} prompts, {row['stored_bytes'] / 1e6:.0f} MB stored meanwhile)"])


if __name__ == "__main__":
    sys.exit(main())
