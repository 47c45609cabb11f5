"""Small models of other kinds than the demo's, with random weights: attention alone, and with sliding windows."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import Olmo3Config, Olmo3ForCausalLM, PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

from scripts.build_demo_model import SEED, build_tokenizer

SHAPE = {
    "vocab_size": 512,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 8192,
    # As in the demo model: answers that differ from prompt to prompt.
    "tie_word_embeddings": False,
    "initializer_range": 0.12,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "dtype": "bfloat16",
}
WINDOW_TOKENS = 500


def full_attention() -> PreTrainedModel:
    """Four layers, all of which need every block."""
    return Qwen3ForCausalLM(Qwen3Config(head_dim=64, **SHAPE))


def sliding_windows() -> PreTrainedModel:
    """Two layers that look back 500 tokens for each two that need every block."""
    kinds = ["sliding_attention", "full_attention"] * 2
    shape = SHAPE | {"hidden_size": 256}
    return Olmo3ForCausalLM(Olmo3Config(sliding_window=WINDOW_TOKENS, layer_types=kinds, **shape))


def build(model_of: object, directory: Path) -> Path:
    """Write the model and the demo's tokenizer."""
    torch.manual_seed(SEED)
    assert callable(model_of)
    model_of().to(torch.bfloat16).save_pretrained(directory)
    build_tokenizer().save_pretrained(directory)
    return directory
