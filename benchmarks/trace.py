"""Traces of requests: what was asked when, and which sessions begin like others. JSON Lines.

First line: {"format": "tierdeck-trace/1", "family", "seed", "block_tokens"}. Then in time order one line
per request: t (seconds), session, prompt_tokens, output_tokens. Before a session is first used, a line
{"define": session, "fork": {"session": parent, "tokens": n}} may say that its first n tokens, in whole
blocks, are those of another one; all its other blocks are its own.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

FORMAT: Final = "tierdeck-trace/1"


@dataclass(frozen=True)
class Ask:
    """One request."""

    at: float
    session: int
    prompt_tokens: int
    output_tokens: int


@dataclass
class Trace:
    """Requests in time order, and from whom sessions were forked: (parent, tokens)."""

    family: str
    seed: int
    block_tokens: int
    asks: list[Ask] = field(default_factory=list)
    forks: dict[int, tuple[int, int]] = field(default_factory=dict)

    def lines(self) -> Iterable[str]:
        """As a file has them."""
        yield _line(format=FORMAT, family=self.family, seed=self.seed, block_tokens=self.block_tokens)
        known: set[int] = set()
        for ask in self.asks:
            yield from self._definitions(ask.session, known)
            yield _line(
                t=round(ask.at, 3),
                session=ask.session,
                prompt_tokens=ask.prompt_tokens,
                output_tokens=ask.output_tokens,
            )

    def _definitions(self, session: int, known: set[int]) -> Iterable[str]:
        if session in known:
            return
        known.add(session)
        if session in self.forks:
            parent, tokens = self.forks[session]
            yield from self._definitions(parent, known)
            yield _line(define=session, fork={"session": parent, "tokens": tokens})


def read_trace(path: Path) -> Trace:
    """The trace in a file, or a sentence about the line that is none."""
    rows = [(number, json.loads(line)) for number, line in enumerate(path.read_text().splitlines(), 1) if line]
    if not rows or rows[0][1].get("format") != FORMAT:
        raise ValueError(f"{path} does not begin with the format {FORMAT}")
    head = rows[0][1]
    trace = Trace(head["family"], head["seed"], head["block_tokens"])
    for number, row in rows[1:]:
        try:
            _read(trace, row)
        except (KeyError, TypeError) as error:
            raise ValueError(f"{path}, line {number}: {error!r}") from error
    return trace


def _read(trace: Trace, row: dict[str, Any]) -> None:
    if "define" in row:
        trace.forks[row["define"]] = row["fork"]["session"], row["fork"]["tokens"]
    else:
        trace.asks.append(Ask(row["t"], row["session"], row["prompt_tokens"], row["output_tokens"]))


def _line(**row: Any) -> str:
    return json.dumps(row, separators=(",", ":"))


class Chains:
    """The block hashes of each session, as long as its longest prompt so far."""

    def __init__(self, trace: Trace) -> None:
        self._forks = trace.forks
        self._block_tokens = trace.block_tokens
        self._chains: dict[int, list[bytes]] = {}

    def chain(self, session: int, blocks: int) -> list[bytes]:
        """The first `blocks` hashes of a session."""
        chain = self._chains.get(session)
        if chain is None:
            parent, tokens = self._forks.get(session, (0, 0))
            shared = tokens // self._block_tokens
            chain = self._chains[session] = self.chain(parent, shared) if shared else []
        for number in range(len(chain), blocks):
            chain.append(b"%08x%08x" % (session, number))
        return chain[:blocks]
