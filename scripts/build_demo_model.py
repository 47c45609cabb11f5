"""Write the demo model: a small hybrid model with random weights, and its tokenizer.

Runs in the engine's interpreter, never in the deck's process (it needs torch and transformers):
`python scripts/build_demo_model.py DIRECTORY`. `app.demo.model` calls it and puts the finished
directory in place.

Eight layers, three of linear attention for each one of full attention, 7 million parameters: the
structure of the big hybrid models, small enough to prefill 30,000 tokens on two CPU cores in about
ten seconds. It answers nonsense, but at temperature 0 always the same nonsense for the same prompt,
so a session that is restored wrongly shows.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen3NextConfig, Qwen3NextForCausalLM

SEED = 20240607
VOCABULARY = 512
MAX_POSITIONS = 262_144
END_OF_TEXT = "<|endoftext|>"
TURN_START = "<|im_start|>"
TURN_END = "<|im_end|>"
SPECIAL_TOKENS = [END_OF_TEXT, TURN_START, TURN_END]

CHAT_TEMPLATE = (
    "{%- for message in messages %}"
    "{{- '<|im_start|>' + message.role + '\\n' }}"
    "{%- if message.content is string %}{{- message.content }}"
    "{%- elif message.content %}{%- for part in message.content %}{{- part.text or '' }}{%- endfor %}"
    "{%- endif %}"
    "{{- '<|im_end|>\\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)

#: What the merges of the tokenizer are learnt from: plain prose, so that English takes about two
#: characters a token.
CORPUS = (
    "The engine keeps the cache of every session in the memory of the device.",
    "When the memory is full, the session that was idle for longest is pushed out.",
    "A session that comes back is restored from the host, or computed again from its first token.",
    "The state of the linear layers is kept at block boundaries, and there are few places for it.",
    "An agent opens many short sessions while the main one waits, and then the main one goes on.",
    "Read the file, change the function, run the tests, and tell me what you found.",
    "Please summarise this conversation: what was decided, by whom, and which questions remain open?",
    "Write a short answer first, then explain every step with an example that someone else can check.",
    "The report names hundreds of measurements, several experiments, and three possible explanations.",
)


def build_tokenizer() -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer of exactly `VOCABULARY` tokens; every text round-trips through it."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        min_frequency=1,
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    if tokenizer.get_vocab_size() != VOCABULARY:
        raise SystemExit(f"the tokenizer has {tokenizer.get_vocab_size()} tokens, not {VOCABULARY}")
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=TURN_END,
        pad_token=END_OF_TEXT,
        chat_template=CHAT_TEMPLATE,
        model_max_length=MAX_POSITIONS,
        clean_up_tokenization_spaces=False,
    )


def build_config(end_of_turn: int, padding: int) -> Qwen3NextConfig:
    """The model's shape. A state takes 137,216 bytes a layer, a token 512 in a layer of full attention."""
    return Qwen3NextConfig(
        vocab_size=VOCABULARY,
        hidden_size=256,
        num_hidden_layers=8,
        layer_types=(["linear_attention"] * 3 + ["full_attention"]) * 2,
        num_attention_heads=4,
        num_key_value_heads=1,
        head_dim=128,
        linear_num_key_heads=4,
        linear_num_value_heads=8,
        linear_key_head_dim=64,
        linear_value_head_dim=64,
        linear_conv_kernel_dim=4,
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=96,
        shared_expert_intermediate_size=96,
        decoder_sparse_step=1,
        max_position_embeddings=MAX_POSITIONS,
        # Tied embeddings make the engine's logits uniform: it would answer token 0 for ever.
        tie_word_embeddings=False,
        # Wide enough that greedy answers differ from prompt to prompt.
        initializer_range=0.12,
        eos_token_id=end_of_turn,
        pad_token_id=padding,
        dtype="bfloat16",
    )


def build(directory: Path) -> None:
    """Write model, tokenizer and generation defaults into `directory`."""
    tokenizer = build_tokenizer()
    config = build_config(int(tokenizer.eos_token_id), int(tokenizer.pad_token_id))
    torch.manual_seed(SEED)
    model = Qwen3NextForCausalLM(config).to(torch.bfloat16)
    model.generation_config = GenerationConfig(
        eos_token_id=config.eos_token_id, pad_token_id=config.pad_token_id, do_sample=False
    )
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    print(f"{sum(parameter.numel() for parameter in model.parameters()):,} parameters")


def main() -> int:
    """Command line entry."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("directory", type=Path)
    build(parser.parse_args().directory)
    return 0


if __name__ == "__main__":
    sys.exit(main())
