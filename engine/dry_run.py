"""The engine's own reading of a command line, without loading weights: arguments, configuration, KV sizing.

The model is built on the meta device, where layers have shapes and no memory; its layers then tell what
they keep, and vLLM's own code lays that out. Each step is told as done or with the reason why not.
"""

from __future__ import annotations

import contextlib
import io
import tempfile
from pathlib import Path
from typing import Any

from engine.probe import parser, sentence_of

STEPS = ("arguments", "configuration", "kv_sizing")


def dry_run(arguments: list[str]) -> dict[str, Any]:
    """`steps` in order, each `{"name", "ok", "error"}`; the first that fails ends it. `numbers` as far as known.

    `ok` is null where the step cannot be taken without starting the engine; `error` then says why.
    """
    steps: list[dict[str, Any]] = []
    numbers: dict[str, Any] = {}
    state: dict[str, Any] = {"arguments": arguments}
    for name, act in zip(STEPS, (_parse, _configure, _size), strict=True):
        try:
            numbers |= act(state)
        except (LookupError, ImportError, AttributeError, NotImplementedError) as error:
            # This version of vLLM has it elsewhere, or does not tell it before it runs.
            steps.append({"name": name, "ok": None, "error": sentence_of(error)})
            break
        except Exception as error:  # noqa: BLE001 - the reason is what was asked for
            steps.append({"name": name, "ok": False, "error": sentence_of(error)})
            break
        steps.append({"name": name, "ok": True, "error": None})
    return {"steps": steps, "numbers": numbers}


def _parse(state: dict[str, Any]) -> dict[str, Any]:
    """The parser ends the process when it refuses; its last line is the reason."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            state["parsed"] = parser().parse_args(state["arguments"])
    except SystemExit as end:
        lines = [line for line in said.getvalue().splitlines() if line.strip()]
        raise ValueError(lines[-1].partition("error: ")[2] or lines[-1] if lines else "refused") from end
    return {}


def _configure(state: dict[str, Any]) -> dict[str, Any]:
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.usage.usage_lib import UsageContext

    engine_args = AsyncEngineArgs.from_cli_args(state["parsed"])
    config = engine_args.create_engine_config(usage_context=UsageContext.OPENAI_API_SERVER)
    state["config"] = config
    cache, scheduler = config.cache_config, config.scheduler_config
    return {
        "max_model_len": config.model_config.max_model_len,
        "dtype": str(config.model_config.dtype).removeprefix("torch."),
        "kv_cache_dtype": str(cache.cache_dtype),
        "block_size": cache.block_size,
        "enable_prefix_caching": bool(cache.enable_prefix_caching),
        "mamba_cache_mode": getattr(cache, "mamba_cache_mode", None),
        "prefix_cache_retention_interval": getattr(cache, "prefix_cache_retention_interval", None),
        "max_num_seqs": scheduler.max_num_seqs,
        "max_num_batched_tokens": scheduler.max_num_batched_tokens,
        "world_size": config.parallel_config.world_size,
    }


def _size(state: dict[str, Any]) -> dict[str, Any]:
    config = state["config"]
    if config.parallel_config.world_size != 1:
        raise LookupError("sizes are told for one rank only; with several the engine tells them at start")
    specs = _layer_specs(config)
    memory = config.cache_config.kv_cache_memory_bytes
    numbers: dict[str, Any] = {"block_size": config.cache_config.block_size, "kv_layers": len(specs)}
    if not memory:
        numbers["kv_cache_groups"] = _groups(config, specs)
        return numbers
    from vllm.v1.core.kv_cache_utils import get_kv_cache_configs, get_max_concurrency_for_kv_cache_config

    [layout] = get_kv_cache_configs(config, [specs], [memory])
    at_once = get_max_concurrency_for_kv_cache_config(config, layout)
    return {
        **numbers,
        "kv_cache_groups": len(layout.kv_cache_groups),
        "kv_blocks": layout.num_blocks,
        "kv_tokens": int(at_once * config.model_config.max_model_len),
        "sequences_of_full_length": round(at_once, 2),
    }


def _groups(config: Any, specs: dict[str, Any]) -> int:
    from vllm.v1.core.kv_cache_utils import get_kv_cache_groups

    return len(get_kv_cache_groups(config, specs))


def _layer_specs(config: Any) -> dict[str, Any]:
    """What each layer keeps, from a model without memory."""
    import torch
    from vllm.config import get_layers_from_vllm_config, set_current_vllm_config
    from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
    from vllm.model_executor.model_loader.utils import initialize_model
    from vllm.platforms import current_platform
    from vllm.utils.torch_utils import set_default_torch_dtype

    with set_current_vllm_config(config), _one_rank():
        with set_default_torch_dtype(config.model_config.dtype), torch.device("meta"):
            initialize_model(vllm_config=config)
        current_platform.update_block_size_for_backend(config)
        layers = get_layers_from_vllm_config(config, AttentionLayerBase)
        told = {name: layer.get_kv_cache_spec(config) for name, layer in layers.items()}
        specs = {name: spec for name, spec in told.items() if spec is not None}
        _resolve_layout(config, specs)
    return specs


def _resolve_layout(config: Any, specs: dict[str, Any]) -> None:
    """Newer engines settle once how a cache lies in memory; older ones have no such step."""
    try:
        from vllm.distributed.kv_transfer.kv_connector.utils import get_current_attn_backends
        from vllm.v1.attention.backends.utils import get_supported_kv_cache_layouts, resolve_kv_cache_layout
    except ImportError:
        return
    supported = get_supported_kv_cache_layouts(get_current_attn_backends(config))
    resolve_kv_cache_layout(config, [[layout.name for layout in supported]], specs.values())


@contextlib.contextmanager
def _one_rank() -> Any:
    """Layers ask which rank they are of: a group of this process alone, met over a file, not a port."""
    import torch
    from vllm.distributed.parallel_state import ensure_model_parallel_initialized, init_distributed_environment

    with tempfile.TemporaryDirectory() as directory:
        place = f"file://{Path(directory) / 'meeting'}"
        torch.distributed.init_process_group("gloo", init_method=place, rank=0, world_size=1)
        try:
            init_distributed_environment(1, 0, place, 0, "gloo")
            ensure_model_parallel_initialized(1, 1)
            yield
        finally:
            torch.distributed.destroy_process_group()
