"""Where the input of each request came from, as the engine tells its deck: lines added to a file beside the memory.

A client is told the sum of what was cached, and only if it asks; the scheduler knows both parts of every request, also
of those that were given up. Standard library only: both use it.
"""

from __future__ import annotations

import json
import os
import re
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from engine.residency_place import open_private

SERVED_NAME: Final = "served.jsonl"
OLDER_NAME: Final = "served.older.jsonl"
#: Of each of the two files.
MOST_BYTES: Final = 1 << 20
#: Of requests that ended since they were last written.
MOST_WAITING: Final = 10_000

#: What vLLM makes of the id it was asked with: one of n samples in front, the endpoint, the number of the prompt (or
#: of the turn with a tool), and eight random digits behind.
_SAMPLE: Final = re.compile(r"(\d+)_(?=[a-z])")
_RANDOM: Final = re.compile(r"-[0-9a-f]{8}$")
_PROMPT: Final = re.compile(r"-\d+$")
_TURN: Final = re.compile(r"_\d+$")
#: Whether an endpoint numbers its prompts.
_ENDPOINTS: Final = {
    "chatcmpl-": False,
    "generate-tokens-": False,
    "cmpl-": True,
    "embd-": True,
    "classify-": True,
    "score-": True,
    "pooling-": True,
}


@dataclass(frozen=True, slots=True)
class ServedRequest:
    """One request of the scheduler, ended. Tokens; what is neither from VRAM nor from host memory was computed."""

    id: str
    input_tokens: int
    vram_tokens: int
    host_tokens: int
    output_tokens: int


class ServedBook:
    """What the scheduler's requests came to. Used by its thread; another one may take from it."""

    def __init__(self) -> None:
        self._stats: dict[str, Any] = {}
        self._lost: set[str] = set()
        self._ended: deque[ServedRequest] = deque(maxlen=MOST_WAITING)

    def began(self, request: Any) -> None:
        """A `vllm.v1.request.Request` has its blocks. Its `PrefillStats` is filled in by vLLM until its first token."""
        stats = getattr(request, "prefill_stats", None)
        if stats is not None:  # None: it goes on after a preemption
            self._stats[request.request_id] = stats

    def lost(self, request_ids: Iterable[str]) -> None:
        """What these were to load from host memory was computed anew."""
        self._lost.update(found for found in request_ids if found in self._stats)

    def ended(self, request: Any) -> None:
        """Whatever it ended by. One that never had blocks is not told."""
        found, stats = request.request_id, self._stats.pop(request.request_id, None)
        if stats is not None:
            host = 0 if found in self._lost else stats.num_external_cached_tokens
            counts = request.num_prompt_tokens, stats.num_local_cached_tokens, host, request.num_output_tokens
            self._ended.append(ServedRequest(found, *counts))
        self._lost.discard(found)

    def take(self) -> list[ServedRequest]:
        """Those that ended since the last call."""
        return [self._ended.popleft() for _ in range(len(self._ended))]


class ServedFile:
    """Adds what a book has to the file."""

    def __init__(self, directory: Path, book: ServedBook, most_bytes: int = MOST_BYTES) -> None:
        self._path = directory / SERVED_NAME
        self._older = directory / OLDER_NAME
        self._book = book
        self._most_bytes = most_bytes

    def __call__(self, last: bool) -> None:
        """Once more. OSError if it cannot be written."""
        lines = "".join(json.dumps(_values(one), separators=(",", ":")) + "\n" for one in self._book.take())
        if not lines:
            return
        with os.fdopen(open_private(self._path), "r+b") as file:
            size = file.seek(0, 2)
            file.write(lines.encode())
        if size > self._most_bytes:
            self._path.replace(self._older)


def served_below(directory: Path) -> dict[str, ServedRequest]:
    """What was told by every scheduler of an engine, by the id that each request was asked with: of several prompts
    in one, the sum. OSError where it cannot be read.
    """
    found: dict[str, ServedRequest] = {}
    for name in (OLDER_NAME, SERVED_NAME):
        for path in sorted(directory.glob(f"engine-*/{name}")):
            for one in _read(path):
                key, sample = asked_as(one.id)
                found[key] = _sum(key, found.get(key), one, is_first=not sample)
    return found


def asked_as(internal_id: str) -> tuple[str, int]:
    """The id that a request was asked with, from the one in the scheduler; and which of n samples it is."""
    rest = _RANDOM.sub("", internal_id)
    sample = _SAMPLE.match(rest)
    rest = rest[sample.end() :] if sample else rest
    endpoint = next((found for found in _ENDPOINTS if rest.startswith(found)), "")
    rest = rest.removeprefix(endpoint)
    if _ENDPOINTS.get(endpoint):
        rest = _PROMPT.sub("", rest)
    if rest.startswith("resp_"):
        rest = _TURN.sub("", rest)
    return rest, int(sample[1]) if sample else 0


def _values(one: ServedRequest) -> list[str | int]:
    return [one.id, one.input_tokens, one.vram_tokens, one.host_tokens, one.output_tokens]


def _read(path: Path) -> Iterable[ServedRequest]:
    try:
        lines = path.read_text(errors="replace").split("\n")
    except FileNotFoundError:  # moved meanwhile
        return
    for line in lines:
        try:
            request_id, *counts = json.loads(line)
            yield ServedRequest(str(request_id), *(int(count) for count in counts))
        except (ValueError, TypeError):  # the engine was killed while it wrote it, or is writing it now
            continue


def _sum(key: str, before: ServedRequest | None, one: ServedRequest, is_first: bool) -> ServedRequest:
    """Samples share their prompt, which counts once."""
    counts = [one.input_tokens, one.vram_tokens, one.host_tokens] if is_first else [0, 0, 0]
    counts.append(one.output_tokens)
    if before is not None:
        earlier = (before.input_tokens, before.vram_tokens, before.host_tokens, before.output_tokens)
        counts = [sum(pair) for pair in zip(earlier, counts, strict=True)]
    return ServedRequest(key, *counts)
