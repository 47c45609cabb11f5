"""What a new deck gives an engine to start with."""

from __future__ import annotations

import json
from pathlib import Path

from app.demo.profile import DEMO_FLAGS
from app.first_run import first_flags, first_transfer_config
from engine.config import parse_config

GIB = 1 << 30
#: The geometry of the demo model.
HYBRID = {
    "architectures": ["Qwen3NextForCausalLM"],
    "model_type": "qwen3_next",
    "num_hidden_layers": 8,
    "full_attention_interval": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "hidden_size": 256,
    "linear_num_key_heads": 4,
    "linear_num_value_heads": 8,
    "linear_key_head_dim": 64,
    "linear_value_head_dim": 64,
    "linear_conv_kernel_dim": 4,
    "max_position_embeddings": 262144,
}
PURE = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "hidden_size": 512,
    "max_position_embeddings": 8192,
}


def model(directory: Path, config: dict[str, object]) -> str:
    (directory / "config.json").write_text(json.dumps(config))
    return str(directory)


def test_a_hybrid_on_the_cpu_is_told_its_block(tmp_path: Path) -> None:
    """A multiple of 128 that holds a state, or returning sessions would be missed; on a GPU the engine knows."""
    flags = first_flags(model(tmp_path, HYBRID), on_cpu=True)
    assert flags["block-size"] % 128 == 0
    assert "block-size" not in first_flags(str(tmp_path), on_cpu=False)


def test_other_models_are_left_to_the_engine(tmp_path: Path) -> None:
    """Pure attention, names on a hub and configs nobody understands get the flags that harm nobody."""
    plain = {key: value for key, value in DEMO_FLAGS.items() if key in first_flags("org/name", on_cpu=True)}
    assert first_flags("org/name", on_cpu=True) == plain
    assert first_flags(model(tmp_path, PURE), on_cpu=True) == plain
    assert first_flags(model(tmp_path, {"model_type": "?"}), on_cpu=True) == plain


def test_the_first_host_tier_is_one_the_connector_takes() -> None:
    """A quarter of the memory, in whole GiB."""
    config = first_transfer_config(24 * GIB)
    assert parse_config(config["kv_connector_extra_config"]).cpu_bytes_to_use == 6 * GIB
