"""The canary: a prompt that is written, forgotten by the device and read back from host memory. Pure.

It runs on an engine that serves nobody yet, so a first token that differs is a restore that went wrong.
Near ties are allowed for: the token of the cold answer must be there with nearly the same logprob.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass

from app.rollouts.said import Said, say

#: How far first-token logprobs lie apart on an engine without any cache, by batching alone.
TOLERANCE = 0.15
ANSWER_TOKENS = 8
#: Ids that every vocabulary has; which text they stand for does not matter.
IDS = range(16, 250)
SHORTEST_TOKENS = 512
#: Beyond the last boundary, so that the block before it is whole and its state is kept.
TAIL_TOKENS = 17


@dataclass(frozen=True)
class Shape:
    """Of the engine under test. `chunk_tokens` are kept as one; `longest_tokens` None = not told."""

    chunk_tokens: int
    longest_tokens: int | None


@dataclass(frozen=True)
class Answered:
    """The engine's answer: its tokens, and the likeliest first ones with their logprobs."""

    tokens: tuple[str, ...]
    first: Mapping[str, float]


def prompt(seed: str, shape: Shape) -> tuple[int, ...] | None:
    """Two whole chunks and a bit, unlike any other seed's; None when the engine takes no prompt that long."""
    length = max(2 * shape.chunk_tokens, SHORTEST_TOKENS) + TAIL_TOKENS
    if shape.longest_tokens is not None:
        length = min(length, shape.longest_tokens - ANSWER_TOKENS)
    if length <= shape.chunk_tokens:
        return None
    drawn = random.Random(seed)  # noqa: S311 - nothing secret
    return tuple(drawn.choice(IDS) for _ in range(length))


def difference(cold: Answered, back: Answered) -> float | None:
    """How far the logprobs of the cold answer's first token lie apart; None when it is not among the likeliest."""
    if not cold.tokens or not back.first:
        return None
    before, after = cold.first.get(cold.tokens[0]), back.first.get(cold.tokens[0])
    return None if before is None or after is None else abs(before - after)


def judge(cold: Answered, back: Answered, host_tokens: float | None) -> Said | None:
    """Why the canary failed; None when it passed. `host_tokens` came from the host tier; None = no tier."""
    if host_tokens is not None and host_tokens <= 0:
        return say(
            "The prompt was written, but none of it came back from host memory: external prefix cache hits stayed 0. "
            "Sessions would be computed again; look at block-size and mamba-cache-mode of a hybrid model."
        )
    apart = difference(cold, back)
    if apart is None:
        sentence = "The answer after reading back begins with %(back)s, the cold one with %(cold)s."
        return say(sentence, back=_named(back.tokens), cold=_named(cold.tokens))
    if apart > TOLERANCE:
        sentence = (
            "After reading back, the first token's logprob lies %(apart)s from the cold one; %(most)s is allowed."
        )
        return say(sentence, apart=f"{apart:.3f}", most=TOLERANCE)
    return None


def passed(length: int, cold: Answered, back: Answered, host_tokens: float | None) -> Said:
    """What was seen, with its numbers."""
    apart = f"{difference(cold, back) or 0.0:.3f}"
    if host_tokens is None:
        return say(
            "%(length)s tokens asked twice: the same first token, logprobs %(apart)s apart.", length=length, apart=apart
        )
    same = sum(one == other for one, other in zip(cold.tokens, back.tokens, strict=False))
    return say(
        "%(host)s of %(length)s tokens came back from host memory; %(same)s of %(of)s tokens are the same, "
        "first logprobs %(apart)s apart.",
        host=int(host_tokens),
        length=length,
        same=same,
        of=len(cold.tokens),
        apart=apart,
    )


def _named(tokens: tuple[str, ...]) -> str:
    return tokens[0] if tokens else "no token"
