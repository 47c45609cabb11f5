"""From what the manager counted to what vLLM publishes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import product

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


def zeros() -> OffloadingConnectorStats:
    """What is known before anything has happened: a counter that was never increased is 0 and not missing."""
    stats = OffloadingConnectorStats()
    for metric in names.METRICS:
        for labels in product(*(names.LABEL_VALUES[label] for label in metric.labels)):
            if metric.kind == "counter":
                stats.increase_counter(metric.name, 0, labels)
            elif metric.kind == "histogram":
                stats.observe_histogram(metric.name, 0, labels)
                stats.data["data"][metric.name][labels].clear()
    return stats


@dataclass
class Recorder:
    """Counts between two collections; gauges are sent only when they changed."""

    counts: dict[tuple[str, tuple[str, ...]], float] = field(default_factory=dict)
    observations: dict[tuple[str, tuple[str, ...]], list[float]] = field(default_factory=dict)
    gauges: dict[tuple[str, tuple[str, ...]], float] = field(default_factory=dict)
    _sent: dict[tuple[str, tuple[str, ...]], float] = field(default_factory=dict)

    def count(self, name: str, *labels: str, by: float = 1) -> None:
        """Increase a counter."""
        key = name, labels
        self.counts[key] = self.counts.get(key, 0) + by

    def observe(self, name: str, value: float, *labels: str) -> None:
        """One observation of a histogram."""
        self.observe_all(name, [value], *labels)

    def observe_all(self, name: str, values: list[float], *labels: str) -> None:
        """Several observations of a histogram."""
        if values:
            self.observations.setdefault((name, labels), []).extend(values)

    def gauge(self, name: str, value: float, *labels: str) -> None:
        """The present value of a gauge."""
        self.gauge_all([(name, labels)], [value])

    def gauge_all(self, series: Iterable[tuple[str, tuple[str, ...]]], values: Iterable[float]) -> None:
        """The present values of several: of each its name and labels."""
        sent = self._sent
        for key, value in zip(series, values, strict=True):
            if sent.get(key) != value:
                sent[key] = self.gauges[key] = value

    def collect(self) -> OffloadingConnectorStats | None:
        """What is new since the last call; None if nothing is."""
        if not (self.counts or self.observations or self.gauges):
            return None
        stats = OffloadingConnectorStats()
        for (name, labels), value in self.counts.items():
            stats.increase_counter(name, value, labels)
        for (name, labels), values in self.observations.items():
            stats.observe_histogram(name, values[0], labels)
            stats.data["data"][name][labels] += values[1:]
        for (name, labels), value in self.gauges.items():
            stats.set_gauge(name, value, labels)
        self.counts.clear()
        self.observations.clear()
        self.gauges.clear()
        return stats
