"""Metric pages of engines, old and new."""

from __future__ import annotations

from pathlib import Path

CAPTURED = Path(__file__).parents[2] / "data" / "metrics_vllm_0_32.txt"

OLD = """\
# HELP vllm:gpu_cache_usage_perc GPU KV-cache usage. 1 means 100 percent usage.
# TYPE vllm:gpu_cache_usage_perc gauge
vllm:gpu_cache_usage_perc{model_name="m"} 0.37
# TYPE vllm:gpu_prefix_cache_queries counter
vllm:gpu_prefix_cache_queries_total{model_name="m"} 1000.0
# TYPE vllm:gpu_prefix_cache_hits counter
vllm:gpu_prefix_cache_hits_total{model_name="m"} 630.0
# TYPE vllm:time_per_output_token_seconds histogram
vllm:time_per_output_token_seconds_bucket{le="0.1",model_name="m"} 4.0
vllm:time_per_output_token_seconds_bucket{le="+Inf",model_name="m"} 5.0
vllm:time_per_output_token_seconds_sum{model_name="m"} 0.6
vllm:time_per_output_token_seconds_count{model_name="m"} 5.0
"""

NEW = (
    OLD.replace("gpu_cache_usage_perc", "kv_cache_usage_perc")
    .replace("gpu_prefix_cache", "prefix_cache")
    .replace("time_per_output_token_seconds", "inter_token_latency_seconds")
)

MID = OLD + NEW
