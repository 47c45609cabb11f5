"""Where input tokens came from."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.derive.origin import UNKNOWN, Origin, origin, shares, together
from app.scrape.names import SeriesKey


def by_source(**gains: float) -> dict[SeriesKey, float]:
    return {SeriesKey("prompt_tokens_by_source", (("source", source),)): gained for source, gained in gains.items()}


def lookups(**gains: float) -> dict[SeriesKey, float]:
    return {SeriesKey("host_lookup_tokens", (("outcome", outcome),)): gained for outcome, gained in gains.items()}


def test_the_engine_s_own_split_is_taken() -> None:
    """VRAM, host and recomputed as the engine counts them; input is their sum."""
    part = origin(by_source(local_cache_hit=700, external_kv_transfer=200, local_compute=100))
    assert part == Origin(700, 200, 100, None)
    assert part.input == 1000
    assert part.cached_share == 0.9


def test_older_engines_are_split_by_their_hits() -> None:
    """Without the split, the rest of the prompt was computed."""
    gains = {SeriesKey("prompt_tokens"): 1000.0, SeriesKey("prefix_hits"): 600.0, SeriesKey("external_hits"): 150.0}
    assert origin(gains) == Origin(600, 150, 250, None)


@pytest.mark.parametrize("missing", ["prompt_tokens", "prefix_hits", "external_hits"])
def test_what_the_engine_does_not_tell_stays_unknown(missing: str) -> None:
    """A series that is missing is not 0: without it nothing is claimed."""
    gains = {SeriesKey(name): 5.0 for name in ("prompt_tokens", "prefix_hits", "external_hits") if name != missing}
    assert origin(gains) == UNKNOWN
    assert origin(gains).input is None


def test_avoidable_is_a_part_of_what_was_recomputed() -> None:
    """Lookups can count more than was computed; avoidable never exceeds it."""
    gains = by_source(local_cache_hit=0, external_kv_transfer=0, local_compute=100)
    assert origin(gains | lookups(state_missing=60, hit=1)).avoidable == 60
    assert origin(gains | lookups(state_missing=500)).avoidable == 100


def test_avoidable_needs_the_connector_s_word() -> None:
    """No lookup series: not known. Lookups without a missed state: known to be 0."""
    gains = by_source(local_compute=100)
    assert origin(gains).avoidable is None
    assert origin(gains | lookups(hit=10)).avoidable == 0


def test_engine_that_does_not_tell_makes_the_sum_unknown() -> None:
    """Adding an unknown part to known ones gives an unknown one."""
    assert together([Origin(1, 2, 3, 1), Origin(1, 2, 3, None)]) == Origin(2, 4, 6, None)
    assert together([]) == UNKNOWN


def test_no_traffic_has_no_shares() -> None:
    """0 of 0 is neither 0 % nor 100 %."""
    idle = origin(by_source(local_cache_hit=0, external_kv_transfer=0, local_compute=0))
    assert idle.input == 0
    assert idle.cached_share is None
    assert shares(idle) is None


@given(st.integers(0, 10**9), st.integers(0, 10**9), st.integers(0, 10**9), st.integers(0, 10**9))
def test_shares_add_up_to_one(vram: int, host: int, computed: int, missed: int) -> None:
    """The four areas of the chart fill it exactly."""
    gains = by_source(local_cache_hit=vram, external_kv_transfer=host, local_compute=computed)
    found = shares(origin(gains | lookups(state_missing=missed)))
    if vram + host + computed == 0:
        assert found is None
    else:
        assert found is not None
        assert all(0 <= share <= 1 for share in found)
        assert sum(found) == pytest.approx(1)
