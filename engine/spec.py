"""Joins manager and worker: the spec that vLLM's OffloadingConnector is told to use."""

from __future__ import annotations

import os
from typing import Any

from vllm.logger import init_logger
from vllm.v1.kv_offload.base import (
    CanonicalKVCaches,
    OffloadingManager,
    OffloadingMetricMetadata,
    OffloadingSpec,
    OffloadingWorker,
)
from vllm.v1.kv_offload.config import OffloadingConfig

from engine.arena import Arena, check_memory
from engine.config import ConfigError, TierConfig, parse_config
from engine.handover import surroundings
from engine.layout import HostLayout, host_layout
from engine.manager import TierManager
from engine.metrics import definitions
from engine.residency import residency_of
from engine.transfer import Copier
from engine.transfer.verify import VerifyingCopier
from engine.value_manager import ValueManager
from engine.worker import TierWorker, check_caches

log = init_logger("vllm.tierdeck.spec")


class TieringOffloadingSpec(OffloadingSpec):
    """One host tier: the scheduler gets the manager, every worker a part of the memory."""

    @classmethod
    def build_metric_definitions(cls, extra_config: dict[str, Any]) -> dict[str, OffloadingMetricMetadata]:
        """The metrics this spec publishes."""
        parse_config(extra_config)
        return definitions()

    def __init__(self, config: OffloadingConfig) -> None:
        self.tier_config = parse_config(config.extra_config)
        super().__init__(config)
        _check_parallelism(config)
        self.layout = _layout(config, self.tier_config)
        self._residency = residency_of(config, self.tier_config, surroundings(), _specs(config), self.layout)
        self._manager: TierManager | ValueManager | None = None
        self._worker: TierWorker | None = None

    def get_manager(self) -> OffloadingManager:
        """The scheduler's side, made once."""
        if self._manager is None and self.layout.pages:
            self._manager = self._arena_manager()
        if self._manager is None:
            plan, gib = self.layout.plan, self.layout.worker_bytes / (1 << 30)
            slots, memory = (plan.token_slots, plan.state_slots), self._residency.scheduler_memory()
            log.info("Host tier: %d token slots and %d state slots, %.2f GiB per worker.", *slots, gib)
            self._manager = TierManager(
                self.layout,
                self.config.parallel.world_size,
                self.tier_config.demote_superseded_states,
                events=self.config.enable_kv_cache_events,
                memory=memory,
                policy=self.tier_config.eviction_policy,
                store_threshold=self.tier_config.store_threshold,
            )
            memory.tell(self._manager)
        return self._manager

    def _arena_manager(self) -> ValueManager:
        size = self.layout.worker_bytes / (1 << 30)
        log.info("Host tier: one arena of %d pages, %.2f GiB per worker.", self.layout.pages, size)
        memory = self._residency.arena_memory()
        manager = ValueManager(
            self.layout,
            self.tier_config.eviction_policy,
            self.config.parallel.world_size,
            self.tier_config.demote_superseded_states,
            events=self.config.enable_kv_cache_events,
            memory=memory,
        )
        if memory is not None:
            memory.tell(manager)
        return manager

    def get_worker(self, kv_caches: CanonicalKVCaches) -> OffloadingWorker:
        """The side of this worker process, made once."""
        if self._worker is None:
            check_caches(self.layout, kv_caches)
            share = self._residency.worker_share(self.config.parallel.rank)
            check_memory(self.layout.worker_bytes - (share.used_bytes if share else 0))
            arena = Arena(self.layout, share)
            copier = _copier(self.tier_config, kv_caches, arena)
            if self.tier_config.verify:
                copier = VerifyingCopier(copier, kv_caches.tensors[0].tensor.device.type == "cpu")
            self._worker = TierWorker(self.layout, arena, kv_caches, copier)
        return self._worker


def _layout(config: OffloadingConfig, tier_config: TierConfig) -> HostLayout:
    groups = [
        (group.group_id, group.tokens_per_block, spec, len(group.layer_names))
        for group, spec in zip(config.groups, _specs(config), strict=True)
    ]
    return host_layout(
        tier_config,
        groups,
        config.cache.blocks_per_chunk,
        config.parallel.world_size,
        surroundings().vllm_config.cache_config.prefix_cache_retention_interval,
        _drafts(config),
    )


def _drafts(config: OffloadingConfig) -> set[int]:
    """Groups of a speculative draft model: vLLM leaves out their last block, which may still change."""
    kv_cache_groups = surroundings().kv_cache_config.kv_cache_groups
    return {
        group.group_id for group in config.groups if getattr(kv_cache_groups[group.group_id], "is_eagle_group", False)
    }


def _specs(config: OffloadingConfig) -> list[Any]:
    kv_cache_groups = surroundings().kv_cache_config.kv_cache_groups
    return [kv_cache_groups[group.group_id].kv_cache_spec for group in config.groups]


def _check_parallelism(config: OffloadingConfig) -> None:
    # Pipeline stages have other layers each, and so slots of other sizes.
    if config.parallel.pp_size > 1:
        raise ConfigError("The host tier cannot serve pipeline parallelism yet: start with --pipeline-parallel-size 1.")


def _copier(tier_config: TierConfig, kv_caches: CanonicalKVCaches, arena: Arena) -> Copier:
    device = kv_caches.tensors[0].tensor.device.type
    if device == "cpu":
        from engine.transfer.cpu import CpuCopier

        return CpuCopier(tier_config.transfer_threads or default_threads(os.cpu_count() or 1))
    if device == "cuda":
        return _cuda_copier(kv_caches, arena)
    raise ConfigError(f"The host tier cannot serve devices of kind {device}, only cpu and cuda.")


def _cuda_copier(kv_caches: CanonicalKVCaches, arena: Arena) -> Copier:
    import torch

    from engine.transfer.cuda import CudaCopier, find_batch_copy, pin

    spans = arena.spans
    release = pin([(int(span.ctypes.data), len(span)) for span in spans])
    views = [cache.tensor for cache in kv_caches.tensors]
    return CudaCopier(find_batch_copy(views, [torch.from_numpy(span.view("int8")) for span in spans]), release)


def default_threads(cores: int) -> int:
    """Half the cores, at most four: one thread nearly fills the memory bus, and the model needs the rest."""
    return max(1, min(4, cores // 2))
