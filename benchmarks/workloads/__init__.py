"""Workloads by name, made from a seed: those the policy was tuned on, and others like them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from benchmarks.trace import Trace
from benchmarks.workloads import agents, chats, heldout, shared

Family = Callable[[int], Trace]

TUNING: Final[Mapping[str, Family]] = {
    "few_long": chats.few_long,
    "field_mix": agents.field_mix,
    "agent_field": agents.agent_field,
    "agent": agents.agent,
    "mixed": chats.mixed,
    "shared_sys": shared.shared_sys,
    "bursty": shared.bursty,
    "multiturn": chats.multiturn,
    "rag": shared.rag,
}
HELD_OUT: Final[Mapping[str, Family]] = {
    "team": heldout.team,
    "support": heldout.support,
    "coding": heldout.coding,
    "classes": heldout.classes,
    "writers": heldout.writers,
    "around_the_clock": heldout.around_the_clock,
}
ALL: Final[Mapping[str, Family]] = {**TUNING, **HELD_OUT}
