"""How the host tier's memory is split into token slots and state slots; pure, standard library only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

#: A session length that neither starves long sessions of blocks nor short ones of states.
DEFAULT_REFERENCE_TOKENS: Final = 65_536
#: Where prefixes of several sessions part, a state is worth keeping as well.
JUNCTION_STATES: Final = 1
REPLAY_STATES: Final = 1


class SizingError(ValueError):
    """The budget holds no session at all; the sentence says how much it takes."""

    def __init__(self, least_bytes: int) -> None:
        super().__init__(f"it holds no session: write at least {least_bytes} bytes")
        self.least_bytes = least_bytes


@dataclass(frozen=True)
class SlotPlan:
    """Slots of each worker. Every worker has the same number: a slot is spread over all of them."""

    token_slots: int
    state_slots: int


def plan_slots(
    budget_bytes: int,
    world_size: int,
    token_slot_bytes: int | float,
    state_slot_bytes: int | float,
    block_tokens: int,
    reference_tokens: int | None,
    retention_interval: int | None,
) -> SlotPlan:
    """Split `budget_bytes` (over all workers); slot bytes are per worker and over all layers.

    `retention_interval` is the engine's: None keeps a state at every block, 0 only the newest, n also
    one every n tokens. Without reference length, the default one is used.
    """
    worker_bytes = budget_bytes // world_size
    if state_slot_bytes == 0:
        return _at_least_one(SlotPlan(int(worker_bytes // token_slot_bytes), 0), world_size * token_slot_bytes)
    if token_slot_bytes == 0:
        return _at_least_one(SlotPlan(0, int(worker_bytes // state_slot_bytes)), world_size * state_slot_bytes)
    if retention_interval is None:
        pair_bytes = token_slot_bytes + state_slot_bytes
        pairs = int(worker_bytes // pair_bytes)
        return _at_least_one(SlotPlan(pairs, pairs), world_size * pair_bytes)
    reference = reference_tokens or DEFAULT_REFERENCE_TOKENS
    blocks = -(-reference // block_tokens)
    states = states_per_request(reference, retention_interval)
    return _by_reference(worker_bytes, world_size, token_slot_bytes, state_slot_bytes, blocks, states)


def states_per_request(reference_tokens: int, retention_interval: int) -> int:
    """States that a request of reference length keeps: replay boundary, periodic ones, one junction."""
    periodic = reference_tokens // retention_interval if retention_interval else 0
    return REPLAY_STATES + periodic + JUNCTION_STATES


def _by_reference(
    worker_bytes: int, world_size: int, token_bytes: float, state_bytes: float, blocks: int, states: int
) -> SlotPlan:
    """As many whole requests as fit; the rest begins one more: its states first, then its blocks.

    The states of the request that fits only in part come first because without them its blocks are
    of no use, while fewer blocks still serve a shorter session.
    """
    whole = int(worker_bytes // (blocks * token_bytes + states * state_bytes))
    left_bytes = worker_bytes - whole * (blocks * token_bytes + states * state_bytes)
    begun = left_bytes >= states * state_bytes + token_bytes
    state_slots = states * (whole + begun)
    if state_slots == 0:  # less than one request's states: a replay state and a junction must do
        state_slots = min(states, REPLAY_STATES + JUNCTION_STATES)
    token_slots = int((worker_bytes - state_slots * state_bytes) // token_bytes)
    least = world_size * (token_bytes + min(states, REPLAY_STATES + JUNCTION_STATES) * state_bytes)
    return _at_least_one(SlotPlan(token_slots, state_slots), least)


def _at_least_one(plan: SlotPlan, least_bytes: float) -> SlotPlan:
    if plan.token_slots < 0 or plan.state_slots < 0 or plan.token_slots + plan.state_slots == 0 or _starved(plan):
        raise SizingError(-int(-least_bytes // 1))
    return plan


def _starved(plan: SlotPlan) -> bool:
    return plan.state_slots > 0 and plan.token_slots < 1
