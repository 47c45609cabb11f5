"""vLLM's own OffloadingConnector, with a few things added at its public edges."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1 import KVConnectorRole
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorTransferResults
from vllm.distributed.kv_transfer.kv_connector.v1.offloading_connector import OffloadingConnector as Upstream

from engine.config import SPEC_NAME, parse_config
from engine.handover import handing_over
from engine.metrics import zeros


class OffloadingConnector(Upstream):
    """As upstream's for every spec. For ours, it refuses a bad configuration before the model loads, hands over the
    layout of the KV cache, which a spec's own arguments do not have, tells of loads that failed (upstream's takes
    every load for a success), and notes where each request's input came from.
    """

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        with handing_over(vllm_config, kv_cache_config):
            super().__init__(vllm_config, role, kv_cache_config)
        self._is_ours = is_ours(vllm_config)
        self._loading: dict[int, str] = {}  # requests by load job
        if self._is_ours:
            # The default fails the request. What a cache has lost is computed anew.
            vllm_config.kv_transfer_config.kv_load_failure_policy = "recompute"

    def handle_preemptions(self, kv_connector_metadata: Any) -> None:
        """Transfers under way end before new ones begin: after a reset both may use the same slots."""
        if self._is_ours and kv_connector_metadata.jobs_to_flush:
            super().handle_preemptions(replace(kv_connector_metadata, store_jobs={}))
        super().handle_preemptions(kv_connector_metadata)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """Remember which request each load is for."""
        if self._is_ours:
            jobs = getattr(self._connector_metadata, "load_jobs", {})
            self._loading.update((job_id, job.req_id) for job_id, job in jobs.items())
        super().start_load_kv(forward_context, **kwargs)

    def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:
        """With the requests whose load failed: vLLM computes their tokens anew."""
        results: KVConnectorTransferResults = super().get_transfer_results(finished_req_ids)
        worker = self.connector_worker.worker if self._is_ours else None
        if worker is not None:
            failed = worker.take_failed_loads()
            results.failed_recving |= {self._loading[job_id] for job_id in failed if job_id in self._loading}
            self._loading = {job: req for job, req in self._loading.items() if req not in results.finished_recving}
        return results

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """A request begins."""
        super().update_state_after_alloc(request, blocks, num_external_tokens)
        if self._is_ours:
            self.scheduler.manager.served.began(request)

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        """A request of a model with one group of blocks ended."""
        self._note_end(request)
        ended: tuple[bool, dict[str, Any] | None] = super().request_finished(request, block_ids)
        return ended

    def request_finished_all_groups(
        self, request: Any, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        """A request of a model with several groups ended."""
        self._note_end(request)
        ended: tuple[bool, dict[str, Any] | None] = super().request_finished_all_groups(request, block_ids)
        return ended

    def _note_end(self, request: Any) -> None:
        if self._is_ours:
            manager = self.scheduler.manager
            manager.served.ended(request)
            manager.changed = True

    def update_connector_output(self, connector_output: Any) -> None:
        """The manager must not offer again what could not be loaded, and is told before the load ends for it."""
        failed = connector_output.failed_recving if self._is_ours else set()
        if failed:
            self.scheduler.manager.load_failed(failed)
            self.scheduler.manager.served.lost(failed)
        super().update_connector_output(connector_output)
        for req_id in failed:
            self._store_anew(req_id)

    def _store_anew(self, req_id: str) -> None:
        """vLLM takes what it wanted to load for stored, and would not offer what is computed in its place."""
        status = getattr(self.scheduler, "_req_status", {}).get(req_id)
        for group in status.group_states if status else ():
            group.next_stored_chunk_idx = 0

    @classmethod
    def build_prom_metrics(
        cls,
        vllm_config: Any,
        metric_types: Any,
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> Any:
        """Called in the API server when it starts: counters are on its page before the first request."""
        metrics = super().build_prom_metrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        if is_ours(vllm_config):
            for engine in per_engine_labelvalues:
                metrics.observe(zeros().data, engine)
        return metrics

    @classmethod
    def get_required_kvcache_layout(cls, vllm_config: Any) -> str | None:
        """Called while vLLM builds its configuration: the earliest moment to say that ours is wrong."""
        if is_ours(vllm_config):
            parse_config(vllm_config.kv_transfer_config.kv_connector_extra_config)
        layout: str | None = super().get_required_kvcache_layout(vllm_config)
        return layout


def is_ours(vllm_config: Any) -> bool:
    """Whether the engine is configured with our spec."""
    return bool(vllm_config.kv_transfer_config.kv_connector_extra_config.get("spec_name") == SPEC_NAME)
