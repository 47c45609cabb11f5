"""The planner's form: its fields, and what stands in them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from app.planner.wish import EVERY_BLOCK
from app.web.blocks import Choice
from app.web.i18n import Gettext
from app.web.plan_blocks import PlanGroup, PlanInput

GIB = 1 << 30
SIZES = (
    "host_bytes",
    "gpu_bytes",
    "weights_bytes",
    "kv_cache_memory_bytes",
    "overhead_bytes",
)
#: A form that nobody filled yet: enough to see every part of a plan but the card.
FIRST = {"host_bytes": "64 GiB", "reference_tokens": "65536", "session_tokens": "65536", "retention_interval": "0"}


def form_groups(asked: Mapping[str, Any], _: Gettext) -> tuple[PlanGroup, ...]:
    """Every field with its value."""
    values = {name: shown(name, value) for name, value in asked.items() if value is not None}
    return (
        PlanGroup(_("Engine"), _engine(values, _)),
        PlanGroup(_("Host tier"), _host(values, _)),
        PlanGroup(_("Card"), _card(values, _)),
        PlanGroup(_("More"), _more(values, _), is_folded=True),
    )


def shown(name: str, value: Any) -> str:
    """A value as it stands in its field: whole GiB as such."""
    if isinstance(value, bool):
        return "true" if value else ""
    if name in SIZES and isinstance(value, int) and value and value % GIB == 0:
        return f"{value // GIB} GiB"
    return str(value)


def _engine(values: Mapping[str, str], _: Gettext) -> tuple[PlanInput, ...]:
    return (
        _choice("platform", _("Platform"), values, (("cuda", _("GPU")), ("cpu", _("CPU")))),
        _text("world_size", _("Workers (tensor parallel)"), values, example="1"),
        _text("max_model_len", _("Longest sequence"), values, _("Empty: the model's own."), _("tokens")),
        _choice("kv_dtype", _("KV cache type"), values, (("auto", _("auto, 2 bytes")), ("fp8", _("fp8, 1 byte")))),
        _choice(
            "state_dtype",
            _("State type"),
            values,
            (("auto", "auto"), ("float32", "float32"), ("bfloat16", "bfloat16"), ("float16", "float16")),
        ),
    )


def _host(values: Mapping[str, str], _: Gettext) -> tuple[PlanInput, ...]:
    return (
        _size("host_bytes", _("Memory, all workers"), values, "64 GiB"),
        _choice(
            "eviction_policy",
            _("Policy"),
            values,
            (
                ("lru", _("lru: split")),
                ("arc", _("arc: split")),
                ("value", _("value: arena")),
                ("hyper", _("hyper: arena")),
            ),
        ),
        _text("reference_tokens", _("Reference length now"), values, _("Marked below."), _("tokens"), "65536"),
        _text("session_tokens", _("A typical session"), values, _("Empty: the reference."), _("tokens"), "65536"),
        _text(
            "retention_interval",
            _("Retention interval"),
            values,
            _("0: the newest state only. %(word)s: the flag is not set.") % {"word": EVERY_BLOCK},
            _("tokens"),
            "0",
        ),
    )


def _card(values: Mapping[str, str], _: Gettext) -> tuple[PlanInput, ...]:
    return (
        _size("gpu_bytes", _("Memory of a card"), values, "80 GiB"),
        _size("weights_bytes", _("Weights, all"), values, "18 GB"),
        _text("utilization", _("Utilization"), values, _("Empty: 0.92."), example="0.92"),
        _text("sequences", _("Sequences at once"), values, example="1"),
        _text("length", _("Their length"), values, _("Empty: the longest."), _("tokens")),
    )


def _more(values: Mapping[str, str], _: Gettext) -> tuple[PlanInput, ...]:
    return (
        _text("block_tokens", "--block-size", values, _("Empty: the engine decides."), _("tokens")),
        _text("blocks_per_chunk", "blocks_per_chunk", values, example="1"),
        _size("kv_cache_memory_bytes", "--kv-cache-memory-bytes", values, "", _("Instead of utilization.")),
        _size("overhead_bytes", _("Runtime and temporary tensors"), values, "2 GiB"),
        _text("max_num_batched_tokens", "--max-num-batched-tokens", values, _("Counts for windows."), _("tokens")),
        PlanInput("mtp", _("Count layers that predict further tokens"), values.get("mtp", ""), kind="check"),
    )


def _text(
    name: str, label: str, values: Mapping[str, str], text: str = "", unit: str = "", example: str = ""
) -> PlanInput:
    return PlanInput(name, label, values.get(name, ""), text, unit, example=example)


def _size(name: str, label: str, values: Mapping[str, str], example: str, text: str = "") -> PlanInput:
    return PlanInput(name, label, values.get(name, ""), text, kind="size", example=example)


def _choice(name: str, label: str, values: Mapping[str, str], options: tuple[tuple[str, str], ...]) -> PlanInput:
    chosen = values.get(name) or options[0][0]
    known = options if chosen in dict(options) else (*options, (chosen, chosen))
    choices = tuple(Choice(value, text, is_current=value == chosen) for value, text in known)
    return PlanInput(name, label, chosen, kind="choice", choices=choices)
