"""Which sentence stands on top of the overview."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.derive.coverage import Coverage, coverage
from app.derive.headline import EngineCounts, Facts, LastTraffic, Outage, headline
from app.derive.origin import Origin
from app.derive.slots import SlotUse
from app.store.queries.scrapes import Run

RUNNING = Facts(window_seconds=3600, engines=EngineCounts(serving=1), origin=Origin(800, 60, 140, 20), complete=True)
FULL = SlotUse(10, 100, 30, 30, {"state": {"lru": 70.0}})


def code(facts: Facts) -> tuple[str, str]:
    found = headline(facts)
    return found.severity, found.code


def test_cache_works() -> None:
    """With traffic and most of it cached, the sentence is about the cached share."""
    found = headline(RUNNING)
    assert (found.severity, found.code) == ("good", "works")
    assert found.values["cached_share"] == pytest.approx(0.86)


@pytest.mark.parametrize(
    ("engines", "expected"),
    [
        (EngineCounts(), ("empty", "no_engine")),
        (EngineCounts(starting=1, broken=1), ("idle", "starting")),
        (EngineCounts(broken=1), ("down", "down")),
        (EngineCounts(stalled=1), ("down", "stalled")),
        (EngineCounts(stopped=2), ("idle", "stopped")),
    ],
)
def test_engines_that_do_not_serve_come_first(engines: EngineCounts, expected: tuple[str, str]) -> None:
    """Good numbers of an hour ago are not the news while nothing serves."""
    assert code(replace(RUNNING, engines=engines)) == expected


def test_the_three_kinds_of_no_ratio_are_told_apart() -> None:
    """No requests yet, idle with the last value, and no data are three sentences, none of them 0 %."""
    none = Origin(0, 0, 0, 0)
    assert code(replace(RUNNING, origin=none, reason="no_requests_yet")) == ("empty", "empty")
    idle = headline(replace(RUNNING, origin=none, reason="idle", last_traffic=LastTraffic(1234.0, 0.63)))
    assert (idle.code, idle.values["last_at"], idle.values["last_cached_share"]) == ("idle", 1234.0, 0.63)
    failed = headline(replace(RUNNING, outage=Outage(99.0, "refused the connection")))
    assert (failed.severity, failed.code, failed.values["since"]) == ("down", "down", 99.0)
    assert failed.values["reason"] == "scrape_failed"


def test_full_state_slots_are_named_when_they_hurt() -> None:
    """Nearly all used, evictions going on, and tokens computed again for want of a state: all three."""
    assert code(replace(RUNNING, slots=FULL)) == ("warning", "state_slots_full")
    assert headline(replace(RUNNING, slots=FULL)).values["evictions_per_minute"] == 14
    assert code(replace(RUNNING, slots=replace(FULL, state_used=28))) == ("good", "works")
    assert code(replace(RUNNING, slots=replace(FULL, evictions={"state": {"lru": 0.0}}))) == ("good", "works")
    assert code(replace(RUNNING, slots=FULL, origin=Origin(800, 60, 140, 0))) == ("good", "works")


@pytest.mark.parametrize("loaded", [0.0, None])
def test_tier_that_is_only_written_is_named(loaded: float | None) -> None:
    """41 GB stored, nothing loaded (or no load counter beside the store counter), lookups going on."""
    facts = replace(RUNNING, stored_bytes=4.1e10, loaded_bytes=loaded, external_queries=5e6, kv_cache_dtype="fp8")
    found = headline(facts)
    assert (found.severity, found.code) == ("warning", "write_only_tier")
    assert found.values["kv_cache_dtype"] == "fp8"


@pytest.mark.parametrize(
    "change",
    [
        {"loaded_bytes": 1.0},
        {"external_queries": 0.0},
        {"external_queries": None},
        {"stored_bytes": 5e8},
        {"stored_bytes": None, "loaded_bytes": None},
    ],
)
def test_tier_that_helps_or_is_unknown_is_not_accused(change: dict[str, float | None]) -> None:
    """Something came back, nobody asked, too little was stored, or no counter tells."""
    facts = replace(RUNNING, stored_bytes=4.1e10, loaded_bytes=0.0, external_queries=5e6)
    assert headline(replace(facts, **change)).code == "works"


def test_low_share_is_cold() -> None:
    """Traffic that is mostly computed is said to be."""
    assert code(replace(RUNNING, origin=Origin(1000, 0, 9000, 0))) == ("warning", "cold")


def test_a_handful_of_tokens_is_no_verdict() -> None:
    """The deck's own check after a start is a prompt of one token; it does not make the cache look cold."""
    assert code(replace(RUNNING, origin=Origin(0, 0, 1, 0))) == ("empty", "few_tokens")


def run(first: float, last: float, reason: str | None = None) -> Run:
    return Run(1, 1, first, last, reason is None, reason or "")


@pytest.mark.parametrize(
    ("runs", "first_ok", "expected"),
    [
        ([run(0, 1000)], 0.0, Coverage(True)),
        ([run(500, 1000)], 500.0, Coverage(True, "window_starts_before_data")),
        ([run(0, 300), run(302, 400, "starting"), run(402, 1000)], 0.0, Coverage(True)),
        ([run(0, 300), run(302, 306, "no answer in time"), run(308, 1000)], 0.0, Coverage(True)),
        ([run(0, 300), run(302, 400, "no answer in time"), run(402, 1000)], 0.0, Coverage(True, "scrape_failed")),
        ([run(0, 900), run(902, 999, "x")], 0.0, Coverage(True, "scrape_failed", Outage(902, "x"))),
        ([run(0, 900), run(902, 950, "x"), run(952, 999, "y")], 0.0, Coverage(True, "scrape_failed", Outage(902, "y"))),
        ([run(0, 999, "starting")], None, Coverage(False)),
        ([], None, Coverage(False)),
    ],
)
def test_window_is_judged_by_its_scrapes(runs: list[Run], first_ok: float | None, expected: Coverage) -> None:
    """Failures nobody expected make a window incomplete; a start does not; an outage says since when."""
    assert coverage(runs, first_ok, 0, 1000) == expected
