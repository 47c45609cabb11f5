"""A running engine's own layout beside the one computed from the model: which of them a plan counts with. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from app.planner.fields import Finding
from app.planner.host import SlotSizes
from app.planner.plan import HostPlan, ModelPlan, Plan
from app.planner.size_text import size_text
from app.planner.wish import Wish
from engine.page_arena import pages_of

#: Sizes read from gauges are quotients; closer than this they are the same.
SAME_WITHIN: Final = 0.01


@dataclass(frozen=True)
class ToldLayout:
    """What a running engine tells of its slots, in bytes over all workers. None where it does not tell."""

    block_tokens: int | None = None
    token_slot_bytes: float | None = None
    state_slot_bytes: float | None = None


def same_layout(one: Wish, other: Wish) -> bool:
    """True when slots of both have the same size: then what an engine tells of one holds for the other."""
    return _layout(one) == _layout(other)


def told_slots(plan: Plan, told: ToldLayout) -> SlotSizes | None:
    """The slots' sizes on each worker as the engine tells them; None where it tells none, or has no slots of a size.

    In an arena its numbers say how much room there is, rounded to pages, not how large a slot is.
    """
    if plan.host is None or plan.model is None or plan.host.arena is not None or told.token_slot_bytes is None:
        return None
    workers, block = plan.model.sizes.workers, plan.model.block_tokens
    chunk = plan.host.chunk_tokens // block * (told.block_tokens or block)
    return SlotSizes(told.token_slot_bytes / workers, (told.state_slot_bytes or 0) / workers, chunk, workers)


def layout_findings(plan: Plan, told: ToldLayout) -> tuple[Finding, ...]:
    """Where the engine and the model's own fields disagree. `plan` is the one from the model."""
    if plan.model is None:
        return ()
    found = list(_block(plan.model, told))
    if plan.host is not None:
        found += _slots(plan.model, plan.host, told)
    return tuple(found)


def _layout(wish: Wish) -> tuple[object, ...]:
    engine, host = wish.engine, wish.host
    own = (engine.platform, engine.world_size, engine.kv_bytes, engine.state_dtype, engine.block_tokens)
    return own if host is None else (*own, host.is_split, host.blocks_per_chunk, host.chunk_tokens)


def _block(model: ModelPlan, told: ToldLayout) -> Iterable[Finding]:
    if told.block_tokens is not None and told.block_tokens != model.block_tokens:
        values = {"told": told.block_tokens, "planned": model.block_tokens}
        message = (
            f"The running engine has blocks of {told.block_tokens} tokens; "
            f"by the model's fields they would have {model.block_tokens}."
        )
        yield Finding("warning", "engine_block_differs", "block_tokens", message, values)


def _slots(model: ModelPlan, host: HostPlan, told: ToldLayout) -> Iterable[Finding]:
    workers = model.sizes.workers
    if values := _differing(_in_pages(host.token_slot_bytes, host) * workers, told.token_slot_bytes):
        message = (
            f"A token slot of the running engine takes {values['told']} over all workers; "
            f"by the model's fields it would take {values['planned']}."
        )
        yield Finding("warning", "engine_token_slot_differs", "host_bytes", message, values)
    if host.arena is not None:
        return  # of states it tells those in use alone
    if values := _differing(host.state_slot_bytes * workers, told.state_slot_bytes):
        message = (
            f"A state slot of the running engine takes {values['told']} over all workers; "
            f"by the model's fields it would take {values['planned']}."
        )
        yield Finding("warning", "engine_state_slot_differs", "host_bytes", message, values)


def _differing(planned: float, told: float | None) -> dict[str, str]:
    """Both in words; empty where they are the same or the engine does not tell."""
    if told is None or abs(told - planned) <= SAME_WITHIN * planned:
        return {}
    return {"told": size_text(int(told)), "planned": size_text(int(planned))}


def _in_pages(size: float, host: HostPlan) -> float:
    """What a slot takes of an arena: whole pages."""
    return size if host.arena is None else pages_of(int(size), host.arena.page_bytes) * host.arena.page_bytes
