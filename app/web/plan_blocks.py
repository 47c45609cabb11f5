"""What the planner's page is made of: frozen, ready to be shown, every word already in the reader's language."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from app.web.blocks import Choice, StateBadge
from app.web.formats import Quantity


@dataclass(frozen=True)
class PlanInput:
    """A field of the form, with what was typed into it. Sizes are shown in bytes and GiB beside."""

    name: str
    label: str
    value: str
    help: str = ""
    unit: str = ""
    kind: Literal["text", "size", "choice", "check"] = "text"
    choices: tuple[Choice, ...] = ()
    example: str = ""


@dataclass(frozen=True)
class PlanGroup:
    """Fields that belong together; the ones seldom needed are folded away."""

    label: str
    inputs: tuple[PlanInput, ...]
    is_folded: bool = False


@dataclass(frozen=True)
class KeyFigure:
    """One of the few numbers that matter, with what it comes from."""

    label: str
    value: Quantity
    beside: str


@dataclass(frozen=True)
class WhyFactor:
    """A number of a product and what it counts."""

    value: str
    label: str


@dataclass(frozen=True)
class LayerLine:
    """Layers of one kind: what they keep, and the products that it is the sum of."""

    layers: int
    kind: str
    keeps: Quantity
    per: str
    why: tuple[tuple[WhyFactor, ...], ...]


@dataclass(frozen=True)
class Segment:
    """A part of the card's memory, `start` and `width` in percent."""

    key: str
    label: str
    size: Quantity
    start: float
    width: float


@dataclass(frozen=True)
class VramLine:
    """Sequences of one length, in the model's own type and in fp8."""

    length: Quantity
    own: Quantity
    own_sequences: Quantity
    fp8: Quantity
    fp8_sequences: Quantity
    is_current: bool


@dataclass(frozen=True)
class VramBlock:
    """Does it fit the card?"""

    badge: StateBadge
    sentence: str
    segments: tuple[Segment, ...]
    lines: tuple[VramLine, ...]


@dataclass(frozen=True)
class SlotLine:
    """What one reference length buys."""

    reference: Quantity
    token_slots: Quantity
    state_slots: Quantity
    tokens_held: Quantity
    sessions: Quantity
    is_current: bool


@dataclass(frozen=True)
class ArenaLine:
    """How many sessions of one length an arena holds."""

    length: Quantity
    session: Quantity
    sessions: Quantity
    tokens_held: Quantity
    is_current: bool


@dataclass(frozen=True)
class SlotsBlock:
    """What does each reference length buy, or, without a split, how many sessions come back?

    `plot` is JSON for the drawing.
    """

    heading: str
    facts: tuple[str, ...]
    arena_lines: tuple[ArenaLine, ...]
    lines: tuple[SlotLine, ...]
    has_states: bool
    plot: str


@dataclass(frozen=True)
class Remark:
    """Something to know about the plan."""

    tone: str
    label: str
    text: str


@dataclass(frozen=True)
class PlanResult:
    """A plan as it is shown. Empty sentences stand where a budget was not asked for."""

    figures: tuple[KeyFigure, ...]
    layers: tuple[LayerLine, ...]
    vram: VramBlock | None
    slots: SlotsBlock | None
    slots_missing: str
    warnings: tuple[Remark, ...]
    notes: tuple[Remark, ...]
    command: str


@dataclass(frozen=True)
class PlanFault:
    """Why there is no plan, and the field it is about."""

    field: str
    path: str
    text: str
