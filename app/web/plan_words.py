"""The planner's codes in the reader's language. Pure."""

from __future__ import annotations

from app.planner.fields import Finding
from app.planner.geometry import Part
from app.planner.vram import Verdict
from app.web.blocks import StateBadge
from app.web.i18n import Gettext


def layer_kind(part: Part, _: Gettext) -> str:
    """What layers of a kind are called."""
    texts = {
        "full": _("full attention"),
        "latent": _("latent attention (MLA)"),
        "window": _("sliding window"),
        "nothing": _("nothing of their own"),
        "gated_delta_net": _("gated delta net"),
        "mamba1": _("Mamba-1"),
        "mamba2": _("Mamba-2"),
        "short_conv": _("short convolution"),
        "lightning": _("lightning attention"),
    }
    return texts[part.detail or part.kind]


def factor(name: str, _: Gettext) -> str:
    """What a number of a product counts."""
    texts = {
        "k_and_v": _("K and V"),
        "kv_heads": _("KV heads"),
        "head_size": _("head size"),
        "head_sizes": _("K size + V size"),
        "latent": _("latent + rope"),
        "bytes": _("bytes"),
        "window_tokens": _("window"),
        "channels": _("channels"),
        "taps": _("taps"),
        "state_heads": _("state heads"),
        "state_size": _("state size"),
    }
    return texts[name]


def verdict(code: Verdict, _: Gettext) -> StateBadge:
    """Fits, tight or not."""
    match code:
        case "fits":
            return StateBadge(code, _("fits"), "good")
        case "tight":
            return StateBadge(code, _("tight"), "warning")
        case "does_not_fit":
            return StateBadge(code, _("does not fit"), "failed")


def severity(code: str, _: Gettext) -> str:
    """How much a remark matters."""
    return _("Warning") if code == "warning" else _("Note")


def finding(found: Finding, _: Gettext) -> str:
    """A finding's sentence; one that is not known here stays as it came."""
    template = _findings(_).get(found.code)
    return found.message if template is None else template % found.values


def _findings(_: Gettext) -> dict[str, str]:
    return {**_of_the_model(_), **_of_the_wish(_)}


def _of_the_model(_: Gettext) -> dict[str, str]:
    return {
        "layer_types_win": _("%(winner)s and %(loser)s contradict each other; %(winner)s is used."),
        "fields_contradict": _("%(winner)s and %(loser)s contradict each other; %(winner)s is used."),
        "family_pattern": _("%(path)s is missing; %(family)s's own pattern is used: every %(every)s. layer is full."),
        "class_default": _("%(path)s is missing; %(value)s is used, as the model's own configuration class does."),
        "state_dtype_assumed": _(
            "No field declares the type of the recurrent state; %(dtype)s is counted. "
            "With --mamba-ssm-cache-dtype for the engine, choose the same here."
        ),
        "head_dim_derived": _("%(path)s is not declared; derived: %(hidden)s / %(heads)s = %(size)s."),
        "kv_heads_assumed": _("%(path)s is not declared; each of the %(heads)s attention heads has its own KV."),
        "indexer_not_counted": _("The sparse indexer keeps a cache of its own beside the latent; it is not counted."),
        "quantised_cache": _(
            "The checkpoint asks for a quantised KV cache (quantization_config); "
            "plan with fp8 if the engine follows it."
        ),
    }


def _of_the_wish(_: Gettext) -> dict[str, str]:
    return {
        "cpu_state_dtype": _(
            "On a CPU with AVX-512 bf16 the engine keeps recurrent states in float32, whatever the model declares."
        ),
        "shorter_than_block": _("A prompt shorter than a block (%(tokens)s tokens) can never hit."),
        "block_enlarged": _(
            "A block of %(asked)s tokens is too small for a state; the engine enlarges it to %(tokens)s."
        ),
        "pass_block_size": _(
            "On the CPU pass --block-size %(tokens)s: there the scheduler does not learn of the enlarged block."
        ),
        "beyond_the_model": _("max_model_len is %(asked)s, the model was made for %(told)s."),
        "longest_assumed": _("Neither the model nor max_model_len tells the longest sequence; %(tokens)s is used."),
        "chunks_not_served": _(
            "The host tier's connector does not serve chunked attention; there are no slots to plan."
        ),
        "windows_in_slots": _(
            "A token slot holds the blocks of the sliding layers too, although a session needs the last ones only."
        ),
        "interval_off_the_block": _(
            "retention_interval is %(asked)s, not a multiple of the block of %(block)s tokens; "
            "the engine does not start with it."
        ),
        "states_fill_the_arena": _(
            "The engine keeps a state at every block, which leaves little room for tokens; "
            "set --prefix-cache-retention-interval 0 to keep the newest only."
        ),
        "state_at_every_block": _(
            "The engine keeps a state at every block, so the reference length changes nothing and few tokens are held; "
            "set --prefix-cache-retention-interval 0 to keep the newest only."
        ),
        "small_host": _("host_bytes is %(bytes)s bytes, less than 1 GiB; was %(bytes)s GiB meant?"),
        "engine_block_differs": _(
            "The running engine has blocks of %(told)s tokens; by the model's fields they would have %(planned)s."
        ),
        "engine_token_slot_differs": _(
            "A token slot of the running engine takes %(told)s over all workers; "
            "by the model's fields it would take %(planned)s."
        ),
        "engine_state_slot_differs": _(
            "A state slot of the running engine takes %(told)s over all workers; "
            "by the model's fields it would take %(planned)s."
        ),
        "beyond_memory": _("The host tier is %(asked)s, this machine has %(there)s of memory."),
        "overhead_assumed": _(
            "%(size)s are set aside on each card for temporary tensors and the runtime; "
            "the engine measures its own at start. Change overhead_bytes when you know better."
        ),
    }
