"""From what the manager counted to what vLLM publishes."""

from __future__ import annotations

from dataclasses import dataclass, field

from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import OffloadingConnectorStats
from vllm.v1.kv_offload.base import (
    OffloadingCounterMetadata,
    OffloadingGaugeMetadata,
    OffloadingHistogramMetadata,
    OffloadingMetricMetadata,
)

from engine import metric_names as names


def definitions() -> dict[str, OffloadingMetricMetadata]:
    """vLLM's definitions of the connector's metrics."""
    return {metric.name: _definition(metric) for metric in names.METRICS}


def _definition(metric: names.ConnectorMetric) -> OffloadingMetricMetadata:
    if metric.kind == "histogram":
        return OffloadingHistogramMetadata(metric.documentation, metric.labels, buckets=metric.buckets)
    kind = OffloadingCounterMetadata if metric.kind == "counter" else OffloadingGaugeMetadata
    return kind(metric.documentation, metric.labels)


@dataclass
class Recorder:
    """Counts between two collections; gauges are sent only when they changed."""

    counts: dict[tuple[str, tuple[str, ...]], float] = field(default_factory=dict)
    observations: dict[tuple[str, tuple[str, ...]], list[float]] = field(default_factory=dict)
    gauges: dict[tuple[str, tuple[str, ...]], float] = field(default_factory=dict)
    _sent: dict[tuple[str, tuple[str, ...]], float] = field(default_factory=dict)
    _begun: bool = False

    def count(self, name: str, *labels: str, by: float = 1) -> None:
        """Increase a counter."""
        self.counts[name, labels] = self.counts.get((name, labels), 0) + by

    def observe(self, name: str, value: float, *labels: str) -> None:
        """One observation of a histogram."""
        self.observe_all(name, [value], *labels)

    def observe_all(self, name: str, values: list[float], *labels: str) -> None:
        """Several observations of a histogram."""
        self.observations.setdefault((name, labels), []).extend(values)

    def gauge(self, name: str, value: float, *labels: str) -> None:
        """The present value of a gauge."""
        self.gauges[name, labels] = value

    def collect(self) -> OffloadingConnectorStats | None:
        """What is new since the last call; None if nothing is."""
        self._begin_at_zero()
        stats = OffloadingConnectorStats()
        for (name, labels), value in self.counts.items():
            stats.increase_counter(name, value, labels)
        for (name, labels), values in self.observations.items():
            for value in values:
                stats.observe_histogram(name, value, labels)
        for key, value in self.gauges.items():
            if self._sent.get(key) != value:
                self._sent[key] = value
                stats.set_gauge(key[0], value, key[1])
        self.counts.clear()
        self.observations.clear()
        return None if stats.is_empty() else stats

    def _begin_at_zero(self) -> None:
        """A counter that was never increased is 0 and not missing."""
        if self._begun:
            return
        self._begun = True
        self.count(names.VERIFY_FAILURES, by=0)
        for outcome in names.OUTCOMES:
            self.count(names.LOOKUP_TOKENS, outcome, by=0)
        for pool in names.POOLS:
            self.count(names.REFUSED_STORES, pool, by=0)
            for reason in names.EVICTION_REASONS:
                self.count(names.EVICTIONS, pool, reason, by=0)
