"""Time to the first token of a session: computed anew, back from host memory, still in VRAM.

`python -m benchmarks.restore` starts the demo engine by itself and takes a few minutes.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from app.demo.model import build_demo_model
from benchmarks.real_engine import Answer, complete, metrics, prompt, running_engine

LENGTHS = (4_000, 12_000, 30_000)
KINDS = ("cold", "vram", "host")
HITS = ("vllm:external_prefix_cache_hits_total",)


@dataclass(frozen=True)
class Round:
    """All lengths once: answers by length and kind, and the tokens that came from the host."""

    answers: dict[tuple[int, str], Answer]
    host_tokens: float


def measure(base_url: str, number: int) -> Round:
    """Each prompt cold, again at once, and again after two others have pushed it out of VRAM."""
    prompts = {length: prompt(1000 * number + length, length) for length in LENGTHS}
    answers: dict[tuple[int, str], Answer] = {}
    for length, tokens in prompts.items():
        answers[length, "cold"] = complete(base_url, tokens)
        answers[length, "vram"] = complete(base_url, tokens)
    for other in range(2):
        complete(base_url, prompt(500_000 + 10 * number + other, LENGTHS[-1]), 1)
    before = metrics(base_url)[HITS]
    for length, tokens in prompts.items():
        answers[length, "host"] = complete(base_url, tokens)
    return Round(answers, metrics(base_url)[HITS] - before)


def summary(rounds: list[Round]) -> list[dict[str, Any]]:
    """One row per length: medians in seconds, their ratios, and whether all tokens were equal."""
    rows = []
    for length in LENGTHS:
        cold, vram, host = (median(each.answers[length, kind].ttft_seconds for each in rounds) for kind in KINDS)
        equal = all(len({each.answers[length, kind].tokens for kind in KINDS}) == 1 for each in rounds)
        rows.append(
            {
                "tokens": length,
                "cold_seconds": cold,
                "host_seconds": host,
                "vram_seconds": vram,
                "cold_to_host": cold / host,
                "host_to_vram": host / vram,
                "outputs_equal": equal,
            }
        )
    return rows


def main() -> int:
    """Command line entry; non-zero when an output differed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.restore", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tierdeck-restore-") as directory:
        model = build_demo_model(Path(directory) / "demo")
        with running_engine(model, Path(directory) / "engine.log") as engine:
            complete(engine.base_url, prompt(1, 2_000))  # the first request of an engine is slower
            rounds = [measure(engine.base_url, number) for number in range(arguments.rounds)]
    rows = summary(rounds)
    host_tokens = [each.host_tokens for each in rounds]
    print(
        json.dumps({"rounds": len(rounds), "host_tokens": host_tokens, "rows": rows}) if arguments.json else table(rows)
    )
    return 0 if all(row["outputs_equal"] for row in rows) else 1


def table(rows: list[dict[str, Any]]) -> str:
    """For people."""
    head = f"{'tokens':>8} {'cold s':>8} {'host s':>8} {'VRAM s':>8} {'cold/host':>10} {'host/VRAM':>10}  same tokens"
    lines = [
        f"{row['tokens']:>8} {row['cold_seconds']:>8.2f} {row['host_seconds']:>8.3f} {row['vram_seconds']:>8.3f} "
        f"{row['cold_to_host']:>10.1f} {row['host_to_vram']:>10.2f}  {'yes' if row['outputs_equal'] else 'NO'}"
        for row in rows
    ]
    return "\n".join([head, *lines])


if __name__ == "__main__":
    sys.exit(main())
