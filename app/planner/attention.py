"""What an attention layer keeps per token. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from app.errors import InvalidInput
from app.planner.fields import Fields, Finding

#: Families older than grouped queries: without the field, each attention head has its own KV.
UNGROUPED: Final = ("llama", "gpt2", "gptj", "gpt_neox", "opt", "phi", "mpt", "bloom", "stablelm", "codegen", "olmo")
#: What a config may call the number of attention heads, of KV heads, the size of a head and the model's width.
HEAD_FIELDS: Final = ("num_attention_heads", "n_head", "num_heads", "n_heads")
KV_HEAD_FIELDS: Final = (
    "num_key_value_heads",
    "num_kv_heads",
    "n_head_kv",
    "multi_query_group_num",
    "num_attention_groups",
)
SIZE_FIELDS: Final = ("head_dim", "attention_head_dim", "kv_channels", "hidden_size_per_head")
WIDTH_FIELDS: Final = ("hidden_size", "n_embd", "d_model")
#: Families of latent attention; their small models switch it off with dimensions of 0.
LATENT: Final = ("deepseek_v2", "deepseek_v3")
#: Layouts that differ from layer to layer in ways that are not known here.
UNKNOWN_LAYOUTS: Final = (
    "global_head_dim",
    "num_global_key_value_heads",
    "swa_head_dim",
    "swa_num_key_value_heads",
    "compress_ratios",
    "block_configs",
    "linear_attn_config",
)


@dataclass(frozen=True)
class Attention:
    """One attention layer: K and V of some heads, or one latent vector that all heads share (MLA)."""

    heads: int
    query_heads: int
    key_size: int
    value_size: int
    is_latent: bool = False

    @property
    def elements(self) -> int:
        """Per token, over all heads."""
        return self.key_size if self.is_latent else self.heads * (self.key_size + self.value_size)

    def bytes_per_token(self, element_bytes: int, workers: int = 1) -> int:
        """Of one layer on each worker. A latent is whole on every one, as is a head that cannot be shared."""
        if self.is_latent:
            return self.key_size * element_bytes
        return max(1, self.heads // workers) * (self.key_size + self.value_size) * element_bytes

    def check_workers(self, workers: int) -> None:
        """Raise InvalidInput when the heads cannot be shared evenly."""
        if self.query_heads % workers or (not self.is_latent and self.heads % workers and workers % self.heads):
            sentence = (
                "world_size is %(workers)s: %(heads)s attention heads with %(kv_heads)s KV heads cannot be shared "
                "evenly among so many workers."
            )
            values = {"workers": workers, "heads": self.query_heads, "kv_heads": self.heads}
            raise InvalidInput(sentence, path="world_size", values=values)


def read_attention(fields: Fields) -> tuple[Attention, list[Finding]]:
    """The attention layers of a config; what is missing is named."""
    for name in UNKNOWN_LAYOUTS:
        if fields.has(name):
            raise fields.fault(name, "%(path)s gives layers a KV layout that the planner does not know.")
    if fields.has("kv_lora_rank") or _means_latent(fields):
        return _latent(fields)
    heads, of_heads = _kv_heads(fields)
    size, of_size = head_size(fields)
    value_size = fields.number("v_head_dim") or size
    return Attention(heads, query_heads(fields), size, value_size), [*of_heads, *of_size]


def query_heads(fields: Fields) -> int:
    """Attention heads."""
    return fields.need(*HEAD_FIELDS)


def head_size(fields: Fields) -> tuple[int, list[Finding]]:
    """As declared, else hidden size over heads where that is whole: never rounded, never a default."""
    declared = fields.number(*SIZE_FIELDS, most=65_536)
    if declared is not None:
        return declared, []
    heads, hidden = query_heads(fields), fields.number(*WIDTH_FIELDS)
    if hidden is None or hidden % heads:
        sentence = (
            "Cannot determine head size: %(path)s is not declared, and %(hidden)s / %(heads)s is no whole number."
        )
        if hidden is None:
            sentence = "Cannot determine head size: %(path)s is not declared, and hidden_size is missing too."
        raise fields.fault("head_dim", sentence, hidden=hidden, heads=heads)
    message = f"{fields.path('head_dim')} is not declared; derived: {hidden} / {heads} = {hidden // heads}."
    found = fields.note("head_dim_derived", "head_dim", message, hidden=hidden, heads=heads, size=hidden // heads)
    return hidden // heads, [found]


def _kv_heads(fields: Fields) -> tuple[int, list[Finding]]:
    heads = query_heads(fields)
    declared = fields.number(*KV_HEAD_FIELDS)
    if declared is not None:
        if declared > heads or heads % declared:
            sentence = "%(path)s is %(declared)s, which does not divide %(heads)s attention heads."
            raise fields.fault(fields.first(*KV_HEAD_FIELDS), sentence, declared=declared, heads=heads)
        return declared, []
    is_null = any(name in fields and fields.raw(name) is None for name in KV_HEAD_FIELDS)
    if not is_null and not fields.is_family(*UNGROUPED):
        sentence = "%(path)s is missing: write it, or null when every attention head has its own KV."
        raise fields.fault(KV_HEAD_FIELDS[0], sentence)
    message = f"{fields.path(KV_HEAD_FIELDS[0])} is not declared; each of the {heads} attention heads has its own KV."
    return heads, [fields.note("kv_heads_assumed", KV_HEAD_FIELDS[0], message, heads=heads)]


def _means_latent(fields: Fields) -> bool:
    """True where only `kv_lora_rank` is missing; hidden size over heads would be no head of such a model."""
    told = [fields.raw(name) for name in ("qk_nope_head_dim", "qk_rope_head_dim")]
    return any(told) or (fields.is_family(*LATENT) and 0 not in told)


def _latent(fields: Fields) -> tuple[Attention, list[Finding]]:
    rank, rope = fields.need("kv_lora_rank"), fields.need("qk_rope_head_dim")
    findings: list[Finding] = []
    if fields.has("index_topk", "index_head_dim"):
        message = "The sparse indexer keeps a cache of its own beside the latent; it is not counted."
        findings.append(fields.note("indexer_not_counted", "index_topk", message, "warning"))
    return Attention(1, query_heads(fields), rank + rope, 0, is_latent=True), findings
