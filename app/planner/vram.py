"""The VRAM budget: what utilization leaves for the KV cache, and what fits there. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from app.errors import InvalidInput

Verdict = Literal["fits", "tight", "does_not_fit"]
#: Above this share of the KV memory a plan is tight: other lengths, fragments and peaks need room too.
TIGHT_RATIO: Final = 0.9
#: Assumed for temporary tensors and the runtime until the engine has measured its own at start.
USUAL_OVERHEAD_BYTES: Final = 2 << 30

Reserve = Callable[[int], int]
"""Length of a sequence -> bytes that it reserves on a worker."""


@dataclass(frozen=True)
class Card:
    """One worker's memory and what is asked of it. Weights are the worker's part."""

    gpu_bytes: int
    utilization: float
    weights_bytes: int
    overhead_bytes: int
    kv_cache_bytes: int | None
    """Given directly, in place of what utilization leaves."""
    sequences: int
    length: int


@dataclass(frozen=True)
class VramRow:
    """One sequence of a length, in the model's own type and in fp8."""

    length: int
    own_bytes: int
    own_sequences: int
    fp8_bytes: int
    fp8_sequences: int


@dataclass(frozen=True)
class VramPlan:
    """Per worker."""

    gpu_bytes: int
    usable_bytes: int
    margin_bytes: int
    weights_bytes: int
    overhead_bytes: int
    kv_bytes: int
    """Left for the KV cache; below zero when the weights alone are too much."""
    needed_bytes: int
    sequences: int
    length: int
    verdict: Verdict
    rows: tuple[VramRow, ...]


def plan_vram(card: Card, reserve: Reserve, own: Reserve, fp8: Reserve, lengths: Sequence[int]) -> VramPlan:
    """Fits, tight or not: `reserve` is for the type asked for, `own` and `fp8` stand side by side in the rows."""
    usable = int(card.gpu_bytes * card.utilization)
    kv_bytes = _kv_bytes(card, usable)
    needed = card.sequences * reserve(card.length)
    return VramPlan(
        gpu_bytes=card.gpu_bytes,
        usable_bytes=usable,
        margin_bytes=card.gpu_bytes - usable,
        weights_bytes=card.weights_bytes,
        overhead_bytes=card.overhead_bytes,
        kv_bytes=kv_bytes,
        needed_bytes=needed,
        sequences=card.sequences,
        length=card.length,
        verdict=_verdict(needed, kv_bytes),
        rows=tuple(_row(length, kv_bytes, own, fp8) for length in lengths),
    )


def _kv_bytes(card: Card, usable: int) -> int:
    if card.kv_cache_bytes is None:
        return usable - card.weights_bytes - card.overhead_bytes
    if card.kv_cache_bytes + card.weights_bytes > card.gpu_bytes:
        sentence = (
            "kv_cache_memory_bytes is %(asked)s: with %(weights)s of weights that is more than the card's %(card)s."
        )
        values = {"asked": card.kv_cache_bytes, "weights": card.weights_bytes, "card": card.gpu_bytes}
        raise InvalidInput(sentence, path="kv_cache_memory_bytes", values=values)
    return card.kv_cache_bytes


def _verdict(needed: int, there: int) -> Verdict:
    if needed > there:
        return "does_not_fit"
    return "tight" if needed > there * TIGHT_RATIO else "fits"


def _row(length: int, kv_bytes: int, own: Reserve, fp8: Reserve) -> VramRow:
    room = max(0, kv_bytes)
    return VramRow(length, own(length), room // own(length), fp8(length), room // fp8(length))
