"""What the door counts of itself, for Prometheus."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Histogram

from app.proxy.record import Record

#: From a hit in VRAM to a prefill of half an hour.
SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800)


class DoorMetrics:
    """Counters since this deck started."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._requests = Counter(
            "tierdeck_door_requests", "Requests that ended, by how.", ("fleet", "outcome"), registry=self.registry
        )
        self._identical = Counter(
            "tierdeck_door_identical_requests",
            "Requests whose prompt was in flight already.",
            ("fleet",),
            registry=self.registry,
        )
        self._joined = Counter(
            "tierdeck_door_joined_requests",
            "Of those, joined to the one in flight.",
            ("fleet",),
            registry=self.registry,
        )
        self._queue = self._histogram("queue", "Until an engine was found.")
        self._first_byte = self._histogram("first_byte", "Until the first byte of the answer's body.")
        self._total = self._histogram("request", "Until the end of the answer.")

    def count(self, record: Record) -> None:
        """Take in a request that ended."""
        fleet = record.fleet or ""
        self._requests.labels(fleet, record.outcome.value).inc()
        if record.is_identical:
            self._identical.labels(fleet).inc()
        if record.is_joined:
            self._joined.labels(fleet).inc()
        for histogram, seconds in (
            (self._queue, record.queue_seconds),
            (self._first_byte, record.first_byte_seconds),
            (self._total, record.total_seconds),
        ):
            if seconds is not None:
                histogram.labels(fleet).observe(seconds)

    def _histogram(self, name: str, about: str) -> Histogram:
        return Histogram(f"tierdeck_door_{name}_seconds", about, ("fleet",), buckets=SECONDS, registry=self.registry)
