"""A model's config -> which layers keep what, and how many bytes that is, layer kind by layer kind. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from app.errors import InvalidInput
from app.planner.attention import (
    HEAD_FIELDS,
    KV_HEAD_FIELDS,
    SIZE_FIELDS,
    WIDTH_FIELDS,
    Attention,
    read_attention,
)
from app.planner.fields import Fields, Finding
from app.planner.layers import COUNT_FIELDS, PATTERN_FIELDS, LayerKind, has_chunks, has_rope_pattern, read_layers
from app.planner.recurrence import CONVOLUTION_BYTES, Recurrence, StateDtype, class_default, read_recurrence

PartKind = Literal["full", "latent", "window", "recurrent", "nothing"]
Per = Literal["token", "sequence", "none"]
#: What a config may call the longest sequence.
LENGTH_FIELDS: Final = ("max_position_embeddings", "n_positions", "max_sequence_length", "seq_length", "n_ctx")
DTYPE_FIELDS: Final = ("torch_dtype", "dtype")
DRAFT_FIELDS: Final = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_layers", "num_nextn_layers")


#: Names for one thing: where two are there with different values, the first is read, and that is said.
TWINS: Final = (
    COUNT_FIELDS,
    HEAD_FIELDS,
    KV_HEAD_FIELDS,
    SIZE_FIELDS,
    WIDTH_FIELDS,
    LENGTH_FIELDS,
    ("layer_types", "layers_block_type"),
    ("full_attn_idxs", "attn_layer_indices"),
    ("sliding_window", "sliding_window_size"),
    ("sliding_window_pattern", "_sliding_window_pattern"),
    ("mamba_ssm_dtype", "mamba_ssm_cache_dtype"),
    DTYPE_FIELDS,
)
#: Types of a model for which the engine's `auto` keeps KV in 2 bytes; of float32 it makes half.
MODEL_DTYPES: Final = ("auto", "bfloat16", "float16", "half", "float32", "float")
#: Llama 4's configuration class has it; null there means no chunks.
USUAL_CHUNK_TOKENS: Final = 8192


@dataclass(frozen=True)
class Factor:
    """A number of a product; `name` says what it counts."""

    name: str
    value: int


Product = tuple[Factor, ...]


@dataclass(frozen=True)
class Part:
    """Layers of one kind: what one of them keeps, and the sum of products it comes from."""

    kind: PartKind
    layers: int
    per: Per
    layer_bytes: int
    why: tuple[Product, ...] = ()
    detail: str = ""
    """Of recurrent layers, which kind of recurrence."""

    @property
    def bytes(self) -> int:
        """Of all these layers."""
        return self.layers * self.layer_bytes


@dataclass(frozen=True)
class Geometry:
    """What a model keeps for its sequences. Bytes come from the methods, which take the types asked for."""

    attention: Attention
    growing_layers: int
    window_layers: int
    window_tokens: int
    has_chunks: bool
    """True when the windows do not slide but begin anew at fixed places."""
    recurrent_layers: int
    idle_layers: int
    recurrence: Recurrence | None
    longest_tokens: int | None
    findings: tuple[Finding, ...]

    def bytes_per_token(self, kv_bytes: int, workers: int = 1) -> int:
        """Of all layers whose KV grows, on each worker."""
        return self.growing_layers * self.attention.bytes_per_token(kv_bytes, workers)

    def window_bytes(self, kv_bytes: int, workers: int = 1) -> int:
        """Of all windows of one sequence once they are full, on each worker."""
        return self.window_layers * self.window_tokens * self.attention.bytes_per_token(kv_bytes, workers)

    def state_bytes_per_layer(self, dtype_bytes: int, workers: int = 1) -> int:
        """One recurrent layer's state of one sequence, on each worker; 0 where there is none."""
        return self.recurrence.state_bytes(dtype_bytes, workers) if self.recurrence else 0

    def state_bytes(self, dtype_bytes: int, workers: int = 1) -> int:
        """All recurrent layers' states of one sequence, on each worker."""
        return self.recurrent_layers * self.state_bytes_per_layer(dtype_bytes, workers)

    def check_workers(self, workers: int) -> None:
        """Raise InvalidInput when the layers cannot be shared evenly among so many workers."""
        self.attention.check_workers(workers)
        if self.recurrence is not None:
            self.recurrence.check_workers(workers)

    def parts(self, kv_bytes: int, dtype_bytes: int) -> tuple[Part, ...]:
        """The explanation, whole model on one worker."""
        found = (
            self._growing(kv_bytes),
            self._window(kv_bytes),
            self._recurrent(dtype_bytes),
            Part("nothing", self.idle_layers, "none", 0),
        )
        return tuple(part for part in found if part.layers)

    def _growing(self, kv_bytes: int) -> Part:
        kind: PartKind = "latent" if self.attention.is_latent else "full"
        return Part(kind, self.growing_layers, "token", self.attention.bytes_per_token(kv_bytes), (self._kv(kv_bytes),))

    def _window(self, kv_bytes: int) -> Part:
        product = (*self._kv(kv_bytes), Factor("window_tokens", self.window_tokens))
        layer_bytes = self.attention.bytes_per_token(kv_bytes) * self.window_tokens
        return Part("window", self.window_layers, "sequence", layer_bytes, (product,))

    def _kv(self, kv_bytes: int) -> Product:
        one = self.attention
        if one.is_latent:
            return (Factor("latent", one.key_size), Factor("bytes", kv_bytes))
        if one.key_size == one.value_size:
            sizes: Product = (Factor("k_and_v", 2), Factor("kv_heads", one.heads), Factor("head_size", one.key_size))
        else:
            sizes = (Factor("kv_heads", one.heads), Factor("head_sizes", one.key_size + one.value_size))
        return (*sizes, Factor("bytes", kv_bytes))

    def _recurrent(self, dtype_bytes: int) -> Part:
        layer = self.recurrence
        if layer is None:
            return Part("recurrent", 0, "sequence", 0)
        products: list[Product] = []
        if layer.taps:
            channels = layer.convolution_elements() // layer.taps
            products.append(
                (Factor("channels", channels), Factor("taps", layer.taps), Factor("bytes", CONVOLUTION_BYTES))
            )
        if layer.per_head:
            sizes = tuple(Factor("state_size", size) for size in layer.per_head)
            products.append((Factor("state_heads", layer.heads), *sizes, Factor("bytes", dtype_bytes)))
        layer_bytes = layer.state_bytes(dtype_bytes)
        return Part("recurrent", self.recurrent_layers, "sequence", layer_bytes, tuple(products), layer.kind)

    @property
    def state_dtype(self) -> StateDtype | None:
        """The type of the recurrent state, as declared or assumed; None where there is none."""
        return self.recurrence.dtype if self.recurrence else None


def read_geometry(config: Mapping[str, Any], with_draft_layers: bool = False) -> Geometry:
    """The geometry of a parsed config.json, or InvalidInput that names the field."""
    fields = Fields(config)
    kinds, findings = read_layers(fields)
    attention, of_attention = read_attention(fields)
    recurrence, of_recurrence = _recurrence(fields, kinds)
    growing = _count(kinds, "full", "both")
    if not growing + _count(kinds, "window"):
        sentence = "%(path)s has no attention layer; models of recurrent layers alone are not planned."
        raise fields.fault(fields.first(*PATTERN_FIELDS), sentence)
    _check_dtype(fields)
    window_tokens, of_window = _window(fields) if "window" in kinds else (0, [])
    return Geometry(
        attention=attention,
        growing_layers=growing + (_draft_layers(fields) if with_draft_layers else 0),
        window_layers=_count(kinds, "window"),
        window_tokens=window_tokens,
        has_chunks="window" in kinds and has_chunks(fields),
        recurrent_layers=_count(kinds, "recurrent", "both"),
        idle_layers=_count(kinds, "nothing"),
        recurrence=recurrence,
        longest_tokens=fields.number(*LENGTH_FIELDS),
        findings=(
            *findings,
            *fields.contradictions(TWINS),
            *of_attention,
            *of_window,
            *of_recurrence,
            *_quantised_cache(fields),
        ),
    )


def _count(kinds: list[LayerKind], *wanted: LayerKind) -> int:
    return sum(kind in wanted for kind in kinds)


def _recurrence(fields: Fields, kinds: list[LayerKind]) -> tuple[Recurrence | None, list[Finding]]:
    return read_recurrence(fields) if {"recurrent", "both"} & set(kinds) else (None, [])


def _window(fields: Fields) -> tuple[int, list[Finding]]:
    if has_rope_pattern(fields):
        return class_default(fields, "attention_chunk_size", USUAL_CHUNK_TOKENS)
    sentence = "%(path)s is missing, but layers slide: the KV layout cannot be told without it."
    return fields.need("sliding_window", "attention_chunk_size", "sliding_window_size", missing=sentence), []


def _check_dtype(fields: Fields) -> None:
    """Raise InvalidInput for a type of the model, here or in the wrapper, whose KV is not known to take 2 bytes."""
    name = next((name for name in DTYPE_FIELDS if fields.outer(name) is not None), DTYPE_FIELDS[0])
    told = fields.outer(name)
    if told is None or (isinstance(told, str) and told.removeprefix("torch.") in MODEL_DTYPES):
        return
    path = fields.path(name) if fields.has(name) else name
    sentence = '%(path)s must be float32, bfloat16 or float16, not "%(value)s".'
    values = {"path": path, "value": str(told)[:40]}
    raise InvalidInput(sentence, path=path, code="invalid_config", values=values)


def _draft_layers(fields: Fields) -> int:
    sentence = (
        "%(path)s is missing, but the layers that predict further tokens are to be counted: "
        "the KV layout cannot be told without it."
    )
    return fields.need(*DRAFT_FIELDS, most=64, missing=sentence)


def _quantised_cache(fields: Fields) -> list[Finding]:
    """A checkpoint that brings scales for an fp8 cache: newer engines then use it without being asked."""
    told = fields.outer("quantization_config")
    if not isinstance(told, Mapping) or not (told.get("kv_cache_scheme") or told.get("kv_cache_quant_algo")):
        return []
    message = (
        "The checkpoint asks for a quantised KV cache (quantization_config); plan with fp8 if the engine follows it."
    )
    return [Finding("note", "quantised_cache", "quantization_config", message)]
