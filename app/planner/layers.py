"""Which layer is of which kind, from whatever spelling a config uses. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Literal

from app.planner.fields import Fields, Finding, contradiction

LayerKind = Literal["full", "window", "recurrent", "both", "nothing"]

#: Names in `layer_types` and `layers_block_type`.
NAMES: Final[dict[str, LayerKind]] = {
    "full_attention": "full",
    "attention": "full",
    "indexed_attention": "full",
    "sliding_attention": "window",
    "chunked_attention": "window",
    "linear_attention": "recurrent",
    "mamba": "recurrent",
    "mamba2": "recurrent",
    "conv": "recurrent",
    "hybrid": "both",
    "mlp": "nothing",
    "moe": "nothing",
}
#: Letters of `hybrid_override_pattern`.
LETTERS: Final[dict[str, LayerKind]] = {"M": "recurrent", "*": "full", "-": "nothing", "E": "nothing"}
#: Families whose configuration class has a window pattern of its own: every n-th layer is a full one.
FAMILY_PATTERNS: Final = {"gemma3n": 5, "gemma3": 6, "gemma2": 2, "gpt_oss": 2, "cohere2": 4}
#: Families of which every layer has the window.
ALL_WINDOW: Final = ("mistral", "mixtral", "phi3", "starcoder2")
#: Where one of these is, some layers are recurrent; which ones must then be said too.
RECURRENT_FIELDS: Final = (
    "linear_num_value_heads",
    "mamba_d_state",
    "mamba_num_heads",
    "mamba_n_heads",
    "ssm_state_size",
    "conv_L_cache",
    "linear_attn_config",
    "state_size",
)
#: What a config may call the number of its layers.
COUNT_FIELDS: Final = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")
#: Fields that say which layer is of which kind.
PATTERN_FIELDS: Final = (
    "layer_types",
    "layers_block_type",
    "hybrid_override_pattern",
    "attn_type_list",
    "full_attn_idxs",
    "attn_layer_indices",
    "attn_layer_period",
    "full_attention_interval",
)
#: Llama 4's configuration class: without `no_rope_layers` every fourth layer is a full one.
USUAL_NO_ROPE_INTERVAL: Final = 4
MOST_LAYERS: Final = 10_000

Layers = tuple[list[LayerKind], list[Finding]]


def read_layers(fields: Fields) -> Layers:
    """The kind of each layer, first to last; layers that share another one's KV keep nothing."""
    count = fields.need(*COUNT_FIELDS, most=MOST_LAYERS)
    kinds, findings = next(told for read in _READERS for told in [read(fields, count)] if told is not None)
    shared = fields.number("num_kv_shared_layers", least=0, most=count - 1) or 0
    if shared:
        kinds = [*kinds[: count - shared], *["nothing"] * shared]  # type: ignore[list-item]
    return kinds, findings


def has_chunks(fields: Fields) -> bool:
    """True when windows do not slide but begin anew at fixed places."""
    return has_rope_pattern(fields) or "chunked_attention" in str(fields.raw("layer_types"))


def has_rope_pattern(fields: Fields) -> bool:
    """True for Llama 4: layers with rotary positions attend within chunks, those without over everything."""
    return fields.is_family("llama4") or (fields.has("attention_chunk_size") and fields.has("no_rope_layers"))


def _by_rope(fields: Fields, count: int) -> Layers | None:
    """As vLLM reads it: `no_rope_layers` alone decides, whatever `layer_types` says."""
    if not has_rope_pattern(fields):
        return None
    told, findings = _rope_layers(fields, count)
    is_chunked = "attention_chunk_size" not in fields or fields.has("attention_chunk_size")
    kinds: list[LayerKind] = ["window" if one and is_chunked else "full" for one in told]
    named = _by_names(fields, count)
    if named is not None and named[0] != kinds:
        findings = [*findings, contradiction(fields, "no_rope_layers", "layer_types")]
    return kinds, findings


def _rope_layers(fields: Fields, count: int) -> tuple[list[int], list[Finding]]:
    """For each layer 1 with rotary positions, 0 without."""
    name = "no_rope_layers"
    if fields.raw(name):
        told = fields.items(name, int, wanted="0 and 1")
        if set(told) - {0, 1}:
            raise fields.fault(name, "%(path)s must hold 0 (full attention) and 1 (chunked attention) only.")
        _check_length(fields, name, len(told), count)
        return told, []
    every = fields.number("no_rope_layer_interval") or USUAL_NO_ROPE_INTERVAL
    message = f"{fields.path(name)} is missing; llama4's own pattern is used: every {every}. layer is full."
    found = fields.note("family_pattern", name, message, family="llama4", every=every)
    return [int((place + 1) % every != 0) for place in range(count)], [found]


def _by_names(fields: Fields, count: int) -> Layers | None:
    name = fields.first("layer_types", "layers_block_type")
    if not fields.has(name):
        return None
    kinds: list[LayerKind] = []
    for place, text in enumerate(fields.items(name, str, wanted="layer kinds in quotes")):
        if text not in NAMES:
            sentence = '%(path)s names the kind "%(kind)s" for layer %(layer)s; known are %(known)s.'
            raise fields.fault(name, sentence, kind=text[:40], layer=place, known=", ".join(NAMES))
        kinds.append(NAMES[text])
    _check_length(fields, name, len(kinds), count)
    return kinds, _contradiction(fields, name, kinds)


def _contradiction(fields: Fields, name: str, kinds: Sequence[LayerKind]) -> list[Finding]:
    """`full_attention_interval` beside a list that says otherwise: the list is what the engine reads."""
    interval = fields.number("full_attention_interval")
    if interval is None or _every(interval, len(kinds), "recurrent") == list(kinds):
        return []
    found = contradiction(fields, name, "full_attention_interval")
    return [fields.note("layer_types_win", "full_attention_interval", found.message, "warning", **found.values)]


def _by_letters(fields: Fields, count: int) -> Layers | None:
    name = "hybrid_override_pattern"
    if not fields.has(name):
        return None
    pattern = fields.raw(name)
    if not isinstance(pattern, str) or set(pattern) - LETTERS.keys():
        raise fields.fault(name, "%(path)s must be text of the letters %(letters)s.", letters=" ".join(LETTERS))
    _check_length(fields, name, len(pattern), count)
    return [LETTERS[letter] for letter in pattern], []


def _by_zeros_and_ones(fields: Fields, count: int) -> Layers | None:
    name = "attn_type_list"
    if not fields.has(name):
        return None
    told = fields.items(name, int, wanted="0 and 1")
    if set(told) - {0, 1}:
        raise fields.fault(name, "%(path)s must hold 0 (linear attention) and 1 (full attention) only.")
    _check_length(fields, name, len(told), count)
    return ["full" if one else "recurrent" for one in told], []


def _by_indices(fields: Fields, count: int) -> Layers | None:
    name = fields.first("full_attn_idxs", "attn_layer_indices")
    if not fields.has(name):
        return None
    places = fields.items(name, int, wanted="layer numbers")
    if any(not 0 <= place < count for place in places):
        raise fields.fault(name, "%(path)s names a layer that is not among the %(count)s.", count=count)
    if (twice := next((place for place in places if places.count(place) > 1), None)) is not None:
        raise fields.fault(name, "%(path)s names layer %(layer)s twice; keep one.", layer=twice)
    return ["full" if place in places else "recurrent" for place in range(count)], []


def _by_period(fields: Fields, count: int) -> Layers | None:
    if not fields.has("attn_layer_period"):
        return None
    period = fields.need("attn_layer_period")
    offset = fields.need("attn_layer_offset", least=0, most=period - 1)
    return ["full" if place % period == offset else "recurrent" for place in range(count)], []


def _by_interval(fields: Fields, count: int) -> Layers | None:
    interval = fields.number("full_attention_interval")
    return None if interval is None else (_every(interval, count, "recurrent"), [])


def _side_by_side(fields: Fields, count: int) -> Layers | None:
    """Falcon-H1: each layer has attention and a state-space mixer next to each other."""
    if not (fields.is_family("falcon_h1") or fields.has("mamba_d_ssm")):
        return None
    return ["both"] * count, []


def _by_window_pattern(fields: Fields, count: int) -> Layers | None:
    name = fields.first("sliding_window_pattern", "_sliding_window_pattern")
    if not fields.has(name) or not fields.has("sliding_window"):
        return None
    pattern = fields.raw(name)
    if not isinstance(pattern, str):
        return _every(fields.need(name), count, "window"), []
    if not pattern or set(pattern) - {"L", "G"}:
        raise fields.fault(name, "%(path)s must be a number or text of the letters L and G.")
    kinds: list[LayerKind] = ["full" if pattern[place % len(pattern)] == "G" else "window" for place in range(count)]
    return [*kinds[:-1], "full"], []


def _by_family(fields: Fields, count: int) -> Layers | None:
    family = next((one for one in FAMILY_PATTERNS if fields.is_family(one)), None)
    if family is None or not fields.has("sliding_window"):
        return None
    every = FAMILY_PATTERNS[family]
    message = f"{fields.path('layer_types')} is missing; {family}'s own pattern is used: every {every}. layer is full."
    found = fields.note("family_pattern", "layer_types", message, family=family, every=every)
    return _every(every, count, "window"), [found]


def _by_chunks(fields: Fields, count: int) -> Layers | None:
    if not fields.has("attention_chunk_size"):
        return None
    sentence = "%(path)s is missing: attention_chunk_size is set, and nothing says which layers have it."
    raise fields.fault("layer_types", sentence)


def _by_window(fields: Fields, count: int) -> Layers | None:
    if not fields.has("sliding_window") or fields.raw("use_sliding_window") is False:
        return None
    if fields.raw("use_sliding_window") is True:
        first = fields.need("max_window_layers", least=0, most=MOST_LAYERS)
        return ["full" if place < first else "window" for place in range(count)], []
    if fields.is_family(*ALL_WINDOW):
        return ["window"] * count, []
    sentence = "%(path)s is missing: sliding_window is set, and nothing says which layers have it."
    raise fields.fault("layer_types", sentence)


def _all_full(fields: Fields, count: int) -> Layers:
    recurrent = next((name for name in RECURRENT_FIELDS if fields.has(name)), None)
    if recurrent is not None:
        sentence = "%(path)s is missing: %(other)s is set, and nothing says which layers are recurrent."
        raise fields.fault("layer_types", sentence, other=recurrent)
    return ["full"] * count, []


_READERS: Final[tuple[Callable[[Fields, int], Layers | None], ...]] = (
    _by_rope,
    _by_names,
    _by_letters,
    _by_zeros_and_ones,
    _by_indices,
    _by_period,
    _by_interval,
    _side_by_side,
    _by_window_pattern,
    _by_family,
    _by_chunks,
    _by_window,
    _all_full,
)


def _every(interval: int, count: int, between: LayerKind) -> list[LayerKind]:
    return ["full" if (place + 1) % interval == 0 else between for place in range(count)]


def _check_length(fields: Fields, name: str, told: int, count: int) -> None:
    if told != count:
        sentence = "%(path)s tells %(told)s layers, num_hidden_layers is %(count)s."
        raise fields.fault(name, sentence, told=told, count=count)
