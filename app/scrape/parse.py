"""An engine's metrics page -> logical samples. Pure.

The page is read by prometheus-client's parsers; before that, lines of metrics nobody reads are
dropped, which saves most of the work on a real page. A name that is not there stays absent.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from prometheus_client import Metric as Family
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from app.scrape.names import HISTOGRAM_PARTS, METRICS, Labels, Metric, SeriesKey

_NAME_END = re.compile(r"[{\s]")
_SELECTOR = re.compile(r'^(?P<name>[^{]+)(?:\{(?P<label>\w+)="(?P<value>[^"]*)"\})?$')


class NotMetrics(ValueError):
    """The text is not a metrics page."""


@dataclass(frozen=True)
class Page:
    """What one scrape found. `unavailable` names the logical metrics this engine does not have."""

    counters: Mapping[SeriesKey, float] = field(default_factory=dict)
    gauges: Mapping[SeriesKey, float] = field(default_factory=dict)
    unavailable: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()

    def gauge(self, name: str) -> float | None:
        """An unlabelled gauge, None when absent."""
        return self.gauges.get(SeriesKey(name))


@dataclass(frozen=True)
class _Source:
    """One name an engine may give a metric: the name, and the label that picks its samples."""

    name: str
    label: str | None
    value: str | None

    def picks(self, labels: Mapping[str, str]) -> bool:
        return self.label is None or labels.get(self.label) == self.value


@dataclass(frozen=True)
class _Found:
    name: str
    labels: Mapping[str, str]
    value: float


def parse_page(text: str) -> Page:
    """Read a page in the text or the OpenMetrics format; NotMetrics when it is neither."""
    is_openmetrics = text.rstrip().endswith("# EOF")
    kept, unknown = _split_lines(text)
    found = _by_name(_samples(kept, is_openmetrics))
    counters: dict[SeriesKey, float] = {}
    gauges: dict[SeriesKey, float] = {}
    unavailable = []
    for metric in METRICS:
        values = _logical(metric, found)
        if not values:
            unavailable.append(metric.name)
        (gauges if metric.kind == "gauge" else counters).update(values)
    if not counters and gauges.keys() <= {SeriesKey("process_start")}:  # that one any server has
        raise NotMetrics("no engine metric on the page")
    return Page(counters, gauges, tuple(unavailable), tuple(sorted(unknown)))


def _source(text: str) -> _Source:
    match = _SELECTOR.match(text)
    if match is None:
        raise ValueError(f"not a metric name: {text}")
    return _Source(match["name"], match["label"], match["value"])


_SOURCES: dict[str, tuple[_Source, ...]] = {metric.name: tuple(map(_source, metric.names)) for metric in METRICS}


def _text_names(metric: Metric) -> Iterator[str]:
    """Every sample and family name under which a page may mention `metric`."""
    for source in _SOURCES[metric.name]:
        yield source.name
        if metric.kind == "counter":
            yield source.name.removesuffix("_total")
        if metric.kind == "histogram":
            yield from (source.name + part for part in HISTOGRAM_PARTS)


_READ: frozenset[str] = frozenset(name for metric in METRICS for name in _text_names(metric))


def _split_lines(text: str) -> tuple[str, set[str]]:
    """The lines that are read, and the names of the metrics that are not."""
    kept: list[str] = []
    unknown: set[str] = set()
    for line in text.splitlines():
        if not line.startswith("#"):
            name = _NAME_END.split(line, maxsplit=1)[0]
        elif line.startswith("# TYPE "):
            name = line.split(maxsplit=3)[2] if line.count(" ") >= 3 else ""
        else:
            continue
        if name in _READ:
            kept.append(line)
        elif name and not name.endswith("_created"):
            unknown.add(_family_name(name, unknown))
    return "\n".join([*kept, ""]), unknown


def _family_name(name: str, known: set[str]) -> str:
    """A histogram's parts count as one name once its TYPE line was seen."""
    for part in (*HISTOGRAM_PARTS, "_total"):
        base = name.removesuffix(part)
        if base in known:
            return base
    return name


def _samples(text: str, is_openmetrics: bool) -> Iterator[_Found]:
    try:
        for family in _families(text, is_openmetrics):
            for sample in family.samples:
                if not sample.name.endswith("_created"):
                    yield _Found(sample.name, sample.labels, float(sample.value))
    except (ValueError, KeyError, IndexError) as error:
        raise NotMetrics(f"not a metrics page: {error}") from error


def _families(text: str, is_openmetrics: bool) -> Iterable[Family]:
    if not is_openmetrics:
        return parse_text(text)
    families: Iterable[Family] = parse_openmetrics(text + "# EOF\n")  # type: ignore[no-untyped-call]
    return families


def _by_name(samples: Iterable[_Found]) -> dict[str, list[_Found]]:
    found: dict[str, list[_Found]] = {}
    for sample in samples:
        found.setdefault(sample.name, []).append(sample)
    return found


def _logical(metric: Metric, found: Mapping[str, list[_Found]]) -> dict[SeriesKey, float]:
    """The values of a metric under the first of its names that is on the page."""
    for source in _SOURCES[metric.name]:
        if metric.kind == "histogram":
            values = _histogram(metric, source, found)
        else:
            values = _combine(metric, metric.name, [s for s in found.get(source.name, ()) if source.picks(s.labels)])
        if values:
            return values
    return {}


def _histogram(metric: Metric, source: _Source, found: Mapping[str, list[_Found]]) -> dict[SeriesKey, float]:
    values: dict[SeriesKey, float] = {}
    for part in HISTOGRAM_PARTS:
        values.update(_combine(metric, metric.name + part, found.get(source.name + part, ())))
    return values


def _combine(metric: Metric, name: str, samples: Iterable[_Found]) -> dict[SeriesKey, float]:
    groups: dict[SeriesKey, list[float]] = {}
    for sample in samples:
        if sample.value == sample.value:  # NaN is "not known", so it is as if it were absent
            groups.setdefault(SeriesKey(name, _kept_labels(metric, sample.labels)), []).append(sample.value)
    return {key: _joined(metric, values) for key, values in groups.items()}


def _kept_labels(metric: Metric, labels: Mapping[str, str]) -> Labels:
    return tuple(sorted((name, _label_value(name, labels[name])) for name in metric.labels if name in labels))


def _label_value(name: str, value: str) -> str:
    """One spelling for each bucket bound: clients write 1, 1.0 and 1e0 for the same one."""
    if name != "le":
        return value
    bound = float(value)
    return "+Inf" if bound == float("inf") else repr(bound)


def _joined(metric: Metric, values: list[float]) -> float:
    if metric.combine == "max":
        return max(values)
    return sum(values) / (len(values) if metric.combine == "mean" else 1)
