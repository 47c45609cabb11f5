"""What makes bytes in host memory servable by another start of the engine. Anything that differs here makes
them foreign; anything that cannot be told apart makes them not worth keeping.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any, Final

from engine.layout import HostLayout

#: Only there with one arena: its pages lie in other places than the slots of a static split, with the same bytes.
ARENA_KEY: Final = "arena"
#: Raise it when rows, slots or the meaning of a key change.
FORMAT: Final = 1

_WEIGHTS: Final = ("*.safetensors", "*.bin", "*.pt", "*.pth", "*.gguf", "*.json")
_HASHES_WITH_FIXED_SEED: Final = ("sha256", "sha256_cbor")


class NotResidentError(Exception):
    """Contents cannot outlive this engine; the text says why."""


def identity_of(config: Any, vllm_config: Any, specs: list[Any], layout: HostLayout, seed: str | None) -> Any:
    """JSON values by name. `config` is the connector's, `seed` the one of Python's hashes, if it is set."""
    import vllm

    found = {
        "format": FORMAT,
        "vllm": str(vllm.__version__),
        "device": _device(),
        "model": _model(vllm_config),
        "weights": _weights(vllm_config),
        "cache": _cache(config, vllm_config),
        "hashes": _hashes(config, vllm_config, seed),
        "groups": [_group(group, spec) for group, spec in zip(config.groups, specs, strict=True)],
        "layout": _layout(layout),
        "parallel": _parallel(config),
    }
    if layout.pages:
        found[ARENA_KEY] = {"page_bytes": layout.page_bytes}
    return json.loads(json.dumps(found))


def _device() -> str:
    from vllm.platforms import current_platform

    return f"{current_platform.device_type}: {current_platform.get_device_name()}"


def _model(vllm_config: Any) -> dict[str, Any]:
    model = vllm_config.model_config
    if getattr(vllm_config, "lora_config", None) is not None:
        raise NotResidentError("adapters are in use, whose contents may change under the same name")
    described = json.dumps(model.hf_config.to_dict(), sort_keys=True, default=str)
    return {
        "name": str(model.model),
        "revision": model.revision,
        "dtype": str(model.dtype),
        "quantization": str(model.quantization),
        "config": _digest(described),
        "attention": str(getattr(getattr(vllm_config, "attention_config", None), "backend", None)),
    }


def _weights(vllm_config: Any) -> str:
    """Names, sizes and times of the files: reading them would take as long as loading them."""
    model, load = vllm_config.model_config, vllm_config.load_config
    if str(load.load_format) == "dummy":
        return f"dummy {model.seed}"
    path = Path(model.model)
    if getattr(model, "model_weights", None) or not path.exists():
        commit = getattr(model.hf_config, "_commit_hash", None)
        if getattr(model, "model_weights", None) or not commit:
            raise NotResidentError(f"the weights of {model.model} cannot be told from others of that name")
        return f"commit {commit}"
    files = [path] if path.is_file() else sorted({file for kind in _WEIGHTS for file in path.rglob(kind)})
    status = [(str(file.relative_to(path)), file.stat()) for file in files]
    return _digest(json.dumps([(name, found.st_size, found.st_mtime_ns) for name, found in status]))


def _cache(config: Any, vllm_config: Any) -> dict[str, Any]:
    cache = vllm_config.cache_config
    return {
        "dtype": str(cache.cache_dtype),
        "layout": str(getattr(config, "kv_cache_layout", None)),
        "skipped": [str(layer) for layer in getattr(cache, "kv_cache_dtype_skip_layers", None) or ()],
    }


def _hashes(config: Any, vllm_config: Any, seed: str | None) -> dict[str, Any]:
    algorithm = str(vllm_config.cache_config.prefix_caching_hash_algo)
    if seed is None and algorithm not in _HASHES_WITH_FIXED_SEED:
        raise NotResidentError(f"block hashes of kind {algorithm} begin with a random seed: set PYTHONHASHSEED")
    return {"algorithm": algorithm, "seed": seed, "tokens": config.cache.tokens_per_hash}


def _group(group: Any, spec: Any) -> dict[str, Any]:
    per_layer = getattr(spec, "kv_cache_specs", None)  # workers keep one per layer where the scheduler keeps one
    first = next(iter(per_layer.values())) if per_layer else spec
    values = {field.name: str(getattr(first, field.name)) for field in dataclasses.fields(first)}
    layers = sorted(group.layer_names)
    return {
        "id": group.group_id,
        "tokens": group.tokens_per_block,
        "layers": layers,
        "kind": type(first).__name__,
    } | values


def _layout(layout: HostLayout) -> dict[str, Any]:
    """The number of slots is left out: contents move to a pool of another size."""
    return {
        "groups": [dataclasses.astuple(group) for group in layout.groups],
        "blocks_per_chunk": layout.blocks_per_chunk,
        "slot_bytes": [layout.token_slot_bytes, layout.state_slot_bytes],
    }


def _parallel(config: Any) -> dict[str, int]:
    parallel = config.parallel
    return {name: getattr(parallel, f"{name}_size", 1) for name in ("world", "tp", "pp", "pcp", "dcp")}


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
