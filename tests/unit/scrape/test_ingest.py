"""From a scraped page to rows, across restarts of the engine and of the deck."""

from __future__ import annotations

from app.derive.points import Point
from app.scrape.ingest import EXPOSED_START, RECORDED_START, Ingest, Memory, ingest
from app.scrape.memory import recall
from app.scrape.names import SeriesKey
from app.scrape.parse import Page

TOKENS, LATE = SeriesKey("prompt_tokens"), SeriesKey("ttft_seconds_count")


def page(tokens: float | None = None, started: float | None = None, late: float | None = None) -> Page:
    counters = {key: value for key, value in ((TOKENS, tokens), (LATE, late)) if value is not None}
    return Page(counters, {} if started is None else {EXPOSED_START: started})


def play(*scrapes: tuple[float, Page, float | None], memory: Memory | None = None) -> list[Ingest]:
    """Take in pages one after the other: (time, page, the supervisor's start record)."""
    taken, memory = [], memory or Memory()
    for at, one, recorded in scrapes:
        taken.append(ingest(memory, one, recorded, at))
        memory = taken[-1].memory
    return taken


def totals(taken: list[Ingest], key: SeriesKey = TOKENS) -> list[tuple[float, float]]:
    return [(sample.at, sample.total) for one in taken for sample in one.samples if sample.key == key]


def marks(taken: list[Ingest]) -> list[tuple[str, float]]:
    return [(mark.kind, mark.at) for one in taken for mark in one.marks]


def test_reset_is_undone_and_marked() -> None:
    """1000, 1400, restart, 50, 250: the stored totals rise by 650, with one mark at the restart."""
    taken = play(*((at, page(value), None) for at, value in ((0, 1000), (2, 1400), (4, 50), (6, 250))))
    found = totals(taken)
    assert found[-1][1] - found[0][1] == 650
    assert marks(taken) == [("reset", 4)]


def test_restart_is_seen_by_the_page_s_own_start_time() -> None:
    """1000, restart, 1200: counted as 1200 although the value did not fall."""
    taken = play((100, page(1000, started=50), None), (200, page(1200, started=150), None))
    assert totals(taken)[-1][1] - 1000 == 1200
    assert marks(taken) == [("reset", 150)]


def test_restart_is_seen_by_the_supervisor_s_record() -> None:
    """The same where the page does not tell when its process started."""
    taken = play((100, page(1000), 50.0), (200, page(1200), 150.0))
    assert totals(taken)[-1][1] - 1000 == 1200


def test_series_that_comes_back_late_is_counted_from_zero_and_resets_no_other() -> None:
    """A histogram not yet observed after the restart is missing for a while; it then counts in full."""
    taken = play(
        (100, page(1000, started=50, late=7), None),
        (200, page(10, started=150), None),
        (202, page(20, started=150, late=9), None),
    )
    assert totals(taken, LATE)[-1][1] == 7 + 9
    assert totals(taken)[-1][1] == 1000 + 20
    assert marks(taken) == [("reset", 150)]


def test_fall_without_a_restart_is_a_data_fault() -> None:
    """The same process, a lower value: a mark of its own kind, nothing added, nothing reset."""
    taken = play((100, page(1000, started=50), None), (102, page(990, started=50), None))
    assert totals(taken) == [(50, 0), (100, 1000), (102, 1000)]
    assert marks(taken) == [("data_fault", 102)]
    assert "prompt_tokens" in taken[-1].marks[0].text


def test_counter_that_shows_up_began_at_zero_at_the_scrape_before() -> None:
    """Labels appear with their first event; that event counts, and not before the last scrape."""
    taken = play((100, page(10, started=50), None), (102, page(10, started=50, late=3), None))
    assert totals(taken, LATE) == [(100, 0), (102, 3)]


def test_what_an_unknown_engine_counted_before_is_not_ours() -> None:
    """Met for the first time with no record of its start: counting begins with what it shows."""
    assert totals(play((100, page(5000), None))) == [(100, 5000)]


def test_first_tokens_after_a_restart_have_a_zero_to_be_counted_from() -> None:
    """The zero stands at the process start, so a window that begins in the down time counts them."""
    taken = play((100, page(1000, started=50), None), (200, page(40, started=150), None))
    assert totals(taken)[-2:] == [(150, 1000), (200, 1040)]


def test_restarted_deck_goes_on_where_it_was() -> None:
    """Recalled from the store, the next page adds only what is new."""
    points = {TOKENS: Point(100, 1400, 2400), EXPOSED_START: Point(100, 50, 50), RECORDED_START: Point(100, 49, 49)}
    kinds = {TOKENS: "counter", EXPOSED_START: "gauge", RECORDED_START: "gauge"}
    memory = recall(points, kinds, 100)
    (same,) = play((500, page(1500, started=50), 49.0), memory=memory)
    assert totals([same])[-1][1] == 2500
    assert marks([same]) == []
    (other,) = play((500, page(1500, started=300), 299.0), memory=memory)
    assert totals([other])[-1][1] == 3900
    assert marks([other]) == [("reset", 300)]


def test_recalled_counter_of_an_earlier_process_counts_from_zero() -> None:
    """A series last seen before the present process started holds nothing of that process."""
    points = {LATE: Point(40, 7, 7), EXPOSED_START: Point(100, 50, 50)}
    memory = recall(points, {LATE: "counter", EXPOSED_START: "gauge"}, 100)
    (taken,) = play((102, page(late=9, started=50), None), memory=memory)
    assert totals([taken], LATE)[-1][1] == 16


COMPUTED = SeriesKey("prompt_tokens_by_source", (("source", "local_compute"),))


def asked(tokens: float, own: int, memory: Memory, at: float, start: float = 50.0) -> Ingest:
    """A scrape of an engine whose whole input is `tokens`, of which the deck asked for `own`."""
    counters = {TOKENS: tokens, COMPUTED: tokens}
    return ingest(memory, Page(counters, {EXPOSED_START: start}), start, at, own)


def test_what_the_deck_itself_asks_for_is_nobody_s_traffic() -> None:
    """An idle engine that is asked for a token each minute stays idle, also after a restart of it."""
    memory = asked(1.0, 1, Memory(), 100).memory
    for minute in range(1, 6):
        memory = asked(1.0 + minute, 1, memory, 100 + 60 * minute).memory
    assert memory.counters[TOKENS].total == memory.counters[COMPUTED].total == 0
    taken = asked(506.0, 0, memory, 500)
    assert taken.memory.counters[TOKENS].total == 500 and not taken.marks
    again = asked(1.0, 1, taken.memory, 600, start=550.0).memory
    assert (again.counters[TOKENS].value, again.counters[TOKENS].total) == (0.0, 500.0)


def test_an_engine_that_counts_later_than_it_answers() -> None:
    """The token was answered and is not on the page yet: it is taken off when it comes, and no counter falls."""
    memory = asked(100.0, 0, Memory(), 100).memory
    early = asked(100.0, 1, memory, 102)
    late = asked(111.0, early.own_tokens, early.memory, 104)
    assert (early.own_tokens, late.own_tokens) == (1, 0)
    assert not early.marks and not late.marks
    assert late.memory.counters[TOKENS].total - memory.counters[TOKENS].total == 10


def test_a_true_fall_is_still_a_fault() -> None:
    memory = asked(100.0, 1, Memory(), 100).memory
    assert marks([asked(99.0, 1, memory, 102)]) == [("data_fault", 102)]
