"""Which layers keep what, and how many bytes that is."""

from __future__ import annotations

from typing import Any

import pytest

from app.errors import InvalidInput
from app.planner.geometry import read_geometry
from tests.unit.planner.models import (
    DEEPSEEK_V3,
    FULL,
    GDN,
    LINEAR,
    MODELS,
    QWEN35_9B,
    QWEN35_35B,
    QWEN36_27B,
    WINDOW,
    Model,
    every,
    plain,
)

BF16, FP8, FP32 = 2, 1, 4
LLAMA = MODELS["Llama-3.1-8B"].config
DEEPSEEK = LLAMA | {"model_type": "deepseek_v3", "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
LIGHTNING = LLAMA | {"num_hidden_layers": 80, "attn_type_list": [0] * 80}
#: Llama 4 Scout's language model, as it is published: 36 of 48 layers attend within chunks.
LLAMA4 = {
    "model_type": "llama4_text",
    "num_hidden_layers": 48,
    "num_attention_heads": 40,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "hidden_size": 5120,
    "attention_chunk_size": 8192,
    "no_rope_layers": [1, 1, 1, 0] * 12,
    "torch_dtype": "bfloat16",
}


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS.keys())
def test_every_known_model_comes_out_to_the_byte(model: Model) -> None:
    """Growing layers, windows and states, counted apart."""
    told = read_geometry(model.config)
    assert (told.growing_layers, told.bytes_per_token(BF16)) == (model.growing, model.bytes_per_token)
    assert (told.window_layers, told.window_bytes(BF16)) == (model.window, model.window_bytes)
    assert told.recurrent_layers == model.recurrent
    assert (told.state_bytes_per_layer(FP32), told.state_bytes_per_layer(BF16)) == (
        model.layer_bytes_fp32,
        model.layer_bytes_bf16,
    )
    own = {"float32": FP32, "bfloat16": BF16, None: 0}[told.state_dtype]
    assert told.state_bytes(own) == model.state_bytes
    if told.recurrence:
        assert told.recurrence.convolution_elements() == model.conv_elements
        assert told.recurrence.state_elements() == model.state_elements


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS.keys())
def test_the_explanation_adds_up(model: Model) -> None:
    """The numbers of each product multiply to what one layer keeps, and the parts to the whole."""
    told = read_geometry(model.config)
    parts = told.parts(BF16, FP32)
    for part in parts:
        total = 0
        for product in part.why:
            value = 1
            for factor in product:
                value *= factor.value
            total += value
        assert total == part.layer_bytes, part
    assert {part.kind: part.layers for part in parts if part.kind in {"recurrent", "window"}} == {
        kind: layers for kind, layers in (("recurrent", model.recurrent), ("window", model.window)) if layers
    }
    assert sum(part.bytes for part in parts if part.per == "token") == model.bytes_per_token


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS.keys())
def test_fp8_halves_the_kv_and_leaves_the_state(model: Model) -> None:
    """Only KV elements shrink."""
    told = read_geometry(model.config)
    assert told.bytes_per_token(FP8) * 2 == told.bytes_per_token(BF16)
    assert told.window_bytes(FP8) * 2 == told.window_bytes(BF16)


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS.keys())
def test_nested_and_flat_are_equal(model: Model) -> None:
    """And what stands beside the section is not seen."""
    inner: dict[str, Any] = model.config.get("text_config", model.config)
    decoys = {"num_hidden_layers": 999, "num_key_value_heads": 77, "head_dim": 3, "layer_types": ["full_attention"]}
    flat, nested = read_geometry(inner), read_geometry({**decoys, "text_config": inner})
    assert flat.parts(BF16, FP32) == nested.parts(BF16, FP32)


@pytest.mark.parametrize(
    ("config", "expected"), [(QWEN35_9B, 32_768), (QWEN35_35B, 20_480), (QWEN36_27B, 65_536)], ids=["9B", "35B", "27B"]
)
@pytest.mark.parametrize("nested", [True, False])
def test_a_hybrid_is_not_counted_as_attention_alone(config: dict[str, Any], expected: int, nested: bool) -> None:
    """By the list, by the interval alone, and with both; the state stays apart."""
    without_list = {name: value for name, value in config.items() if name != "layer_types"}
    without_interval = {name: value for name, value in config.items() if name != "full_attention_interval"}
    for one in (config, without_list, without_interval):
        told = read_geometry({"text_config": one} if nested else one)
        assert told.bytes_per_token(BF16) == expected
        assert told.state_bytes(FP32) > 0
        assert [finding.severity for finding in told.findings] == []


def test_a_list_beats_an_interval_that_contradicts_it() -> None:
    """And the reader is told."""
    told = read_geometry({"text_config": QWEN35_9B | {"full_attention_interval": 2}})
    assert told.bytes_per_token(BF16) == 32_768
    (found,) = told.findings
    assert (found.severity, found.code) == ("warning", "layer_types_win")
    assert found.path == "text_config.full_attention_interval" and "contradict" in found.message


def test_a_quarter_million_tokens_of_the_27b_are_16_gib() -> None:
    """65,536 bytes each."""
    assert read_geometry(QWEN36_27B).bytes_per_token(BF16) * 262_144 == 16_384 << 20


@pytest.mark.parametrize("value", [128, 128.0])
def test_a_declared_head_size_is_taken(value: float) -> None:
    """As number with or without a point; nothing is derived, so nothing is said."""
    told = read_geometry(plain(36, 32, 8, 2560, head_dim=value))
    assert told.bytes_per_token(BF16) == 147_456 and told.findings == ()


@pytest.mark.parametrize("config", [LLAMA, LLAMA | {"head_dim": None}])
def test_a_derived_head_size_is_told(config: dict[str, Any]) -> None:
    """Absent and null are the same."""
    told = read_geometry(config)
    assert told.bytes_per_token(BF16) == 131_072
    (found,) = told.findings
    assert found.code == "head_dim_derived" and "4096 / 32 = 128" in found.message


def test_a_head_size_that_cannot_be_determined_is_an_error() -> None:
    """No rounding, no default."""
    for hidden in (5120, None):
        with pytest.raises(InvalidInput, match="Cannot determine head size") as caught:
            read_geometry(plain(36, 24, 8, hidden))  # type: ignore[arg-type]
        assert caught.value.path == "head_dim"


def test_a_latent_is_one_copy_for_all_heads() -> None:
    """No factor for K and V, the heads do not count, workers do not share it."""
    told = read_geometry(DEEPSEEK_V3)
    assert told.bytes_per_token(BF16) == 61 * (512 + 64) * 2
    assert told.bytes_per_token(BF16, workers=8) == told.bytes_per_token(BF16)
    assert told.parts(BF16, FP32)[0].kind == "latent"
    assert read_geometry(DEEPSEEK_V3, with_draft_layers=True).bytes_per_token(BF16) == 71_424
    assert told.bytes_per_token(FP8) == 35_136


def test_draft_layers_that_no_field_tells_are_an_error() -> None:
    """They are not guessed."""
    with pytest.raises(InvalidInput) as caught:
        read_geometry(LLAMA, with_draft_layers=True)
    assert caught.value.path == "num_nextn_predict_layers"


@pytest.mark.parametrize(("workers", "per_token"), [(1, 65_536), (2, 32_768), (4, 16_384), (8, 16_384)])
def test_workers_share_heads_and_copy_what_cannot_be_shared(workers: int, per_token: int) -> None:
    """Four KV heads on eight workers: each keeps a whole one."""
    assert read_geometry(QWEN36_27B).bytes_per_token(BF16, workers) == per_token


@pytest.mark.parametrize("name", ["Qwen3.5-9B", "Jamba-v0.1", "LFM2-1.2B", "MiniMax-Text-01", "Nemotron-Nano-9B-v2"])
def test_workers_share_the_state(name: str) -> None:
    """Whatever the kind of recurrence."""
    told = read_geometry(MODELS[name].config)
    told.check_workers(2)
    assert told.state_bytes(FP32, 2) * 2 == told.state_bytes(FP32)


def test_a_group_that_all_heads_share_is_on_every_worker() -> None:
    """Granite's one group is copied; the rest of the convolution is divided."""
    layer = read_geometry(MODELS["Granite-4.0-H-Small"].config).recurrence
    assert layer is not None
    assert layer.convolution_elements(4) == (8192 + 4 * 256) // 4 * 3


@pytest.mark.parametrize("workers", [3, 5])
def test_uneven_workers_are_refused(workers: int) -> None:
    """With the numbers that do not divide."""
    for config in (QWEN36_27B, MODELS["Jamba-v0.1"].config, DEEPSEEK_V3):
        with pytest.raises(InvalidInput) as caught:
            read_geometry(config).check_workers(workers)
        assert caught.value.path == "world_size" and str(workers) in caught.value.message


def test_state_heads_must_divide_too() -> None:
    """Attention alone could be shared among 32, the linear layers' 16 key heads cannot."""
    config = QWEN35_9B | {"num_attention_heads": 32, "num_key_value_heads": 32}
    with pytest.raises(InvalidInput, match="linear_num_key_heads = 16"):
        read_geometry(config).check_workers(32)


def test_shared_layers_keep_nothing_of_their_own() -> None:
    """Of 30 layers 10 read what others keep."""
    told = read_geometry(MODELS["Gemma-3n-E2B"].config)
    assert told.idle_layers == 10 and told.growing_layers + told.window_layers == 20


def test_a_switched_off_window_is_none() -> None:
    """`use_sliding_window: false` beside a size is how Qwen says no."""
    off = read_geometry(LLAMA | {"sliding_window": 4096, "use_sliding_window": False})
    assert off.window_layers == 0
    on = read_geometry(LLAMA | {"sliding_window": 4096, "use_sliding_window": True, "max_window_layers": 28})
    assert (on.growing_layers, on.window_layers) == (28, 4)


def test_a_family_s_own_pattern_is_used_and_said() -> None:
    """Gemma 3's published configs leave the pattern to the class."""
    config = {"text_config": plain(62, 32, 16, 5376, head_dim=128, sliding_window=1024, model_type="gemma3_text")}
    told = read_geometry(config)
    assert (told.growing_layers, told.window_layers) == (10, 52)
    assert [found.code for found in told.findings] == ["family_pattern"]


def test_a_window_that_nothing_assigns_is_an_error() -> None:
    """Which layers have it is not guessed."""
    with pytest.raises(InvalidInput) as caught:
        read_geometry(LLAMA | {"sliding_window": 4096})
    assert caught.value.path == "layer_types"


@pytest.mark.parametrize("extra", [GDN, {"mamba_d_state": 16}, {"conv_L_cache": 3}, {"ssm_state_size": 128}])
def test_recurrent_fields_without_a_layer_list_are_an_error(extra: dict[str, Any]) -> None:
    """Otherwise all layers would count as attention."""
    with pytest.raises(InvalidInput) as caught:
        read_geometry(LLAMA | extra)
    assert caught.value.path == "layer_types"


def test_the_state_s_type_is_told_when_it_is_assumed() -> None:
    """Twice the bytes hang on it."""
    config = {name: value for name, value in QWEN35_9B.items() if name != "mamba_ssm_dtype"}
    assert read_geometry(config).state_dtype == "bfloat16"
    told = read_geometry({"model_type": "qwen3_5", "text_config": config})
    assert told.state_dtype == "float32"
    assert [found.code for found in told.findings] == ["state_dtype_assumed"]


def test_what_a_class_has_a_default_for_may_be_left_out() -> None:
    """One group and four taps for Granite and its relatives, and both are said."""
    config = dict(MODELS["Granite-4.0-H-Tiny"].config)
    del config["mamba_n_groups"], config["mamba_d_conv"]
    told = read_geometry(config)
    assert told.state_bytes(BF16) == 29_030_400
    assert [found.code for found in told.findings].count("class_default") == 2


def test_old_spellings_are_read() -> None:
    """GPT-2's names, and one KV head for each attention head, as its class has no other."""
    told = read_geometry({"model_type": "gpt2", "n_layer": 12, "n_head": 12, "n_embd": 768, "n_positions": 1024})
    assert told.bytes_per_token(BF16) == 12 * 2 * 768 * 2 and told.longest_tokens == 1024
    assert {found.code for found in told.findings} == {"kv_heads_assumed", "head_dim_derived"}


def test_kv_heads_that_a_newer_family_must_tell_are_not_assumed() -> None:
    """A missing field would silently multiply the result."""
    config = {name: value for name, value in QWEN35_9B.items() if name != "num_key_value_heads"}
    with pytest.raises(InvalidInput) as caught:
        read_geometry({"model_type": "qwen3_5", "text_config": config})
    assert caught.value.path == "text_config.num_key_value_heads"


def test_k_and_v_of_different_sizes_are_added() -> None:
    """Some models keep narrower values than keys."""
    told = read_geometry(plain(10, 8, 4, 1024, head_dim=192, v_head_dim=128))
    assert told.bytes_per_token(BF16) == 10 * 4 * (192 + 128) * 2
    assert told.parts(BF16, FP32)[0].layer_bytes == 4 * (192 + 128) * 2


def test_a_quantised_cache_of_the_checkpoint_is_mentioned() -> None:
    """The engine may follow it without being asked."""
    told = read_geometry(LLAMA | {"quantization_config": {"kv_cache_scheme": {"num_bits": 8}}})
    assert "quantised_cache" in {found.code for found in told.findings}


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "empty": ({}, "num_hidden_layers"),
    "no layers": ({"num_attention_heads": 8}, "num_hidden_layers"),
    "zero layers": (LLAMA | {"num_hidden_layers": 0}, "num_hidden_layers"),
    "negative layers": (LLAMA | {"num_hidden_layers": -1}, "num_hidden_layers"),
    "layers as text": (LLAMA | {"num_hidden_layers": "32"}, "num_hidden_layers"),
    "layers as bool": (LLAMA | {"num_hidden_layers": True}, "num_hidden_layers"),
    "layers as list": (LLAMA | {"num_hidden_layers": [32]}, "num_hidden_layers"),
    "half a layer": (LLAMA | {"num_hidden_layers": 31.5}, "num_hidden_layers"),
    "endless layers": (LLAMA | {"num_hidden_layers": float("inf")}, "num_hidden_layers"),
    "a million layers": (LLAMA | {"num_hidden_layers": 10**6}, "num_hidden_layers"),
    "astronomic layers": (LLAMA | {"num_hidden_layers": 10**400}, "num_hidden_layers"),
    "no heads": ({"num_hidden_layers": 4, "hidden_size": 64}, "num_attention_heads"),
    "no kv heads": ({"num_hidden_layers": 4, "num_attention_heads": 8, "hidden_size": 64}, "num_key_value_heads"),
    "kv heads as list": (LLAMA | {"num_key_value_heads": [8] * 32}, "num_key_value_heads"),
    "more kv heads than heads": (LLAMA | {"num_key_value_heads": 64}, "num_key_value_heads"),
    "kv heads that do not divide": (LLAMA | {"num_key_value_heads": 5}, "num_key_value_heads"),
    "head size as object": (LLAMA | {"head_dim": {}}, "head_dim"),
    "head size zero": (LLAMA | {"head_dim": 0}, "head_dim"),
    "head size half": (LLAMA | {"head_dim": 64.5}, "head_dim"),
    "section as list": ({"text_config": []}, "text_config"),
    "section empty": ({"num_hidden_layers": 4, "text_config": {}}, "text_config.num_hidden_layers"),
    "list too short": (LLAMA | {"layer_types": [FULL]}, "layer_types"),
    "list as text": (LLAMA | {"layer_types": "full"}, "layer_types"),
    "list of numbers": (LLAMA | {"layer_types": [1] * 32}, "layer_types"),
    "unknown kind": (LLAMA | {"layer_types": ["quantum_attention"] * 32}, "layer_types"),
    "no attention at all": (QWEN35_9B | {"layer_types": [LINEAR] * 32}, "layer_types"),
    "windows of no size": (LLAMA | {"layer_types": [WINDOW] * 32}, "sliding_window"),
    "windows of size null": (LLAMA | {"layer_types": [WINDOW] * 32, "sliding_window": None}, "sliding_window"),
    "letters unknown": (LLAMA | {"hybrid_override_pattern": "Q" * 32}, "hybrid_override_pattern"),
    "letters too few": (LLAMA | {"hybrid_override_pattern": "M*"}, "hybrid_override_pattern"),
    "letters as list": (LLAMA | {"hybrid_override_pattern": ["M"]}, "hybrid_override_pattern"),
    "types of twos": (LLAMA | {"attn_type_list": [2] * 32}, "attn_type_list"),
    "index beyond": (LLAMA | {"full_attn_idxs": [32]}, "full_attn_idxs"),
    "offset beyond period": (LLAMA | {"attn_layer_period": 4, "attn_layer_offset": 4}, "attn_layer_offset"),
    "interval zero": (QWEN35_9B | {"full_attention_interval": 0}, "full_attention_interval"),
    "all layers shared": (LLAMA | {"num_kv_shared_layers": 32}, "num_kv_shared_layers"),
    "latent without rope": (LLAMA | {"kv_lora_rank": 512}, "qk_rope_head_dim"),
    "linear without size": (LLAMA | {"layer_types": every(4, 32, LINEAR)}, "linear_num_value_heads"),
    "linear without kernel": (
        {name: value for name, value in QWEN35_9B.items() if name != "linear_conv_kernel_dim"},
        "linear_conv_kernel_dim",
    ),
    "pattern without attention": (LIGHTNING, "attn_type_list"),
    "interval without attention": (
        {name: value for name, value in QWEN35_9B.items() if name != "layer_types"} | {"full_attention_interval": 1000},
        "full_attention_interval",
    ),
    "index twice": (LLAMA | {"full_attn_idxs": [2, 2]}, "full_attn_idxs"),
    "model type of three bits": (LLAMA | {"torch_dtype": "int3"}, "torch_dtype"),
    "model type as number": (LLAMA | {"dtype": 3}, "dtype"),
    "model type in the wrapper": ({"text_config": LLAMA, "torch_dtype": "int3"}, "torch_dtype"),
    "model type in its section": ({"text_config": LLAMA | {"torch_dtype": "int3"}}, "text_config.torch_dtype"),
    "latent of no rank": (DEEPSEEK | {"kv_lora_rank": None}, "kv_lora_rank"),
    "latent without dimensions": (LLAMA | {"model_type": "deepseek_v3"}, "kv_lora_rank"),
    "chunks of unknown layers": (LLAMA | {"attention_chunk_size": 8192}, "layer_types"),
    "chunks of too few": (LLAMA4 | {"no_rope_layers": [1, 0]}, "no_rope_layers"),
    "chunks of twos": (LLAMA4 | {"no_rope_layers": [2] * 48}, "no_rope_layers"),
    "chunks of texts": (LLAMA4 | {"no_rope_layers": ["1"] * 48}, "no_rope_layers"),
    "chunks of no size": (LLAMA4 | {"attention_chunk_size": 0}, "attention_chunk_size"),
    "state type unknown": (QWEN35_9B | {"mamba_ssm_dtype": "int3"}, "mamba_ssm_dtype"),
    "state type as list": (QWEN35_9B | {"mamba_ssm_dtype": ["float32"]}, "mamba_ssm_dtype"),
    "layout of its own": (LLAMA | {"global_head_dim": 512}, "global_head_dim"),
    "windows of other heads": (LLAMA | {"swa_num_key_value_heads": 4}, "swa_num_key_value_heads"),
}


def test_llama_4_is_read_as_the_engine_reads_it() -> None:
    """Layers with rotary positions attend within chunks; those without, over everything."""
    told = read_geometry({"model_type": "llama4", "text_config": LLAMA4})
    assert (told.growing_layers, told.window_layers, told.window_tokens) == (12, 36, 8192)
    assert told.has_chunks and told.findings == ()
    bare = {name: value for name, value in LLAMA4.items() if name not in {"no_rope_layers", "attention_chunk_size"}}
    usual = read_geometry(bare)
    assert (usual.growing_layers, usual.window_layers, usual.window_tokens) == (12, 36, 8192)
    assert {(found.code, found.path) for found in usual.findings} == {
        ("family_pattern", "no_rope_layers"),
        ("class_default", "attention_chunk_size"),
    }
    assert read_geometry(bare | {"no_rope_layer_interval": 2}).window_layers == 24
    whole = read_geometry(LLAMA4 | {"attention_chunk_size": None})
    assert (whole.growing_layers, whole.has_chunks) == (48, False)


def test_llama_4_s_own_field_wins_over_layer_types() -> None:
    """The engine does not look at the list; one that says the same is no contradiction."""
    same = ["chunked_attention"] * 3 + [FULL]
    assert read_geometry(LLAMA4 | {"layer_types": same * 12}).findings == ()
    told = read_geometry(LLAMA4 | {"layer_types": [FULL] * 48})
    assert told.window_layers == 36
    (found,) = told.findings
    assert (found.severity, found.code) == ("warning", "fields_contradict")
    assert "no_rope_layers and layer_types contradict each other" in found.message


TWINS = {
    "head size": (LLAMA | {"head_dim": 128, "attention_head_dim": 64}, "head_dim", "attention_head_dim"),
    "layers": (LLAMA | {"n_layer": 16}, "num_hidden_layers", "n_layer"),
    "heads": (LLAMA | {"n_head": 16}, "num_attention_heads", "n_head"),
    "kv heads": (LLAMA | {"num_kv_heads": 16}, "num_key_value_heads", "num_kv_heads"),
    "width": (LLAMA | {"d_model": 16}, "hidden_size", "d_model"),
    "model types": (LLAMA | {"torch_dtype": "bfloat16", "dtype": "float16"}, "torch_dtype", "dtype"),
    "inside": ({"text_config": LLAMA | {"n_layer": 2}}, "text_config.num_hidden_layers", "text_config.n_layer"),
    "sections": ({"text_config": LLAMA, "llm_config": {"n_layer": 2}}, "text_config", "llm_config"),
}


@pytest.mark.parametrize(("config", "winner", "loser"), TWINS.values(), ids=TWINS.keys())
def test_two_names_for_one_thing_that_differ_are_told(config: dict[str, Any], winner: str, loser: str) -> None:
    """The first is read as without the second, and a warning names both."""
    told = read_geometry(config)
    (found,) = (found for found in told.findings if found.code == "fields_contradict")
    assert (found.severity, found.path) == ("warning", loser)
    assert found.message == f"{winner} and {loser} contradict each other; {winner} is used."
    assert told.growing_layers == 32 and told.bytes_per_token(2) == read_geometry(LLAMA).bytes_per_token(2)


def test_two_names_that_agree_are_no_contradiction() -> None:
    """Many configs write a thing twice; also a whole section."""
    for config in (LLAMA | {"n_layer": 32, "dtype": None}, {"text_config": LLAMA, "llm_config": dict(LLAMA)}):
        assert all(found.severity == "note" for found in read_geometry(config).findings)


def test_a_list_of_the_wrong_things_tells_the_entry() -> None:
    """It is a list; what is in it is wrong."""
    with pytest.raises(InvalidInput, match=r"^layer_types must be a list of layer kinds in quotes; entry 1 is 1\.$"):
        read_geometry(LLAMA | {"layer_types": [FULL, 1] * 16})


def test_latent_attention_that_is_switched_off_is_plain_attention() -> None:
    """As the small models of its families write it."""
    off = DEEPSEEK | {"kv_lora_rank": None, "qk_nope_head_dim": 0, "qk_rope_head_dim": 0, "v_head_dim": None}
    assert not read_geometry(off).attention.is_latent


@pytest.mark.parametrize(("config", "path"), REFUSED.values(), ids=REFUSED.keys())
def test_wrong_and_missing_fields_are_named(config: dict[str, Any], path: str) -> None:
    """One sentence with the field in it, and its path."""
    with pytest.raises(InvalidInput) as caught:
        read_geometry(config)
    assert caught.value.path == path
    assert path in caught.value.message and len(caught.value.message) < 300
