"""Records of requests: what they hold, how they reach the database, how they are read and removed."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from sqlalchemy.exc import OperationalError

from app.errors import InvalidInput
from app.events import Events
from app.proxy.record import Outcome, Record
from app.proxy.usage import Usage
from app.scrape.names import SeriesKey
from app.services import requests as service
from app.services.request_origins import RequestOrigins
from app.services.requests import Requests
from app.store.database import Database
from app.store.queries import requests as queries
from app.store.queries import samples
from app.store.queries.requests import Filter
from app.store.retention import REQUEST_SECONDS, RetentionLoop
from app.supervisor.states import EngineState
from engine.served import ServedRequest
from tests.databases import T0, add_engine, database, postgres_url
from tests.fakes.upstream import Exchange, running
from tests.integration.door_rig import StatedEngines, engine, serving

__all__ = ["database", "postgres_url"]

USAGE = {"prompt_tokens": 30000, "completion_tokens": 8, "prompt_tokens_details": {"cached_tokens": 29952}}
STREAM_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def record(session: str = "s", outcome: Outcome = Outcome.DONE, **values: Any) -> Record:
    made = Record("POST", "/v1/completions", session=session, outcome=outcome, **values)
    made.queued(engine(), f"id-of-{session}")
    made.close()
    return made


async def test_a_record_tells_who_where_how_much_and_how_long() -> None:
    """Of a stream whose client asked for counts, and of a whole answer."""

    async def script(exchange: Exchange) -> None:
        if b"true" in exchange.body:
            await exchange.say(STREAM_HEAD)
            await exchange.chunk(b'data: {"choices":[]}\n\n' * 2000)
            await exchange.chunk(b'data: {"choices":[],"usage":%s}\n\n' % json.dumps(USAGE).encode())
            await exchange.chunk(b"data: [DONE]\n\n")
            await exchange.say(b"0\r\n\r\n")
        else:
            body = json.dumps({"choices": [], "usage": USAGE}).encode()
            await exchange.say(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)

    async with running(script) as upstream, serving(StatedEngines(engine(upstream.port, running_version=7))) as deck:
        for streams in (True, False):
            body = {"model": "demo", "messages": [], "stream": streams}
            await deck.post(json.dumps(body).encode(), "/v1/chat/completions", **{"X-Session-Id": "mine"})
        for streams, kept in zip((True, False), deck.ledger.records, strict=True):
            assert (kept.session, kept.fleet, kept.engine, kept.profile, kept.version) == (
                "mine",
                "main",
                "main-1",
                "demo",
                7,
            )
            assert kept.usage == Usage(30000, 8, 29952) and kept.model == "demo" and kept.streams is streams
            assert kept.outcome == "done" and kept.status == 200
            times = (kept.queue_seconds, kept.first_byte_seconds, kept.total_seconds)
            assert None not in times and sorted(times) == list(times)


async def test_a_record_has_the_name_by_which_the_engine_knows_the_request() -> None:
    """The client's own, else one that the door gives it; of a response, its id: vLLM takes no other."""

    async def script(exchange: Exchange) -> None:
        body = b'{"id":"resp_0a1b"}'
        await exchange.say(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)

    async with running(script) as upstream, serving(StatedEngines(engine(upstream.port))) as deck:
        await deck.post(b"{}")
        await deck.post(b"{}")
        await deck.post(b"{}", **{"X-Request-Id": "my-own"})
        await deck.post(b"{}", "/v1/responses")
        sent = [exchange.headers["x-request-id"] for exchange in upstream.exchanges]
        kept = [record.request_id for record in deck.ledger.records]
    assert kept == [*sent[:2], "my-own", "resp_0a1b"]
    assert sent[2] == "my-own" and len(set(sent)) == 4 and all(sent)


async def test_counts_that_the_engine_does_not_tell_are_missing() -> None:
    """Never 0; nor are they looked for in what is compressed."""

    async def script(exchange: Exchange) -> None:
        body = json.dumps({"usage": USAGE}).encode()
        await exchange.say(b"HTTP/1.1 200 OK\r\nContent-Encoding: br\r\nContent-Length: %d\r\n\r\n" % len(body) + body)

    async with running(script) as upstream, serving(StatedEngines(engine(upstream.port))) as deck:
        await deck.post(b"{}")
        assert deck.ledger.records[0].usage == Usage()


def how_refused(record: Record) -> tuple[str, int | None, int]:
    return record.outcome, record.status, record.sent_bytes


async def test_a_refusal_is_counted_as_it_was_sent() -> None:
    """The door's own words are bytes too; before and behind an early beginning."""
    async with serving(StatedEngines(engine()), door_body_limit_bytes=1 << 20) as deck:
        answer = await deck.post(b"x" * ((1 << 20) + 1))
        assert answer.status == 413 and answer.body
        assert [how_refused(record) for record in deck.ledger.records] == [("refused", 413, len(answer.body))]
    starting = StatedEngines(engine(state=EngineState.STARTING))
    async with serving(starting, door_early_stream_seconds=0.01, door_wait_seconds=0.1) as deck:
        answer = await deck.post(b'{"stream": true}')
        said = answer.body[answer.body.index(b"data:") :]
        assert [how_refused(record) for record in deck.ledger.records] == [("refused", 503, len(said))]


async def test_records_reach_the_database_in_batches(database: Database, monkeypatch) -> None:
    """Off the request's way, a few at a time; who watches is told."""
    monkeypatch.setattr(service, "GATHER_SECONDS", 0.0)
    monkeypatch.setattr(service, "BATCH", 2)
    events = Events()
    requests = Requests(database, events)
    with events.subscribe() as told:
        loop = asyncio.create_task(requests.run())
        for number in range(5):
            requests.keep(record(f"s{number}", usage=Usage(100, 5, 0)))
        counts = [(await asyncio.wait_for(told.next(), 5)).data["count"] for _ in range(3)]
        loop.cancel()
    assert counts == [2, 2, 1]
    views = await requests.newest(Filter(), 10)
    assert [view.session for view in views] == ["s4", "s3", "s2", "s1", "s0"]
    assert views[0].input_tokens == 100 and views[0].engine == "main-1" and views[0].outcome == "done"
    assert (views[0].cached_tokens, views[0].vram_tokens, views[0].host_tokens) == (0, 0, 0)


async def test_records_are_found_by_what_they_name(database: Database) -> None:
    """Session, engine, fleet, outcome; and page by page."""
    requests = Requests(database, Events())
    for number in range(6):
        requests.keep(record(f"s{number % 2}", Outcome.DONE if number < 4 else Outcome.CLIENT_CLOSED))
    await requests.flush()
    newest = await requests.newest(Filter(session="s1"), 2)
    older = await requests.newest(Filter(session="s1", before=newest[-1].id), 2)
    assert [view.outcome for view in [*newest, *older]] == ["client_closed", "done", "done"]
    assert len(await requests.newest(Filter(outcome="client_closed", engine="main-1", fleet="main"), 9)) == 2
    assert await requests.newest(Filter(engine="other"), 9) == []
    with pytest.raises(InvalidInput, match="client_closed") as wrong:
        await requests.newest(Filter(outcome="gone"), 9)
    assert wrong.value.path == "outcome"


async def test_homes_are_read_newest_first(database: Database) -> None:
    """For the next deck; requests that came to no engine have none."""
    requests = Requests(database, Events())
    requests.keep(record("s1"))
    requests.keep(record("s2"))
    lost = Record("POST", "/v1/completions", session="s3", outcome=Outcome.REFUSED)
    lost.close()
    requests.keep(lost)
    await requests.flush()
    assert await requests.homes() == [("s2", "main-1"), ("s1", "main-1")]


async def test_a_fault_of_the_database_loses_nothing(database: Database, monkeypatch) -> None:
    """What could not be written is written the next time."""
    requests = Requests(database, Events())
    requests.keep(record("s1"))
    add = queries.add

    async def fail(*_: object) -> None:
        raise OperationalError("insert", {}, Exception("database is locked"))

    monkeypatch.setattr(queries, "add", fail)
    with pytest.raises(OperationalError):
        await requests.flush()
    monkeypatch.setattr(queries, "add", add)
    requests.keep(record("s2"))
    await requests.flush()
    assert [view.session for view in await requests.newest(Filter(), 9)] == ["s2", "s1"]


async def test_a_batch_that_is_being_written_is_finished_when_the_deck_ends(database: Database, monkeypatch) -> None:
    """The loop is cancelled in the middle of a write: every record is there, once."""
    monkeypatch.setattr(service, "GATHER_SECONDS", 0.0)
    requests, begun, go_on, add = Requests(database, Events()), asyncio.Event(), asyncio.Event(), queries.add

    async def slowly(*given: Any) -> None:
        begun.set()
        await go_on.wait()
        await add(*given)

    monkeypatch.setattr(queries, "add", slowly)
    loop = asyncio.create_task(requests.run())
    requests.keep(record("s1"))
    await begun.wait()
    requests.keep(record("s2"))
    loop.cancel()
    await asyncio.wait({loop})
    ending = asyncio.create_task(requests.flush())
    go_on.set()
    await ending
    assert [view.session for view in await requests.newest(Filter(), 9)] == ["s2", "s1"]


async def test_whatever_a_client_writes_is_kept(database: Database) -> None:
    """Characters that PostgreSQL refuses, and texts without end, cost no record."""
    requests = Requests(database, Events())
    strange = Record("POST", "/v1/\0" + "x" * 10_000, session="a\0b", model="m" * 10_000, outcome=Outcome.REFUSED)
    strange.close()
    requests.keep(strange)
    requests.keep(record("s2"))
    await requests.flush()
    newest, oldest = await requests.newest(Filter(), 9)
    assert newest.session == "s2" and oldest.session == "a�b" and len(oldest.path) == len(oldest.model or "") == 256


async def test_what_cannot_be_held_is_counted(database: Database, monkeypatch) -> None:
    """A database that is away for long costs records, never memory or requests."""
    monkeypatch.setattr(service, "MAX_HELD", 2)
    requests = Requests(database, Events())
    for number in range(5):
        requests.keep(record(f"s{number}"))
    await requests.flush()
    assert requests.dropped == 3 and len(await requests.newest(Filter(), 9)) == 2


async def test_old_records_are_removed(database: Database) -> None:
    """After fifteen days."""
    requests = Requests(database, Events())
    for age in (REQUEST_SECONDS + 60, REQUEST_SECONDS - 60):
        requests.keep(record(f"{age:.0f}", at=T0 - age))
    await requests.flush()
    await RetentionLoop(database).thin(T0)
    assert [view.session for view in await requests.newest(Filter(), 9)] == [f"{REQUEST_SECONDS - 60:.0f}"]


@pytest.mark.parametrize("host", [0.0, 29_952.0])
async def test_a_record_is_told_where_its_cached_tokens_were(database: Database, host: float) -> None:
    """By what the engine's counters gained around it; what is known is not touched again."""
    engine_id = await add_engine(database, "main-1")
    sources = {"local_compute": 0.0, "local_cache_hit": 29_952.0 - host, "external_kv_transfer": host}
    keys = {SeriesKey("prompt_tokens_by_source", (("source", name),)): "counter" for name in sources}
    async with database.begin() as session:
        ids = await samples.add_series(session, engine_id, keys)
        for at in range(-10, 12, 2):
            rows = [samples.Row(ids[key], T0 + at, 0, sources[key.label("source")] if at >= 4 else 0) for key in keys]
            await samples.write(session, rows)
    requests = Requests(database, Events())
    requests.keep(record("s", at=T0 + 1, usage=Usage(30_000, 8, 29_952), first_byte_seconds=2.0))
    await requests.flush()
    origins = RequestOrigins(database, Events(), lambda _: {})
    assert await origins.complete(T0 + 10) == 1
    (view,) = await requests.newest(Filter(), 9)
    assert (view.vram_tokens, view.host_tokens) == (29_952 - host, host)
    assert await origins.complete(T0 + 10) == 0


async def test_a_record_is_completed_by_what_the_engine_tells_of_the_request(database: Database) -> None:
    """All counts of a stream that had none; the parts of one that had their sum; and what an answer said stays."""
    told = {
        "id-of-stream": ServedRequest("id-of-stream", 30_000, 384, 29_568, 5),
        "id-of-gone": ServedRequest("id-of-gone", 100, 0, 0, 1),
        "id-of-asked": ServedRequest("id-of-asked", 30_000, 29_952, 0, 9),
        "id-of-other": ServedRequest("id-of-other", 30_000, 384, 384, 8),
    }
    asked = {"stream": Usage(), "gone": Usage(), "asked": Usage(30_000, 8, 29_952), "other": Usage(30_000, 8, 29_952)}
    requests, looked = Requests(database, Events()), []

    def served(engine: str) -> dict[str, ServedRequest]:
        looked.append(engine)
        return told

    for session, usage in (*asked.items(), ("untold", Usage())):
        outcome = Outcome.CLIENT_CLOSED if session == "gone" else Outcome.DONE
        requests.keep(record(session, outcome, at=T0 + 1, usage=usage))
    await requests.flush()
    origins = RequestOrigins(database, Events(), served)
    assert await origins.complete(T0 + 2) == 0, "the engine may not have written it down yet"
    assert await origins.complete(T0 + 10) == 3
    assert await origins.complete(T0 + 15) == 0
    assert set(looked) == {"main-1"}
    found = {view.session: view for view in await requests.newest(Filter(), 9)}
    assert {
        session: (one.input_tokens, one.output_tokens, one.cached_tokens, one.vram_tokens, one.host_tokens)
        for session, one in found.items()
    } == {
        "stream": (30_000, 5, 29_952, 384, 29_568),
        "gone": (100, 1, 0, 0, 0),
        "asked": (30_000, 8, 29_952, 29_952, 0),
        "other": (30_000, 8, 29_952, None, None),
        "untold": (None, None, None, None, None),
    }
