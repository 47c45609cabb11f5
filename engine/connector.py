"""vLLM's own OffloadingConnector, with two things added at its public edges."""

from __future__ import annotations

from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1 import KVConnectorRole
from vllm.distributed.kv_transfer.kv_connector.v1.offloading_connector import OffloadingConnector as Upstream

from engine.config import SPEC_NAME, parse_config
from engine.handover import handing_over


class OffloadingConnector(Upstream):
    """As upstream's for every spec; for ours, it refuses a bad configuration before the model loads and
    hands over the layout of the KV cache, which a spec's own arguments do not have.
    """

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        with handing_over(vllm_config, kv_cache_config):
            super().__init__(vllm_config, role, kv_cache_config)

    @classmethod
    def get_required_kvcache_layout(cls, vllm_config: Any) -> str | None:
        """Called while vLLM builds its configuration: the earliest moment to say that ours is wrong."""
        extra_config = vllm_config.kv_transfer_config.kv_connector_extra_config
        if extra_config.get("spec_name") == SPEC_NAME:
            parse_config(extra_config)
        layout: str | None = super().get_required_kvcache_layout(vllm_config)
        return layout
