"""VRAM and host apart for one request, where the counters tell it."""

from __future__ import annotations

from app.derive.request_origin import Cached, Totals, split

TIMES = [float(second) for second in range(0, 20, 2)]
REQUEST = Cached(1, start=6.0, end=9.0, cached_tokens=1000)


def counter(**steps: float) -> Totals:
    """A counter that grows by so much at each time: `at_8=1000`."""
    gained = {float(name.removeprefix("at_")): value for name, value in steps.items()}
    return Totals(TIMES, [sum(value for at, value in gained.items() if at <= time) for time in TIMES])


def told(vram: Totals | None = None, host: Totals | None = None, request: Cached = REQUEST) -> tuple[int, int] | None:
    counters = {"local_compute": counter(), "local_cache_hit": vram, "external_kv_transfer": host}
    return split(request, {source: totals for source, totals in counters.items() if totals is not None})


def test_where_only_one_source_grew_all_of_it_was_there() -> None:
    """However many other requests there were."""
    assert told(vram=counter(at_8=1000, at_10=500), host=counter(at_2=300)) == (1000, 0)
    assert told(vram=counter(at_2=9000), host=counter(at_8=4000)) == (0, 1000)
    assert told(vram=counter(at_8=1000)) == (1000, 0)


def test_where_both_grew_by_its_tokens_alone_they_are_its_own() -> None:
    """Nobody else had a hit meanwhile."""
    assert told(vram=counter(at_8=400), host=counter(at_8=600)) == (400, 600)


def test_where_others_had_hits_of_both_kinds_it_is_not_known() -> None:
    """Nothing is guessed."""
    assert told(vram=counter(at_8=1400), host=counter(at_8=600)) is None


def test_counters_that_do_not_hold_it_tell_nothing() -> None:
    """An engine that was restarted, or a page that was never read."""
    assert told(vram=counter(at_8=999)) is None
    assert split(REQUEST, {}) is None


def test_it_waits_for_the_page_that_counts_it() -> None:
    """The last page read must be of a time after its first token, the first one well before it was sent."""
    assert told(vram=counter(at_18=1000), request=Cached(1, 16.0, 18.5, 1000)) is None
    assert told(vram=counter(at_2=1000), request=Cached(1, 1.0, 1.5, 1000)) is None
    assert told(vram=counter(at_18=1000), request=Cached(1, 16.0, 17.5, 1000)) == (1000, 0)
