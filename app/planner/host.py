"""The host tier's budget: what each reference length buys. The split itself is the connector's own. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from app.errors import InvalidInput
from engine.page_arena import page_bytes, pages_of
from engine.sizing import SizingError, plan_slots, states_per_request

SHORTEST_REFERENCE_TOKENS: Final = 4_096
#: Used where neither the model nor the reader says how long a sequence may be.
USUAL_LONGEST_TOKENS: Final = 262_144


@dataclass(frozen=True)
class SlotSizes:
    """A slot of each pool on one worker, over all layers and without padding."""

    token_bytes: int | float
    state_bytes: int | float
    chunk_tokens: int
    """Tokens of one token slot."""
    workers: int


@dataclass(frozen=True)
class Split:
    """What decides a split beside the slots' sizes."""

    host_bytes: int
    """Over all workers."""
    retention_interval: int | None
    """The engine's: None keeps a state at every block, 0 only the newest, n also one every n tokens."""
    reference_tokens: int | None = None
    """The current setting."""
    session_tokens: int | None = None
    """A typical session; None = as long as the reference."""


@dataclass(frozen=True)
class SlotRow:
    """What one reference length buys."""

    reference_tokens: int
    token_slots: int
    state_slots: int
    tokens_held: int
    restorable_sessions: int
    is_current: bool


@dataclass(frozen=True)
class ArenaRow:
    """Sessions of one length in an arena that blocks and states share."""

    session_tokens: int
    session_bytes: int
    """Over all workers."""
    restorable_sessions: int
    tokens_held: int


@dataclass(frozen=True)
class ArenaPlan:
    """One arena of pages on each worker: no split, so what fits depends on the sessions alone."""

    page_bytes: int
    pages: int
    rows: tuple[ArenaRow, ...]


def plan_arena(sizes: SlotSizes, split: Split, lengths: Sequence[int]) -> ArenaPlan:
    """How many sessions of each length an arena holds; InvalidInput when not even a block and a state fit."""
    size = page_bytes(int(sizes.token_bytes), int(sizes.state_bytes))
    pages = split.host_bytes // sizes.workers // size
    least = pages_of(int(sizes.token_bytes), size) + pages_of(int(sizes.state_bytes), size)
    if pages < least:
        raise _too_small(split, least * size * sizes.workers)
    return ArenaPlan(size, pages, tuple(_arena_row(sizes, split, length, size, pages) for length in lengths))


def _too_small(split: Split, least_bytes: int) -> InvalidInput:
    sentence = "host_bytes is %(asked)s: it holds no session: write at least %(least)s bytes."
    return InvalidInput(sentence, path="host_bytes", values={"asked": split.host_bytes, "least": least_bytes})


def _arena_row(sizes: SlotSizes, split: Split, length: int, size: int, pages: int) -> ArenaRow:
    blocks, states = _needs(sizes, split, length)
    session = blocks * pages_of(int(sizes.token_bytes), size) + states * pages_of(int(sizes.state_bytes), size)
    return ArenaRow(length, session * size * sizes.workers, pages // session, pages // session * length)


def reference_lengths(longest_tokens: int, current: int | None) -> list[int]:
    """Powers of two from 4k up to the longest sequence, that one itself, and the current setting."""
    steps = [SHORTEST_REFERENCE_TOKENS << power for power in range(24)]
    wanted = {step for step in steps if step <= longest_tokens} | {longest_tokens}
    return sorted(wanted | ({current} if current else set()))


def slot_rows(sizes: SlotSizes, split: Split, references: Sequence[int]) -> list[SlotRow]:
    """A row for each reference length; InvalidInput when the budget holds no session at all."""
    return [_row(sizes, split, reference) for reference in references]


def _row(sizes: SlotSizes, split: Split, reference: int) -> SlotRow:
    try:
        plan = plan_slots(
            split.host_bytes,
            sizes.workers,
            sizes.token_bytes,
            sizes.state_bytes,
            sizes.chunk_tokens,
            reference,
            split.retention_interval,
        )
    except SizingError as error:
        raise _too_small(split, error.least_bytes) from error
    sessions = _sessions(sizes, split, plan.token_slots, plan.state_slots, split.session_tokens or reference)
    return SlotRow(
        reference_tokens=reference,
        token_slots=plan.token_slots,
        state_slots=plan.state_slots,
        tokens_held=plan.token_slots * sizes.chunk_tokens,
        restorable_sessions=sessions,
        is_current=reference == split.reference_tokens,
    )


def _sessions(sizes: SlotSizes, split: Split, token_slots: int, state_slots: int, session_tokens: int) -> int:
    """Sessions whose blocks and states all find a slot: the pool that gives out first decides."""
    blocks, states = _needs(sizes, split, session_tokens)
    return min(token_slots // blocks, state_slots // states) if states else token_slots // blocks


def _needs(sizes: SlotSizes, split: Split, session_tokens: int) -> tuple[int, int]:
    """The blocks of a session, and the states that the engine keeps of it."""
    blocks = -(-session_tokens // sizes.chunk_tokens)
    if not sizes.state_bytes:
        return blocks, 0
    retention = split.retention_interval
    return blocks, blocks if retention is None else states_per_request(session_tokens, retention)
