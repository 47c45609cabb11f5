"""Every metric of an engine that the deck reads, once: logical name -> the names engines gave it.

Newest name first: where an engine exposes several, the first one found is used and the others are
ignored, so nothing is counted twice. Counters are named here as they appear in the text format,
with `_total`. A name may pick its samples by one label: `name{label="value"}`. Names as of vLLM
0.32; older ones from the releases that renamed them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["counter", "gauge", "histogram"]
Combine = Literal["sum", "mean", "max"]
Labels = tuple[tuple[str, str], ...]

#: A histogram `x` is kept as the counters `x_bucket` (with `le`), `x_sum` and `x_count`.
HISTOGRAM_PARTS = ("_bucket", "_sum", "_count")


@dataclass(frozen=True)
class SeriesKey:
    """A logical series: its name (`ttft_seconds_bucket`, `host_slots`) and the labels that are kept, by name."""

    name: str
    labels: Labels = ()

    def label(self, name: str) -> str:
        """The value of a label, empty when it is not there."""
        return dict(self.labels).get(name, "")


@dataclass(frozen=True)
class Metric:
    """A logical metric. `labels` are the ones kept; `combine` joins samples that differ only in others.

    A sum is right for counts; a share of several data-parallel engines is their mean.
    """

    name: str
    kind: Kind
    names: tuple[str, ...]
    labels: tuple[str, ...] = ()
    combine: Combine = "sum"


METRICS: tuple[Metric, ...] = (
    Metric("prefix_queries", "counter", ("vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total")),
    Metric("prefix_hits", "counter", ("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total")),
    Metric("external_queries", "counter", ("vllm:external_prefix_cache_queries_total",)),
    Metric("external_hits", "counter", ("vllm:external_prefix_cache_hits_total",)),
    Metric("prompt_tokens", "counter", ("vllm:prompt_tokens_total",)),
    Metric("prompt_tokens_by_source", "counter", ("vllm:prompt_tokens_by_source_total",), ("source",)),
    Metric("generation_tokens", "counter", ("vllm:generation_tokens_total",)),
    Metric("cache_config", "gauge", ("vllm:cache_config_info",), ("block_size",), combine="max"),
    Metric("kv_usage", "gauge", ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"), combine="mean"),
    Metric("requests_running", "gauge", ("vllm:num_requests_running",)),
    Metric("requests_waiting", "gauge", ("vllm:num_requests_waiting",)),
    Metric("preemptions", "counter", ("vllm:num_preemptions_total",)),
    Metric("ttft_seconds", "histogram", ("vllm:time_to_first_token_seconds",), ("le",)),
    Metric("request_seconds", "histogram", ("vllm:e2e_request_latency_seconds",), ("le",)),
    Metric(
        "itl_seconds",
        "histogram",
        ("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds"),
        ("le",),
    ),
    Metric(
        "offload_stored_bytes",
        "counter",
        ("vllm:kv_offload_store_bytes_total", 'vllm:kv_offload_total_bytes_total{transfer_type="GPU_to_CPU"}'),
    ),
    Metric(
        "offload_loaded_bytes",
        "counter",
        ("vllm:kv_offload_load_bytes_total", 'vllm:kv_offload_total_bytes_total{transfer_type="CPU_to_GPU"}'),
    ),
    Metric("host_slots", "gauge", ("tierdeck_host_slots",), ("pool", "group")),
    Metric("host_slots_used", "gauge", ("tierdeck_host_slots_used",), ("pool", "group")),
    Metric("host_slots_pinned", "gauge", ("tierdeck_host_slots_pinned",), ("pool", "group")),
    Metric("host_bytes", "gauge", ("tierdeck_host_bytes",), ("pool",)),
    Metric("host_evictions", "counter", ("tierdeck_host_evictions_total",), ("pool", "reason")),
    Metric("host_refused_stores", "counter", ("tierdeck_host_refused_stores_total",), ("pool",)),
    Metric("host_verify_failures", "counter", ("tierdeck_host_verify_failures_total",)),
    Metric("host_lookup_tokens", "counter", ("tierdeck_host_lookup_tokens_total",), ("outcome",)),
    Metric("host_idle_seconds_at_eviction", "histogram", ("tierdeck_host_idle_seconds_at_eviction",), ("pool", "le")),
    Metric("host_restorable_sessions", "gauge", ("tierdeck_host_restorable_sessions",)),
    Metric("process_start", "gauge", ("process_start_time_seconds",), combine="max"),
)

BY_NAME: dict[str, Metric] = {metric.name: metric for metric in METRICS}
