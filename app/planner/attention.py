"""What an attention layer keeps per token. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from app.errors import InvalidInput
from app.planner.fields import Fields, Finding

#: Families older than grouped queries: without the field, each attention head has its own KV.
UNGROUPED: Final = ("llama", "gpt2", "gptj", "gpt_neox", "opt", "phi", "mpt", "bloom", "stablelm", "codegen", "olmo")
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
            raise InvalidInput(
                f"world_size is {workers}: {self.query_heads} attention heads with {self.heads} KV heads "
                "cannot be shared evenly among so many workers.",
                path="world_size",
            )


def read_attention(fields: Fields) -> tuple[Attention, list[Finding]]:
    """The attention layers of a config; what is missing is named."""
    for name in UNKNOWN_LAYOUTS:
        if fields.has(name):
            raise fields.fault(name, "gives layers a KV layout that the planner does not know")
    if fields.has("kv_lora_rank"):
        return _latent(fields)
    heads, of_heads = _kv_heads(fields)
    size, of_size = head_size(fields)
    value_size = fields.number("v_head_dim") or size
    return Attention(heads, query_heads(fields), size, value_size), [*of_heads, *of_size]


def query_heads(fields: Fields) -> int:
    """Attention heads."""
    return fields.need("num_attention_heads", "n_head", "num_heads", "n_heads")


def head_size(fields: Fields) -> tuple[int, list[Finding]]:
    """As declared, else hidden size over heads where that is whole: never rounded, never a default."""
    declared = fields.number("head_dim", "attention_head_dim", "kv_channels", "hidden_size_per_head", most=65_536)
    if declared is not None:
        return declared, []
    heads, hidden = query_heads(fields), fields.number("hidden_size", "n_embd", "d_model")
    if hidden is None or hidden % heads:
        because = "hidden_size is missing too" if hidden is None else f"{hidden} / {heads} is not a whole number"
        path = fields.path("head_dim")
        raise InvalidInput(
            f"Cannot determine head size: {path} is not declared, and {because}.", path=path, code="invalid_config"
        )
    message = f"{fields.path('head_dim')} is not declared; derived: {hidden} / {heads} = {hidden // heads}."
    found = fields.note("head_dim_derived", "head_dim", message, hidden=hidden, heads=heads, size=hidden // heads)
    return hidden // heads, [found]


def _kv_heads(fields: Fields) -> tuple[int, list[Finding]]:
    names = ("num_key_value_heads", "num_kv_heads", "n_head_kv", "multi_query_group_num", "num_attention_groups")
    heads = query_heads(fields)
    declared = fields.number(*names)
    if declared is not None:
        if declared > heads or heads % declared:
            raise fields.fault(fields.first(*names), f"is {declared}, which does not divide {heads} attention heads")
        return declared, []
    is_null = any(name in fields and fields.raw(name) is None for name in names)
    if not is_null and not fields.is_family(*UNGROUPED):
        raise fields.fault(names[0], "is missing: write it, or null when every attention head has its own KV")
    message = f"{fields.path(names[0])} is not declared; each of the {heads} attention heads has its own KV."
    return heads, [fields.note("kv_heads_assumed", names[0], message, heads=heads)]


def _latent(fields: Fields) -> tuple[Attention, list[Finding]]:
    rank, rope = fields.need("kv_lora_rank"), fields.need("qk_rope_head_dim")
    findings: list[Finding] = []
    if fields.has("index_topk", "index_head_dim"):
        message = "The sparse indexer keeps a cache of its own beside the latent; it is not counted."
        findings.append(fields.note("indexer_not_counted", "index_topk", message, "warning"))
    return Attention(1, query_heads(fields), rank + rope, 0, is_latent=True), findings
