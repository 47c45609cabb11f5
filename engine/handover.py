"""From the connector, which vLLM tells about the KV cache, to the spec, which it does not."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any, NamedTuple

from engine.config import ConfigError


class Surroundings(NamedTuple):
    """What vLLM gives a connector: its own configuration and the layout of the KV cache."""

    vllm_config: Any
    kv_cache_config: Any


_surroundings: ContextVar[Surroundings] = ContextVar("tierdeck_surroundings")


@contextlib.contextmanager
def handing_over(vllm_config: Any, kv_cache_config: Any) -> Iterator[None]:
    """Let a spec that is made inside see them."""
    token = _surroundings.set(Surroundings(vllm_config, kv_cache_config))
    try:
        yield
    finally:
        _surroundings.reset(token)


def surroundings() -> Surroundings:
    """What the connector handed over."""
    try:
        return _surroundings.get()
    except LookupError:
        raise ConfigError(
            "The host tier needs its plug-in in every vLLM process: "
            "add tierdeck to VLLM_PLUGINS, or leave VLLM_PLUGINS unset."
        ) from None
