"""Quantiles from bucket gains."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.derive.quantiles import quantile

INF = math.inf


def test_inside_a_bucket_observations_are_evenly_spread() -> None:
    """The same number that Prometheus' histogram_quantile gives."""
    assert quantile(0.5, {0.1: 10, 0.5: 30, 1.0: 40, INF: 40}) == pytest.approx(0.3)
    assert quantile(0.9, {0.1: 10, 0.5: 30, 1.0: 40, INF: 40}) == pytest.approx(0.8)


def test_first_bucket_begins_at_zero() -> None:
    """Below the first bound there is nothing but zero to start from."""
    assert quantile(0.5, {1.0: 10, INF: 10}) == pytest.approx(0.5)


def test_beyond_the_last_bound_the_bound_is_the_answer() -> None:
    """Slower than every finite bucket: at least that bound, and no invented number."""
    assert quantile(0.99, {1.0: 1, 10.0: 2, INF: 10}) == 10.0


@pytest.mark.parametrize("buckets", [{}, {INF: 0.0}, {1.0: 0, INF: 0}, {1.0: 3, 2.0: 5}])
def test_without_observations_there_is_no_quantile(buckets: dict[float, float]) -> None:
    """Nothing observed, or no total: not known, never 0."""
    assert quantile(0.5, buckets) is None


@given(
    st.lists(st.integers(0, 1000), min_size=2, max_size=12).filter(any),
    st.floats(0, 1),
    st.floats(0, 1),
)
def test_quantiles_rise_and_stay_within_the_bounds(counts: list[int], one: float, other: float) -> None:
    """p90 is never below p50, and no answer lies outside the buckets."""
    bounds = [float(2**index) for index in range(len(counts) - 1)] + [INF]
    total, buckets = 0, {}
    for bound, count in zip(bounds, counts, strict=True):
        total += count
        buckets[bound] = float(total)
    low, high = quantile(min(one, other), buckets), quantile(max(one, other), buckets)
    assert low is not None
    assert high is not None
    assert 0 <= low <= high + 1e-9 <= bounds[-2] + 1e-6
