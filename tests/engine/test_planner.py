"""The planner's arithmetic against the engine's own, imported, not started."""

from __future__ import annotations

from math import prod
from typing import Any

import pytest

from app.errors import InvalidInput
from app.planner.geometry import read_geometry
from tests.unit.planner.models import MODELS

pytestmark = pytest.mark.engine


def shapes(config: dict[str, Any], workers: int) -> tuple[tuple[int, ...], ...]:
    """What one worker of vLLM keeps of a recurrent layer: the convolution's shape and the state's."""
    from vllm.model_executor.layers.mamba.mamba_utils import MambaStateShapeCalculator as Engine

    get = config.get
    if "linear_num_value_heads" in config:
        sizes = (get("linear_key_head_dim"), get("linear_value_head_dim"), get("linear_conv_kernel_dim"))
        return Engine.gated_delta_net_state_shape(
            workers, get("linear_num_key_heads"), get("linear_num_value_heads"), *sizes
        )
    if "conv_L_cache" in config:
        return Engine.short_conv_state_shape(workers, get("hidden_size"), get("conv_L_cache"))
    if "attn_type_list" in config:
        return Engine.linear_attention_state_shape(get("num_attention_heads"), workers, get("head_dim"))
    if "mamba_expand" in config and "mamba_n_heads" not in config:
        width = get("mamba_expand") * get("hidden_size")
        return Engine.mamba1_state_shape(workers, width, get("mamba_d_state"), get("mamba_d_conv"))
    heads, size = get("mamba_num_heads") or get("mamba_n_heads"), get("mamba_head_dim") or get("mamba_d_head")
    groups, state = get("n_groups") or get("mamba_n_groups"), get("ssm_state_size") or get("mamba_d_state")
    kernel = get("conv_kernel") or get("mamba_d_conv")
    return Engine.mamba2_state_shape(workers, heads * size, groups, heads, size, state, kernel)


@pytest.mark.parametrize("name", [name for name, model in MODELS.items() if model.recurrent])
def test_states_are_as_large_as_the_engine_makes_them(name: str) -> None:
    """Convolution and state, on each of 1, 2, 4 and 8 workers, as far as the model can be shared."""
    config = MODELS[name].config.get("text_config", MODELS[name].config)
    layer, checked = read_geometry(config).recurrence, 0
    assert layer is not None
    for workers in (1, 2, 4, 8):
        try:
            layer.check_workers(workers)
        except InvalidInput:
            continue
        *convolution, state = shapes(config, workers) if layer.per_head else (*shapes(config, workers), (0,))
        assert layer.convolution_elements(workers) == sum(prod(shape) for shape in convolution)
        assert layer.state_elements(workers) == prod(state)
        checked += 1
    assert checked >= 3


@pytest.mark.parametrize("name", MODELS)
def test_tokens_are_as_large_as_the_engine_makes_them(name: str) -> None:
    """One block of one attention layer, in bf16 and fp8; a latent by the engine's own class for it."""
    import torch
    from vllm.v1.kv_cache_interface import FullAttentionSpec, MLAAttentionSpec

    one = read_geometry(MODELS[name].config).attention
    kind = MLAAttentionSpec if one.is_latent else FullAttentionSpec
    for dtype, element_bytes in ((torch.bfloat16, 2), (torch.float8_e4m3fn, 1)):
        spec = kind(block_size=16, num_kv_heads=one.heads, head_size=one.key_size, dtype=dtype)
        assert spec.page_size_bytes == 16 * one.bytes_per_token(element_bytes)
