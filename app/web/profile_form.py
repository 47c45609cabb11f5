"""The fields of the profile editor: what each is called, what it takes, and a sentence of help. Pure.

Where a value stands is a JSON pointer into the profile; the script keeps field and JSON in step.
"""

from __future__ import annotations

from app.profiles.context import Box
from app.profiles.flags import FLAGS, Flag
from app.profiles.sizes import size_text
from app.web.i18n import Gettext
from app.web.profile_blocks import FormField, FormGroup
from engine.config import EVICTION_POLICIES, SPEC_NAME

EXTRA = "/kv_transfer_config/kv_connector_extra_config"
#: Flags that the form offers; the others are written as JSON.
SHOWN = (
    "max-model-len",
    "gpu-memory-utilization",
    "kv-cache-memory-bytes",
    "kv-cache-dtype",
    "enable-prefix-caching",
    "mamba-cache-mode",
    "prefix-cache-retention-interval",
    "block-size",
    "max-num-seqs",
    "max-num-batched-tokens",
    "tensor-parallel-size",
    "data-parallel-size",
)


def form_groups(box: Box, _: Gettext) -> tuple[FormGroup, ...]:
    """The host tier and the engine's flags."""
    help_texts = _flag_help(_)
    return (
        FormGroup(_("Host tier"), _host_fields(box, _)),
        FormGroup(_("Engine"), tuple(_flag_field(FLAGS[name], help_texts[name], _) for name in SHOWN)),
    )


def _host_fields(box: Box, _: Gettext) -> tuple[FormField, ...]:
    there = size_text(box.usable_bytes)
    return (
        FormField(
            key="cpu_bytes_to_use",
            pointer=f"{EXTRA}/cpu_bytes_to_use",
            kind="size",
            help=_("Over all ranks of an engine: 64 GiB, 64 GB or bytes. This machine has %(there)s.")
            % {"there": there},
            example="64 GiB",
        ),
        FormField(
            key="eviction_policy",
            pointer=f"{EXTRA}/eviction_policy",
            kind="choice",
            help=_("Who goes first when the tier is full."),
            choices=EVICTION_POLICIES,
        ),
        FormField(
            key="mamba_state_slots_reference_tokens",
            pointer=f"{EXTRA}/mamba_state_slots_reference_tokens",
            kind="whole",
            unit=_("tokens"),
            help=_("Length of a typical session: smaller keeps more states and fewer tokens."),
            least="1",
            example="65536",
        ),
        FormField(
            key="demote_superseded_states",
            pointer=f"{EXTRA}/demote_superseded_states",
            kind="yes",
            help=_("States that a session has gone past are the first to go."),
        ),
        FormField(
            key="spec_name",
            pointer=f"{EXTRA}/spec_name",
            kind="choice",
            help=_("TieringOffloadingSpec is the deck's own tier."),
            choices=(SPEC_NAME, "CPUOffloadingSpec"),
        ),
    )


def _flag_field(flag: Flag, text: str, _: Gettext) -> FormField:
    kinds = {"tokens": "whole", "count": "whole", "bytes": "size", "ratio": "number", "yes": "yes", "word": "choice"}
    return FormField(
        key=flag.name,
        pointer=f"/flags/{flag.name}",
        kind=kinds[flag.kind],
        unit=_("tokens") if flag.kind == "tokens" else "",
        help=text,
        choices=flag.choices,
        least="" if flag.kind in {"yes", "word", "bytes"} else f"{flag.least:g}",
        most="" if flag.most is None else f"{flag.most:g}",
        step="0.01" if flag.kind == "ratio" else "1",
    )


def _flag_help(_: Gettext) -> dict[str, str]:
    return {
        "max-model-len": _("The longest prompt and answer together. A longer one is refused."),
        "gpu-memory-utilization": _("Share of each card's memory for weights and KV cache, 0.90 to 0.95."),
        "kv-cache-memory-bytes": _("Of each card, instead of the share: 8 GiB or bytes."),
        "kv-cache-dtype": _("fp8 halves the cache and changes answers a little."),
        "enable-prefix-caching": _("Without it nothing is ever found again."),
        "mamba-cache-mode": _("Hybrid models: align keeps states where prefixes end."),
        "prefix-cache-retention-interval": _("Hybrid models: 0 keeps the newest state only, n one every n tokens."),
        "block-size": _("Empty: the engine decides. A hybrid model on the CPU needs it said."),
        "max-num-seqs": _("Requests that run at once; each takes room in VRAM."),
        "max-num-batched-tokens": _("Tokens of one step: more prefills faster, less answers smoother."),
        "tensor-parallel-size": _("Cards that share one engine."),
        "data-parallel-size": _("Copies of the model; each has a host tier of its own."),
    }
