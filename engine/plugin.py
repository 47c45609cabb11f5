"""Entry point in the group `vllm.general_plugins`: vLLM calls `register` in each of its processes."""

from __future__ import annotations

import importlib
from typing import Any

from vllm.logger import init_logger

log = init_logger("vllm.tierdeck.plugin")

SPEC = ("TieringOffloadingSpec", "engine.spec")
CONNECTOR = ("OffloadingConnector", "engine.connector")


def register() -> None:
    """Put our classes behind the names of the field report's configuration.

    Nothing of ours is imported until one of the names is used. May be called any number of times,
    and must not stop a vLLM that has nothing to do with us.
    """
    try:
        from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
        from vllm.v1.kv_offload.factory import OffloadingSpecFactory
    except ImportError as error:
        log.warning("The host tier is not available: this vLLM has no place for it (%s).", error)
        return
    _replace(OffloadingSpecFactory, *SPEC)
    _replace(KVConnectorFactory, *CONNECTOR)


def _replace(factory: Any, name: str, module: str) -> None:
    registry = getattr(factory, "_registry", None)
    if not isinstance(registry, dict):  # another vLLM: the names keep their own meaning
        log.warning("The host tier is not available: %s of this vLLM is another one.", factory.__name__)
        return
    registry[name] = lambda: getattr(importlib.import_module(module), name)
