"""The objects of the planner's page, from a plan. Pure."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from app.errors import InvalidInput
from app.planner.fields import Finding
from app.planner.geometry import Part
from app.planner.host import ArenaRow, SlotRow
from app.planner.plan import HostPlan, ModelPlan, Plan, parts_of
from app.planner.vram import VramPlan
from app.planner.wish import NAMES
from app.web import formats, plan_words
from app.web.blocks import Shell
from app.web.contexts import PlannerPage
from app.web.finding_words import told_error
from app.web.formats import Quantity
from app.web.i18n import Gettext, Language
from app.web.plan_blocks import (
    ArenaLine,
    KeyFigure,
    LayerLine,
    PlanFault,
    PlanResult,
    Remark,
    Segment,
    SlotLine,
    SlotsBlock,
    VramBlock,
    VramLine,
    WhyFactor,
)
from app.web.plan_form import form_groups

HREF = "/planner"


@dataclass(frozen=True)
class PlannerFacts:
    """What was typed, and what came of it. `origin` says where the form was filled from."""

    config: str
    asked: Mapping[str, Any]
    plan: Plan | None = None
    fault: InvalidInput | None = None
    origin: str = ""


def planner_page(shell: Shell, language: Language, facts: PlannerFacts) -> PlannerPage:
    """Form and result."""
    _ = language.gettext
    return PlannerPage(
        shell=shell,
        action_href=HREF,
        origin=facts.origin,
        config=facts.config,
        groups=form_groups(facts.asked, _),
        fault=None if facts.fault is None else _fault(facts.fault, _),
        result=None if facts.plan is None else plan_result(facts.plan, facts.asked, _),
    )


def plan_result(plan: Plan, asked: Mapping[str, Any], _: Gettext) -> PlanResult:
    """A plan as it is shown."""
    return PlanResult(
        figures=() if plan.model is None else _figures(plan.model, _),
        layers=() if plan.model is None else tuple(_layer(part, _) for part in parts_of(plan.model)),
        vram=None if plan.vram is None else _vram(plan.vram, _),
        slots=None if plan.host is None else _slots(plan.host, _),
        slots_missing=_slots_missing(plan, _),
        warnings=tuple(remark(found, _) for found in plan.findings if found.severity == "warning"),
        notes=tuple(remark(found, _) for found in plan.findings if found.severity == "note"),
        command=_command(asked),
    )


def remark(found: Finding, _: Gettext) -> Remark:
    """A finding with its tone and its words."""
    tone = "warning" if found.severity == "warning" else "off"
    return Remark(tone, plan_words.severity(found.severity, _), plan_words.finding(found, _))


def _fault(error: InvalidInput, _: Gettext) -> PlanFault:
    """An error of a field of the form stands there; one inside the config at the config."""
    path = error.path or ""
    return PlanFault(path if path in NAMES else "config", path, told_error(error, _))


def _slots_missing(plan: Plan, _: Gettext) -> str:
    if plan.host is not None:
        return ""
    if plan.wish.host is not None:
        return _("This model has chunked attention, which the host tier does not serve.")
    return _("Write the host tier's memory to see what each reference length buys.")


def _figures(model: ModelPlan, _: Gettext) -> tuple[KeyFigure, ...]:
    one, sizes = model.geometry, model.sizes
    figures = [
        KeyFigure(
            _("Each token"),
            formats.size(one.bytes_per_token(sizes.kv_bytes)),
            _("in %(layers)s layers that grow") % {"layers": one.growing_layers}
            + _each(one.bytes_per_token(sizes.kv_bytes, sizes.workers), sizes.workers, _),
        )
    ]
    if one.window_layers:
        text = _("in %(layers)s layers, at most") % {"layers": one.window_layers}
        figures.append(KeyFigure(_("Windows of a sequence"), formats.size(one.window_bytes(sizes.kv_bytes)), text))
    if one.recurrent_layers:
        text = _("in %(layers)s recurrent layers") % {"layers": one.recurrent_layers}
        text += _each(one.state_bytes(sizes.state_element_bytes, sizes.workers), sizes.workers, _)
        state = formats.size(one.state_bytes(sizes.state_element_bytes))
        figures.append(KeyFigure(_("State of a sequence"), state, text))
    block = KeyFigure(_("Block"), formats.count(model.block_tokens, _("tok")), _("shorter prompts never hit"))
    length = formats.count(model.length, _("tok"))
    whole = KeyFigure(
        _("A sequence of %(length)s") % {"length": length},
        formats.size(model.sequence_bytes),
        _("the engine reserves %(size)s") % {"size": formats.size(model.reserved_bytes)},
    )
    return (*figures, block, whole)


def _each(worker_bytes: int, workers: int, _: Gettext) -> str:
    """Beside a number of the whole model: what one of several workers holds."""
    if workers == 1:
        return ""
    return _("; %(size)s on each worker") % {"size": formats.size(worker_bytes)}


def _layer(part: Part, _: Gettext) -> LayerLine:
    per = {"token": _("per token"), "sequence": _("per sequence"), "none": ""}
    return LayerLine(
        layers=part.layers,
        kind=plan_words.layer_kind(part, _),
        keeps=formats.size(part.bytes) if part.layer_bytes else formats.NOTHING,
        per=per[part.per],
        why=tuple(
            tuple(WhyFactor(f"{one.value:,}", plan_words.factor(one.name, _)) for one in product)
            for product in part.why
        ),
    )


def _vram(vram: VramPlan, _: Gettext) -> VramBlock:
    sentence = _("%(sequences)s × %(length)s need %(needed)s; %(left)s are left for the KV cache of each card.") % {
        "sequences": vram.sequences,
        "length": formats.count(vram.length, _("tok")),
        "needed": formats.size(vram.needed_bytes),
        "left": formats.size(max(0, vram.kv_bytes)),
    }
    return VramBlock(
        badge=plan_words.verdict(vram.verdict, _),
        sentence=sentence,
        segments=_segments(vram, _),
        lines=tuple(
            VramLine(
                length=_whole(row.length),
                own=formats.size(row.own_bytes),
                own_sequences=formats.count(row.own_sequences),
                fp8=formats.size(row.fp8_bytes),
                fp8_sequences=formats.count(row.fp8_sequences),
                is_current=row.length == vram.length,
            )
            for row in vram.rows
        ),
    )


def _segments(vram: VramPlan, _: Gettext) -> tuple[Segment, ...]:
    """The card from left to right; what does not fit is cut off at its end."""
    used = min(vram.needed_bytes, max(0, vram.kv_bytes))
    parts = (
        ("weights", _("Weights"), vram.weights_bytes),
        ("runtime", _("Runtime"), vram.overhead_bytes),
        ("kv", _("KV needed"), used),
        ("free", _("KV free"), max(0, vram.kv_bytes - used)),
        ("margin", _("Not used"), vram.margin_bytes),
    )
    segments: list[Segment] = []
    start = 0.0
    for key, label, size in parts:
        width = min(100 - start, 100 * size / vram.gpu_bytes)
        segments.append(Segment(key, label, formats.size(size), round(start, 3), round(width, 3)))
        start += width
    return tuple(segments)


def _slots(host: HostPlan, _: Gettext) -> SlotsBlock:
    has_states = host.state_slot_bytes > 0
    facts = [
        _("%(total)s in all, %(worker)s per worker")
        % {"total": formats.size(host.host_bytes), "worker": formats.size(host.worker_bytes)},
        _("token slot %(size)s per worker, %(tokens)s")
        % {"size": formats.size(host.token_slot_bytes), "tokens": formats.count(host.chunk_tokens, _("tok"))},
    ]
    if has_states:
        facts.append(_("state slot %(size)s per worker") % {"size": formats.size(host.state_slot_bytes)})
    facts.append(
        _("sizes as the running engine has them") if host.layout_from == "engine" else _("sizes from the model")
    )
    arena = host.arena
    if arena is not None:
        facts.append(_("one arena, no split"))
    return SlotsBlock(
        heading=_("What does each reference length buy?") if arena is None else _("How many sessions come back?"),
        facts=tuple(facts),
        arena_lines=() if arena is None else tuple(_arena_line(row, host, _) for row in arena.rows),
        lines=tuple(_slot_line(row, _) for row in host.rows),
        has_states=has_states and arena is None,
        plot=_plot(host.rows) if arena is None else _arena_plot(arena.rows, host),
    )


def _arena_line(row: ArenaRow, host: HostPlan, _: Gettext) -> ArenaLine:
    return ArenaLine(
        length=_whole(row.session_tokens),
        session=formats.size(row.session_bytes),
        sessions=_whole(row.restorable_sessions),
        tokens_held=formats.count(row.tokens_held, _("tok")),
        is_current=row.session_tokens == host.session_tokens,
    )


def _arena_plot(rows: Sequence[ArenaRow], host: HostPlan) -> str:
    columns = {
        "at": [row.session_tokens for row in rows],
        "tokens": [row.tokens_held for row in rows],
        "sessions": [row.restorable_sessions for row in rows],
        "current": host.session_tokens,
    }
    return json.dumps(columns)


def _slot_line(row: SlotRow, _: Gettext) -> SlotLine:
    return SlotLine(
        reference=_whole(row.reference_tokens),
        token_slots=_whole(row.token_slots),
        state_slots=_whole(row.state_slots),
        tokens_held=formats.count(row.tokens_held, _("tok")),
        sessions=_whole(row.restorable_sessions),
        is_current=row.is_current,
    )


def _whole(count: int) -> Quantity:
    """A count in full: neighbours in a table differ in their last digits."""
    return Quantity(f"{count:,}", "", f"{count:,}")


def _plot(rows: Sequence[SlotRow]) -> str:
    columns = {
        "at": [row.reference_tokens for row in rows],
        "tokens": [row.tokens_held for row in rows],
        "states": [row.state_slots for row in rows],
        "sessions": [row.restorable_sessions for row in rows],
        "current": next((row.reference_tokens for row in rows if row.is_current), None),
    }
    return json.dumps(columns)


def _command(asked: Mapping[str, Any]) -> str:
    """The same question for a shell."""
    words = ["tierdeck", "plan", "--model", "config.json"]
    for name, value in asked.items():
        if name not in NAMES or value in (None, "", False) or (name, value) in USUAL:
            continue
        option = f"--{name.replace('_', '-')}"
        words += [option] if name == "mtp" else [option, str(value)]
    return shlex.join([*words, "--json"])


#: What the command would take anyway.
USUAL = {
    ("eviction_policy", "lru"),
    ("platform", "cuda"),
    ("kv_dtype", "auto"),
    ("state_dtype", "auto"),
    ("retention_interval", "0"),
}
