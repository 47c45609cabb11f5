"""Geometry fields of public models, as their config.json have them, and what each keeps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

FULL, WINDOW, LINEAR = "full_attention", "sliding_attention", "linear_attention"
GDN = {
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
}


@dataclass(frozen=True)
class Model:
    """A config and the bytes that come of it: bf16 KV, the state's own type."""

    config: dict[str, Any]
    growing: int
    bytes_per_token: int
    window: int = 0
    window_bytes: int = 0
    recurrent: int = 0
    conv_elements: int = 0
    state_elements: int = 0
    layer_bytes_fp32: int = 0
    layer_bytes_bf16: int = 0
    state_bytes: int = 0


def every(interval: int, count: int, between: str) -> list[str]:
    return [FULL if (place + 1) % interval == 0 else between for place in range(count)]


def gdn(layers: int, heads: int, kv_heads: int, hidden: int, **more: Any) -> dict[str, Any]:
    """A model of gated delta net layers with every fourth a full attention one."""
    return {
        "num_hidden_layers": layers,
        "full_attention_interval": 4,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": 256,
        "hidden_size": hidden,
        "max_position_embeddings": 262_144,
        **GDN,
        **more,
    }


def nemotron(pattern: str, hidden: int, heads: int, mamba_heads: int, mamba_size: int, **more: Any) -> dict[str, Any]:
    return {
        "model_type": "nemotron_h",
        "num_hidden_layers": len(pattern),
        "hybrid_override_pattern": pattern,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": 8,
        "mamba_num_heads": mamba_heads,
        "mamba_head_dim": mamba_size,
        "ssm_state_size": 128,
        "n_groups": 8,
        "conv_kernel": 4,
        **more,
    }


def plain(layers: int, heads: int, kv_heads: int, hidden: int, **more: Any) -> dict[str, Any]:
    return {
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "hidden_size": hidden,
        **more,
    }


QWEN35_9B = gdn(32, 16, 4, 4096, layer_types=every(4, 32, LINEAR), mamba_ssm_dtype="float32")
QWEN35_35B = gdn(40, 16, 2, 2048, layer_types=every(4, 40, LINEAR), mamba_ssm_dtype="float32")
QWEN36_27B = gdn(
    64, 24, 4, 5120, layer_types=every(4, 64, LINEAR), linear_num_value_heads=48, mamba_ssm_dtype="float32"
)
LFM2 = plain(16, 32, 8, 2048, model_type="lfm2", conv_L_cache=3)
GPT_OSS = {"sliding_window": 128, "head_dim": 64, "model_type": "gpt_oss"}
GEMMA3 = {"sliding_window": 1024, "sliding_window_pattern": 6, "model_type": "gemma3_text"}
DEEPSEEK_V3 = plain(
    61,
    128,
    128,
    7168,
    kv_lora_rank=512,
    qk_rope_head_dim=64,
    qk_nope_head_dim=128,
    v_head_dim=128,
    num_nextn_predict_layers=1,
)
GRANITE = {"mamba_n_groups": 1, "mamba_d_conv": 4, "mamba_d_head": 64, "mamba_d_state": 128}


def granite_layers() -> list[str]:
    return ["attention" if place in {5, 15, 25, 35} else "mamba" for place in range(40)]


MODELS: dict[str, Model] = {
    "Qwen3-Next-80B-A3B": Model(
        gdn(48, 16, 2, 2048, model_type="qwen3_next", use_sliding_window=False),
        *(12, 24_576, 0, 0),
        *(36, 24_576, 524_288, 2_146_304, 1_097_728, 39_518_208),
    ),
    "Qwen3.5-9B": Model(
        {"model_type": "qwen3_5", "text_config": QWEN35_9B},
        *(8, 32_768, 0, 0),
        *(24, 24_576, 524_288, 2_146_304, 1_097_728, 51_511_296),
    ),
    "Qwen3.5-35B-A3B": Model(
        {"text_config": QWEN35_35B},
        *(10, 20_480, 0, 0),
        *(30, 24_576, 524_288, 2_146_304, 1_097_728, 64_389_120),
    ),
    "Qwen3.6-27B": Model(
        {"text_config": QWEN36_27B},
        *(16, 65_536, 0, 0),
        *(48, 30_720, 786_432, 3_207_168, 1_634_304, 153_944_064),
    ),
    "Jamba-v0.1": Model(
        plain(
            32,
            32,
            8,
            4096,
            model_type="jamba",
            attn_layer_period=8,
            attn_layer_offset=4,
            mamba_d_state=16,
            mamba_d_conv=4,
            mamba_expand=2,
        ),
        *(4, 16_384, 0, 0),
        *(28, 24_576, 131_072, 573_440, 311_296, 16_056_320),
    ),
    "Nemotron-Nano-9B-v2": Model(
        nemotron("M-M-M-MM-M-M-M*-M-M-M*-M-M-M-M*-M-M-M-M*-M-MM-M-M-M-M-M-", 4480, 40, 128, 80, head_dim=128),
        *(4, 16_384, 0, 0),
        *(27, 36_864, 1_310_720, 5_316_608, 2_695_168, 143_548_416),
    ),
    "Nemotron-3-Nano-4B": Model(
        nemotron("M-M-M-MM-M-M*-M-M*-M-M-M*-M-M-MM*-MMM-M-M-", 3136, 40, 96, 80, attention_head_dim=128),
        *(4, 16_384, 0, 0),
        *(21, 29_184, 983_040, 3_990_528, 2_024_448, 83_801_088),
    ),
    "Nemotron-H-8B-Base": Model(
        nemotron("M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-", 4096, 32, 128, 64, expand=2),
        *(4, 16_384, 0, 0),
        *(24, 30_720, 1_048_576, 4_255_744, 2_158_592, 102_137_856),
    ),
    "Falcon-H1-1.5B": Model(
        plain(
            24,
            8,
            2,
            2048,
            model_type="falcon_h1",
            head_dim=128,
            mamba_d_ssm=3072,
            mamba_d_state=256,
            mamba_n_groups=1,
            mamba_n_heads=48,
            mamba_d_head=64,
            mamba_d_conv=4,
        ),
        *(24, 24_576, 0, 0),
        *(24, 10_752, 786_432, 3_167_232, 1_594_368, 38_264_832),
    ),
    "Granite-4.0-H-Small": Model(
        plain(
            40,
            32,
            8,
            4096,
            model_type="granitemoehybrid",
            layer_types=granite_layers(),
            mamba_n_heads=128,
            **GRANITE,
        ),
        *(4, 16_384, 0, 0),
        *(36, 25_344, 1_048_576, 4_244_992, 2_147_840, 77_322_240),
    ),
    "Granite-4.0-H-Tiny": Model(
        plain(
            40, 12, 4, 1536, model_type="granitemoehybrid", layer_types=granite_layers(), mamba_n_heads=48, **GRANITE
        ),
        *(4, 8_192, 0, 0),
        *(36, 9_984, 393_216, 1_592_832, 806_400, 29_030_400),
    ),
    "LFM2-1.2B": Model(
        LFM2 | {"full_attn_idxs": [2, 5, 8, 10, 12, 14]},
        *(6, 12_288, 0, 0),
        *(10, 4_096, 0, 8_192, 8_192, 81_920),
    ),
    "LFM2-8B-A1B": Model(
        LFM2
        | {
            "num_hidden_layers": 24,
            "layer_types": [FULL if place in {2, 6, 10, 14, 18, 21} else "conv" for place in range(24)],
        },
        *(6, 12_288, 0, 0),
        *(18, 4_096, 0, 8_192, 8_192, 147_456),
    ),
    "MiniMax-Text-01": Model(
        plain(80, 64, 8, 6144, head_dim=128, attn_type_list=[0, 0, 0, 0, 0, 0, 0, 1] * 10),
        *(10, 40_960, 0, 0),
        *(70, 0, 1_048_576, 4_194_304, 2_097_152, 293_601_280),
    ),
    "gpt-oss-20b": Model(
        plain(24, 64, 8, 2880, layer_types=every(2, 24, WINDOW), **GPT_OSS), 12, 24_576, 12, 3_145_728
    ),
    "gpt-oss-120b": Model(
        plain(36, 64, 8, 2880, layer_types=every(2, 36, WINDOW), **GPT_OSS), 18, 36_864, 18, 4_718_592
    ),
    "Gemma-3-27B": Model({"text_config": plain(62, 32, 16, 5376, head_dim=128, **GEMMA3)}, 10, 81_920, 52, 436_207_616),
    "Gemma-3-4B": Model({"text_config": plain(34, 8, 4, 2560, head_dim=256, **GEMMA3)}, 5, 20_480, 29, 121_634_816),
    "Gemma-3n-E2B": Model(
        {
            "text_config": plain(
                30,
                8,
                2,
                2048,
                head_dim=256,
                sliding_window=512,
                num_kv_shared_layers=10,
                layer_types=every(5, 30, WINDOW),
            )
        },
        *(4, 8_192, 16, 16_777_216),
    ),
    "DeepSeek-V3": Model(DEEPSEEK_V3, 61, 70_272),
    "Llama-3.1-8B": Model(plain(32, 32, 8, 4096), 32, 131_072),
    "Llama-3.1-70B": Model(plain(80, 64, 8, 8192), 80, 327_680),
    "Qwen3-4B": Model(plain(36, 32, 8, 2560, head_dim=128, sliding_window=None), 36, 147_456),
}
