"""Reading an engine's metrics page."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.scrape.names import BY_NAME, METRICS, SeriesKey
from app.scrape.parse import NotMetrics, Page, parse_page
from engine import metric_names
from tests.unit.scrape.pages import CAPTURED, MID, NEW, OLD

KV = SeriesKey("kv_usage")
QUERIES, HITS = SeriesKey("prefix_queries"), SeriesKey("prefix_hits")


def counter(page: Page, name: str, **labels: str) -> float | None:
    return page.counters.get(SeriesKey(name, tuple(sorted(labels.items()))))


@pytest.mark.parametrize("text", [OLD, MID, NEW], ids=["old", "mid", "new"])
def test_renamed_metrics_are_one_logical_series(text: str) -> None:
    """Old names, new names, both at once: the same series with the same value, nothing doubled."""
    page = parse_page(text)
    assert page.gauges[KV] == 0.37
    assert (page.counters[QUERIES], page.counters[HITS]) == (1000, 630)
    assert counter(page, "itl_seconds_count") == 5
    assert counter(page, "itl_seconds_bucket", le="+Inf") == 5
    assert page == parse_page(OLD)


def test_missing_is_absent_and_listed() -> None:
    """What the engine does not expose has no value, and its name is on the list for the page."""
    page = parse_page(OLD)
    assert SeriesKey("prompt_tokens") not in page.counters
    assert "prompt_tokens" in page.unavailable
    assert "host_slots" in page.unavailable
    assert "kv_usage" not in page.unavailable


SUFFIX_IN_TYPE = """\
# TYPE vllm:prefix_cache_queries_total counter
vllm:prefix_cache_queries_total{engine="0",model_name="m"} 5.12e+08
# TYPE vllm:prefix_cache_queries_created gauge
vllm:prefix_cache_queries_created{engine="0",model_name="m"} 1.79e+09
# TYPE vllm:prefix_cache_hits_total counter
vllm:prefix_cache_hits_total{engine="0",model_name="m"} 4.57e+08
"""
SUFFIX_NOT_IN_TYPE = SUFFIX_IN_TYPE.replace("queries_total counter", "queries counter").replace(
    "hits_total counter", "hits counter"
)
OPENMETRICS = """\
# TYPE vllm:prefix_cache_queries counter
vllm:prefix_cache_queries_total{engine="0",model_name="m"} 5.12e+08
vllm:prefix_cache_queries_created{engine="0",model_name="m"} 1.79e+09
# TYPE vllm:prefix_cache_hits counter
vllm:prefix_cache_hits_total{engine="0",model_name="m"} 4.57e+08
# EOF
"""


@pytest.mark.parametrize("text", [SUFFIX_IN_TYPE, SUFFIX_NOT_IN_TYPE, OPENMETRICS])
def test_suffix_rules_of_both_formats(text: str) -> None:
    """The `_total` of a counter may be in its TYPE line or not; `_created` is no counter; exponents are read."""
    page = parse_page(text)
    assert round(page.counters[HITS] / page.counters[QUERIES], 4) == 0.8926
    assert len(page.counters) == 2
    assert not any("created" in name for name in page.unknown)


def test_required_series_that_is_missing_is_missing() -> None:
    """A family without samples is not 0."""
    page = parse_page("# TYPE vllm:prefix_cache_queries_total counter\n" + NEW.replace("prefix_cache_queries", "other"))
    assert QUERIES not in page.counters
    assert "prefix_queries" in page.unavailable


def test_labels_that_do_not_matter_are_joined() -> None:
    """Data-parallel engines add up; the share they use is their mean."""
    page = parse_page(
        'vllm:num_requests_running{engine="0",model_name="m"} 3\n'
        'vllm:num_requests_running{engine="1",model_name="m"} 4\n'
        'vllm:kv_cache_usage_perc{engine="0"} 0.2\n'
        'vllm:kv_cache_usage_perc{engine="1"} 0.6\n'
    )
    assert page.gauge("requests_running") == 7
    assert page.gauge("kv_usage") == pytest.approx(0.4)


def test_kept_labels_tell_series_apart() -> None:
    """Pool and outcome stay; their order and the spelling of a bucket's bound do not matter."""
    page = parse_page(
        'tierdeck_host_slots{pool="state",group="all",engine="0"} 30\n'
        'tierdeck_host_slots{group="all",pool="token"} 900\n'
        'vllm:time_to_first_token_seconds_bucket{le="1"} 2\n'
        'vllm:time_to_first_token_seconds_bucket{le="1.0",engine="1"} 3\n'
    )
    assert page.gauges[SeriesKey("host_slots", (("group", "all"), ("pool", "state")))] == 30
    assert counter(page, "ttft_seconds_bucket", le="1.0") == 5


def test_older_offload_counters_are_told_apart_by_direction() -> None:
    """One family with a direction label was later split in two; a direction that is not there is absent."""
    page = parse_page('vllm:kv_offload_total_bytes_total{transfer_type="GPU_to_CPU"} 4.1e+10\n')
    assert counter(page, "offload_stored_bytes") == 4.1e10
    assert counter(page, "offload_loaded_bytes") is None


def test_names_nobody_reads_are_counted() -> None:
    """A new engine's unknown metrics are listed once each, whatever their parts and labels."""
    page = parse_page(
        NEW + "# TYPE vllm:new_thing histogram\n"
        'vllm:new_thing_bucket{le="1"} 1\nvllm:new_thing_sum 1\nvllm:new_thing_count 1\nother_total 3\n'
    )
    assert page.unknown == ("other_total", "vllm:new_thing")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "<html><body>Not found</body></html>",
        '{"error": "nope"}',
        "process_start_time_seconds 1.7e9\n",
        "vllm:prompt_tokens_total{engine=0} 1\n",
        "vllm:prompt_tokens_total what\n",
        "vllm:prompt_tokens_total\n",
    ],
)
def test_what_is_no_engine_s_page_is_refused(text: str) -> None:
    """Another server on the port, or a broken page, is a failed scrape, not an engine without metrics."""
    with pytest.raises(NotMetrics):
        parse_page(text)


@given(st.text(max_size=300))
def test_any_text_is_read_or_refused(text: str) -> None:
    """Whatever answers on the port, nothing but NotMetrics comes out."""
    for page in (text, NEW + text, "vllm:prompt_tokens_total" + text):
        try:
            parse_page(page)
        except NotMetrics:
            continue


def test_nan_is_not_a_value() -> None:
    """NaN says that nothing is known, so the gauge is absent."""
    assert KV not in parse_page(NEW.replace("0.37", "NaN")).gauges


def test_newest_names_are_those_of_the_real_engine() -> None:
    """Every first name is on a page captured from vLLM 0.32 with the connector in it."""
    page = parse_page(CAPTURED.read_text())
    assert page.unavailable == ()
    for metric in METRICS:
        assert metric.names[0].removesuffix("_total") in CAPTURED.read_text(), metric.name


def test_connector_s_names_are_those_it_publishes() -> None:
    """Both halves of the project name the connector's metrics alike, labels included."""
    ours = {name: metric for metric in METRICS for name in metric.names if name.startswith("tierdeck_")}
    assert ours.keys() == metric_names.BY_NAME.keys()
    for name, metric in ours.items():
        assert set(metric.labels) - {"le"} == set(metric_names.BY_NAME[name].labels), name
        assert metric.kind == metric_names.BY_NAME[name].kind, name


def test_captured_page_adds_up() -> None:
    """On the real engine the three sources are the prompt tokens, and hits are the local source."""
    page = parse_page(CAPTURED.read_text())
    sources = {
        key.label("source"): value for key, value in page.counters.items() if key.name == "prompt_tokens_by_source"
    }
    assert set(sources) == {"local_compute", "local_cache_hit", "external_kv_transfer"}
    assert sum(sources.values()) == page.counters[SeriesKey("prompt_tokens")] > 0


def test_every_tick_can_afford_a_page() -> None:
    """A real page is read in a small part of the two seconds between scrapes."""
    text = CAPTURED.read_text()
    started = time.process_time()
    for _ in range(10):
        parse_page(text)
    assert (time.process_time() - started) / 10 < 0.05


def test_logical_names_are_unique() -> None:
    """One metric per logical name."""
    assert len(BY_NAME) == len(METRICS)
