"""One model's host memory in both layouts: slots of a static split that fill no whole pages of the machine, and pages
of one arena.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal

from engine.layout import GroupLayout, HostLayout
from engine.page_arena import page_bytes
from engine.sizing import SlotPlan
from tests.unit.engine.arena_rig import ArenaEngine
from tests.unit.engine.chains import CHUNK, Clock
from tests.unit.engine.residency_rig import Engine, plan_of

Kind = Literal["split", "arena"]
BOTH_WAYS: Final[tuple[tuple[Kind, Kind], ...]] = (("split", "arena"), ("arena", "split"))

TOKEN_BYTES, STATE_BYTES = 10_000, 14_000
PAGE: Final = page_bytes(TOKEN_BYTES, STATE_BYTES)
#: A block and a state in pages.
TOKEN_PAGES, STATE_PAGES = 1, 2


def split_layout(token_slots: int, state_slots: int, states: bool = True) -> HostLayout:
    """Blocks of one group, states of two; or attention alone."""
    state_bytes = STATE_BYTES if states else 0
    return HostLayout(_groups(states), 1, TOKEN_BYTES, state_bytes, SlotPlan(token_slots, state_slots if states else 0))


def arena_layout(pages: int, states: bool = True) -> HostLayout:
    """The same slots in pages."""
    state_bytes = STATE_BYTES if states else 0
    return HostLayout(_groups(states), 1, TOKEN_BYTES, state_bytes, SlotPlan(0, 0), pages, PAGE)


def _groups(states: bool) -> tuple[GroupLayout, ...]:
    groups = (
        GroupLayout(0, 0, "token", CHUNK, TOKEN_BYTES, 1, 0),
        GroupLayout(1, 1, "state", CHUNK, STATE_BYTES // 2, 1, 0),
        GroupLayout(2, 2, "state", CHUNK, STATE_BYTES // 2, 2, STATE_BYTES // 2),
    )
    return groups if states else groups[:1]


def layout_of(kind: Kind, blocks: int, states: int, with_states: bool = True) -> HostLayout:
    """Room for so many blocks and states."""
    if kind == "split":
        return split_layout(blocks, states, with_states)
    return arena_layout(blocks * TOKEN_PAGES + states * STATE_PAGES * with_states, with_states)


def start(
    mount: Path, run: str, layout: HostLayout, workers: int = 1, policy: str = "", clock: Clock | None = None
) -> Engine | ArenaEngine:
    """One start of an engine with this layout."""
    if layout.pages:
        return ArenaEngine(mount, run, layout, workers, policy or "value", clock)
    return Engine(plan_of(mount, run, layout, workers), layout, policy or "lru")
