"""Requests to a real engine, as tests and benchmarks send them."""

from __future__ import annotations

import json
import random
import time
from dataclasses import dataclass

import httpx
from prometheus_client.parser import text_string_to_metric_families

TIMEOUT_SECONDS = 300.0


@dataclass(frozen=True)
class Answer:
    """What came back: seconds to the first token, and the tokens."""

    ttft_seconds: float
    tokens: tuple[int, ...]


def prompt(seed: int, length: int) -> list[int]:
    """Random tokens: no two seeds share a block."""
    rng = random.Random(seed)
    return [rng.randrange(3, 500) for _ in range(length)]


def complete(base_url: str, tokens: list[int], answer_tokens: int = 8) -> Answer:
    """Greedy completion of a prompt given as tokens, streamed."""
    body = {
        "model": "demo",
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
    with httpx.stream("POST", f"{base_url}/v1/completions", json=body, timeout=TIMEOUT_SECONDS) as response:
        response.raise_for_status()
        for line in response.iter_lines():
            if line.startswith("data: {"):
                first = first or time.perf_counter() - began
                found += json.loads(line[6:])["choices"][0].get("token_ids") or []
    if first is None:
        raise RuntimeError("the engine answered without a token")
    return Answer(first, tuple(found))


def metrics(base_url: str) -> dict[tuple[str, ...], float]:
    """Samples by name and the values of their own labels (not `engine` and `model_name`)."""
    text = httpx.get(f"{base_url}/metrics", timeout=TIMEOUT_SECONDS).text
    found: dict[tuple[str, ...], float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = [value for key, value in sorted(sample.labels.items()) if key not in ("engine", "model_name")]
            found[sample.name, *labels] = sample.value
    return found
