"""From an engine's metrics page to what the overview shows: HTTP, database, charts."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from app.errors import InvalidInput, NotFound
from app.services.charts import CHARTS, parse_window
from app.store.database import Database
from app.store.queries import fleets, samples, scrapes
from app.supervisor.states import EngineState
from tests.databases import T0, add_engine
from tests.integration.scrape_rig import Engines, Rig, metrics_server, one_engine, page, status


@pytest.fixture
async def rig(sqlite_database: Database) -> AsyncIterator[Rig]:
    async with one_engine(sqlite_database) as rig:
        yield rig


async def test_token_origin_is_what_the_engine_counted(rig: Rig) -> None:
    """The parts add up to the input; avoidable is the part of the recomputed whose state was missing."""
    await rig.scrape(page(0, 0, 0), beats=40, every=10)
    await rig.scrape(page(700, 200, 100, missed=60), beats=2)
    found = await rig.charts.token_origin(300, rig.now)
    assert found.as_json() == {
        "window_seconds": 300,
        "from": rig.now - 300,
        "to": rig.now,
        "input_tokens": 1000,
        "vram_tokens": 700,
        "host_tokens": 200,
        "recomputed_tokens": 100,
        "avoidable_tokens": 60,
        "complete": True,
        "reason": None,
    }


async def test_token_origin_of_one_engine(sqlite_database: Database) -> None:
    """Its own tokens, not those of its fleet; of one that is not known nothing."""
    with metrics_server() as one, metrics_server() as other:
        for name in ("e1", "e2"):
            await add_engine(sqlite_database, name)
        rig = Rig(sqlite_database, Engines(status(one.base_url), status(other.base_url, "e2")), one)
        other.text = page(0, 0, 0)
        await rig.scrape(page(0, 0, 0))
        other.text = page(0, 0, 50)
        await rig.scrape(page(700, 200, 100))
    tokens = {
        name: (await rig.charts.token_origin(300, rig.now, engine=name)).input_tokens for name in ("e1", "e2", "e3")
    }
    assert tokens == {"e1": 1000, "e2": 50, "e3": None}
    assert (await rig.charts.token_origin(300, rig.now)).input_tokens == 1050


async def test_restart_loses_and_doubles_nothing(database: Database) -> None:
    """1000, 1400, restart, 50, 250 adds up to 1650 since the first zero; the charts carry one mark."""
    async with one_engine(database) as rig:
        await rig.scrape(page(0, 0, 0))
        for value in (1000, 1400):
            await rig.scrape(page(computed=value))
        restarted = rig.now + 1
        rig.engines.change("e1", started_at=restarted)
        for value in (50, 250):
            await rig.scrape(page(computed=value, started=restarted))
        assert (await rig.charts.token_origin(300, rig.now)).input_tokens == 1650
        chart = await rig.charts.chart("token-origin", 300, rig.now)
        assert [mark.kind for mark in chart.marks] == ["reset"]


async def test_restart_that_the_supervisor_marked_is_marked_once(rig: Rig) -> None:
    """The supervisor's mark and the counters' reset are one event; a reset nobody announced is drawn."""
    await rig.scrape(page(computed=10))
    restarted = rig.now + 1
    async with rig.database.begin() as session:
        scrapes.add_mark(session, scrapes.Mark(1, restarted - 0.3, "restart", "Started again"))
    rig.engines.change("e1", started_at=restarted)
    rig.now += 100
    await rig.scrape(page(started=restarted))
    chart = await rig.charts.chart("load", 300, rig.now)
    assert [(mark.kind, mark.text) for mark in chart.marks] == [("restart", "Started again")]


async def test_counter_that_falls_without_a_restart_is_a_fault_of_the_data(rig: Rig) -> None:
    """It is no reset: nothing is added, the window says that its sum cannot be trusted, the chart shows where."""
    await rig.scrape(page(), beats=31, every=10)
    await rig.scrape(page(computed=1000))
    await rig.scrape(page(computed=999))
    found = await rig.charts.token_origin(300, rig.now)
    assert (found.input_tokens, found.complete, found.reason) == (1000, False, "data_fault")
    assert [mark.kind for mark in (await rig.charts.chart("load", 300, rig.now)).marks] == ["data_fault"]


async def test_restarted_deck_counts_on(rig: Rig) -> None:
    """The deck goes away and comes back; what the engine counted meanwhile is counted once."""
    await rig.scrape(page(computed=0))
    await rig.scrape(page(computed=1000))
    rig.restart_deck()
    await rig.scrape(page(computed=1300))
    assert (await rig.charts.token_origin(300, rig.now)).input_tokens == 1300


async def test_restart_while_the_deck_was_away(rig: Rig) -> None:
    """A higher value of a new process is all new, also when nobody watched the restart."""
    await rig.scrape(page(computed=0))
    await rig.scrape(page(computed=1000))
    rig.restart_deck()
    rig.engines.change("e1", started_at=rig.now + 1)
    await rig.scrape(page(computed=1200, started=rig.now + 1))
    assert (await rig.charts.token_origin(300, rig.now)).input_tokens == 2200


async def test_three_kinds_of_nothing(rig: Rig) -> None:
    """No requests yet, idle with the last value, and no data are told apart; none is 0 % or NaN."""
    await rig.scrape(page(), beats=3)
    fresh = await rig.charts.token_origin(300, rig.now)
    assert (fresh.input_tokens, fresh.reason) == (0, "no_requests_yet")
    assert (await rig.charts.headline(300, rig.now)).code == "empty"

    await rig.scrape(page(530, 100, 370))
    asked_at = rig.now
    await rig.scrape(beats=35, every=10)
    idle = await rig.charts.token_origin(300, rig.now)
    assert (idle.input_tokens, idle.reason, idle.complete) == (0, "idle", True)
    headline = await rig.charts.headline(300, rig.now)
    assert headline.code == "idle"
    assert headline.values["last_at"] == pytest.approx(asked_at, abs=2)
    assert headline.values["last_cached_share"] == pytest.approx(0.63)

    rig.server.status = 500
    await rig.scrape(beats=32, every=10)
    down = await rig.charts.token_origin(300, rig.now)
    assert (down.input_tokens, down.vram_tokens, down.reason, down.complete) == (None, None, "scrape_failed", False)
    headline = await rig.charts.headline(300, rig.now)
    assert (headline.severity, headline.code) == ("down", "down")
    assert headline.values["since"] == pytest.approx(rig.now - 31 * 10)
    assert headline.values["cause"] == "answered 500"


async def test_failed_scrapes_leave_gaps_and_make_the_window_incomplete(rig: Rig) -> None:
    """Charts show nothing for the time without numbers: a gap, not zeros; the sum says that it is partial."""
    await rig.scrape(page(), beats=28, every=10)
    await rig.scrape(beats=30)
    rig.server.status = 500
    await rig.scrape(beats=15)
    rig.server.status = 200
    await rig.scrape(page(computed=100), beats=15)
    found = await rig.charts.token_origin(300, rig.now)
    assert (found.input_tokens, found.complete, found.reason) == (100, False, "scrape_failed")
    running = (await rig.charts.chart("load", 300, rig.now)).lines[0].values[-20:]
    gap = [index for index, value in enumerate(running) if value is None]
    assert 4 <= len(gap) <= 7
    assert gap == list(range(gap[0], gap[-1] + 1))
    assert set(running) == {3, None}


async def test_engine_without_process_is_not_scraped_and_start_is_no_fault(rig: Rig) -> None:
    """A page that does not come while the engine starts is expected; a stopped engine is left alone."""
    rig.server.status = 503
    rig.engines.change("e1", state=EngineState.STARTING)
    await rig.scrape(beats=8)
    found = await rig.charts.token_origin(300, rig.now)
    assert (found.input_tokens, found.reason) == (None, "starting")
    rig.engines.change("e1", state=EngineState.STOPPED, pid=None)
    await rig.scrape(beats=3)
    found = await rig.charts.token_origin(300, rig.now)
    assert (found.input_tokens, found.reason) == (None, "not_running")
    async with rig.database.session() as session:
        runs = await scrapes.runs_between(session, [1], T0, rig.now)
    assert [(run.ok, run.reason, run.last_at - run.first_at) for run in runs] == [(False, "starting", 14)]


@pytest.mark.parametrize(
    ("text", "reason"),
    [("<html>hello</html>", "no engine metric on the page"), ("vllm:prompt_tokens_total x", "not a metrics page")],
)
async def test_page_that_is_no_metrics_page(rig: Rig, text: str, reason: str) -> None:
    """Something else on the port is a failure with its reason, told to watchers too."""
    with rig.events.subscribe() as watcher:
        await rig.scrape(text)
        event = await watcher.next()
    assert (event.kind, event.key, event.data["ok"]) == ("scrape", "e1", False)
    assert reason in event.data["reason"]


async def test_slow_page_does_not_hold_up_the_others(sqlite_database: Database) -> None:
    """Engines are scraped side by side; one that hangs is given up within the beat."""
    with metrics_server() as good, metrics_server() as bad:
        await add_engine(sqlite_database)
        await add_engine(sqlite_database, "e2")
        rig = Rig(sqlite_database, Engines(status(good.base_url), status(bad.base_url, "e2")), good, interval=0.4)
        bad.gate.clear()
        with rig.events.subscribe() as watcher:
            await rig.scrape(page())
            outcomes = {event.key: event.data for event in [await watcher.next(), await watcher.next()]}
        assert outcomes["e1"]["ok"] is True
        assert outcomes["e2"] == {"at": rig.now, "ok": False, "reason": "no answer in time"}
        await rig.close()


async def test_window_reaches_back_before_recording_began(rig: Rig) -> None:
    """A day asked for, minutes recorded: the sum is right but says that it is not the whole day."""
    await rig.scrape(page())
    await rig.scrape(page(vram=10), beats=3)
    found = await rig.charts.token_origin(86400, rig.now)
    assert (found.input_tokens, found.complete, found.reason) == (10, False, "window_starts_before_data")


async def test_engine_that_tells_only_hits_is_split_by_them(rig: Rig) -> None:
    """An older engine's page gives the same answer by its own counters."""
    names = ("vllm:prompt_tokens_total", "vllm:gpu_prefix_cache_hits_total", "vllm:external_prefix_cache_hits_total")
    old = "".join(f"{name} {{}}\n" for name in names)
    await rig.scrape(old.format(0, 0, 0))
    await rig.scrape(old.format(1000, 600, 100))
    found = await rig.charts.token_origin(300, rig.now)
    assert (found.vram_tokens, found.host_tokens, found.recomputed_tokens, found.avoidable_tokens) == (
        600,
        100,
        300,
        None,
    )


async def test_engine_that_tells_nothing_has_no_numbers(rig: Rig) -> None:
    """Null with its reason, not zero."""
    await rig.scrape("vllm:num_requests_running 1\nvllm:num_requests_waiting 0\n", beats=2)
    found = await rig.charts.token_origin(300, rig.now)
    assert (found.input_tokens, found.reason) == (None, "missing_metric")
    assert (await rig.charts.chart("slots", 300, rig.now)).empty_reason == "missing_metric"
    assert rig.loop.coverage("e1") is not None
    assert "prompt_tokens_by_source" in rig.loop.coverage("e1").unavailable  # type: ignore[union-attr]


async def test_upgrade_that_renames_a_metric_does_not_break_its_line(rig: Rig) -> None:
    """Old name, both names, new name: one line without a hole."""
    old, new = "vllm:gpu_cache_usage_perc 0.37\n", "vllm:kv_cache_usage_perc 0.37\n"
    for text in (old, old + new, new):
        await rig.scrape(text, beats=10)
    line = next(line for line in (await rig.charts.chart("memory", 60, rig.now)).lines if line.key == "kv")
    assert line.values[2:] == [0.37] * len(line.values[2:])


async def test_slots_and_state_slots_full(rig: Rig) -> None:
    """All state slots used, evictions going on, states missed: the headline names it."""
    evictions = 'tierdeck_host_evictions_total{{pool="state",reason="lru"}} {}\n'
    await rig.scrape(page(more=evictions.format(0)), beats=31, every=10)
    await rig.scrape(page(500, 100, 100, missed=80, more=evictions.format(70)))
    slots = await rig.charts.slots(rig.now)
    assert (slots.token_used, slots.token_total, slots.state_used, slots.state_total) == (40, 100, 30, 30)
    assert slots.evictions == {"state": {"lru": 70}}
    headline = await rig.charts.headline(300, rig.now)
    assert headline.code == "state_slots_full"
    assert headline.values["evictions_per_minute"] == 14


async def test_write_only_tier_names_the_cache_type(rig: Rig) -> None:
    """41 GB stored and nothing loaded while lookups go on, with the profile's KV dtype."""
    names = (
        'vllm:kv_offload_total_bytes_total{{transfer_type="GPU_to_CPU"}}',
        "vllm:external_prefix_cache_queries_total",
    )
    more = "".join(f"{name} {{}}\n" for name in names)
    await rig.scrape(page(more=more.format(0, 0)))
    await rig.scrape(page(900, 0, 100, more=more.format(4.1e10, 5e6)))
    headline = await rig.charts.headline(300, rig.now)
    assert (headline.code, headline.values["kv_cache_dtype"]) == ("write_only_tier", "fp8")


async def test_latest_numbers_of_an_engine(rig: Rig) -> None:
    """What the engine's row shows, and that it is stale once the scrapes fail."""
    ttft = "".join(f'vllm:time_to_first_token_seconds_bucket{{{{le="{le}"}}}} {{0}}\n' for le in ("1.0", "+Inf"))
    await rig.scrape(page(more=ttft.format(0)))
    await rig.scrape(page(more=ttft.format(4)))
    numbers = await rig.charts.latest("e1", rig.now)
    assert (numbers.running, numbers.waiting, numbers.kv_usage, numbers.ttft_p50_seconds) == (3, 1, 0.5, 0.5)
    assert (numbers.at, numbers.stale_reason) == (rig.now, None)
    rig.server.status = 500
    await rig.scrape(beats=8)
    numbers = await rig.charts.latest("e1", rig.now)
    assert (numbers.running, numbers.at, numbers.stale_reason) == (3, rig.now - 16, "scrape_failed")


async def test_latest_numbers_are_those_of_the_present_process(rig: Rig) -> None:
    """What the one before was last seen with is not shown as the new one's."""
    ttft = "".join(f'vllm:time_to_first_token_seconds_bucket{{{{le="{le}"}}}} {{0}}\n' for le in ("1.0", "+Inf"))
    await rig.scrape(page(more=ttft.format(0)))
    await rig.scrape(page(more=ttft.format(4)))
    rig.engines.change("e1", pid=43, started_at=rig.now + 1)
    numbers = await rig.charts.latest("e1", rig.now + 2)
    assert (numbers.at, numbers.running, numbers.kv_usage, numbers.ttft_p50_seconds) == (None, None, None, None)


async def test_every_chart_on_every_window(database: Database) -> None:
    """Each chart answers with lines as long as its times, from raw and from minute samples alike."""
    async with one_engine(database) as rig:
        await rig.scrape(page(), beats=2)
        for minute in range(12):
            await rig.scrape(page(70 * minute, 20 * minute, 10 * minute), beats=6, every=10)
        for window in ("5m", "1h", "6h", "24h", "7d", "15d"):
            for name in CHARTS:
                chart = await rig.charts.chart(name, parse_window(window), rig.now)
                assert chart.at == sorted(set(chart.at))
                assert {len(line.values) for line in chart.lines} == {len(chart.at)}
            shares = await rig.charts.chart("token-origin", parse_window(window), rig.now)
            columns = zip(*(line.values for line in shares.lines), strict=True)
            sums = [sum(filter(None, column)) for column in columns if column[0] is not None]
            assert sums, window
            assert sums == pytest.approx([1.0] * len(sums)), window


async def test_fleets_are_told_apart(rig: Rig) -> None:
    """A fleet's numbers are its own engines'; an unknown fleet or engine is said to be."""
    await rig.scrape(page(), beats=2)
    assert (await rig.charts.token_origin(300, rig.now, "f-e1")).input_tokens == 0
    with pytest.raises(NotFound):
        await rig.charts.token_origin(300, rig.now, "other")
    with pytest.raises(NotFound):
        await rig.charts.latest("other", rig.now)
    with pytest.raises(InvalidInput):
        await rig.charts.chart("other", 300, rig.now)


async def test_what_an_engine_served_stays_when_it_has_left(rig: Rig) -> None:
    """A fleet whose engines are replaced keeps its past: in the window that they served in, and no longer."""
    await rig.scrape(page(), beats=30)
    await rig.scrape(page(60, 30, 10), beats=30)
    async with rig.database.begin() as session:
        await fleets.retire_engine(session, "e1", rig.now)
    rig.engines.found.clear()
    rig.now += 60
    for fleet in ("f-e1", None):
        told = await rig.charts.token_origin(120, rig.now, fleet)
        assert (told.input_tokens, told.vram_tokens, told.complete) == (100, 60, True)
        drawn = await rig.charts.chart("token-origin", 120, rig.now, fleet)
        assert any(value for line in drawn.lines for value in line.values)
    told = await rig.charts.token_origin(30, rig.now, "f-e1")
    assert (told.input_tokens, told.reason) == (None, "no_engine")
    assert (await rig.charts.slots(rig.now, "f-e1")).token_total is None, "it holds nothing any more"


async def test_deck_without_engines_answers(sqlite_database: Database) -> None:
    """Nothing set up is a state like any other."""
    with metrics_server() as server:
        rig = Rig(sqlite_database, Engines(), server)
        await rig.scrape()
        assert (await rig.charts.token_origin(300, rig.now)).reason == "no_engine"
        assert (await rig.charts.headline(300, rig.now)).code == "no_engine"
        for name in CHARTS:
            assert (await rig.charts.chart(name, 300, rig.now)).empty_reason == "no_engine"


async def test_minute_samples_carry_a_long_window_when_raw_ones_are_gone(rig: Rig) -> None:
    """Hours later the sum over the day is the same, from minutes."""
    await rig.scrape(page())
    await rig.scrape(page(vram=400), beats=12, every=10)
    async with rig.database.begin() as session:
        await session.execute(samples.SAMPLES.delete())
    found = await rig.charts.token_origin(86400, rig.now + 6 * 3600)
    assert found.vram_tokens == 400


@pytest.mark.parametrize(("text", "seconds"), [("5m", 300), ("1h", 3600), ("24h", 86400), ("7d", 604800), ("90", 90)])
def test_windows_are_read(text: str, seconds: float) -> None:
    """Minutes, hours, days or plain seconds."""
    assert parse_window(text) == seconds


@pytest.mark.parametrize("text", ["", "0", "-5m", "1y", "five", "16d", "1e9", "5 m", "nan", "9" * 50])
def test_what_is_no_window_is_refused(text: str) -> None:
    """With the field's name, so that the form and the API can point at it."""
    with pytest.raises(InvalidInput) as caught:
        parse_window(text)
    assert caught.value.path == "window"
