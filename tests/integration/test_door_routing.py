"""Which engine a request comes to: by its model, and by its session."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any
from uuid import uuid4

import openai
import pytest

from app.supervisor.states import EngineState
from app.supervisor.status import EngineStatus
from tests.fakes.upstream import Exchange, Upstream, running
from tests.integration.door_rig import Served, StatedEngines, engine, request_bytes, serving

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


async def answer_ok(exchange: Exchange) -> None:
    await exchange.say(OK)


def json_answer(body: Any) -> bytes:
    raw = json.dumps(body).encode()
    return b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(raw) + raw


@asynccontextmanager
async def engines(count: int) -> AsyncIterator[list[Upstream]]:
    """Upstreams that answer everything."""
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(running(answer_ok)) for _ in range(count)]


def statuses(upstreams: Sequence[Upstream], **changes: Any) -> list[EngineStatus]:
    """Engine `e0`, `e1`, ... for each upstream."""
    return [engine(upstream.port, name=f"e{number}", **changes) for number, upstream in enumerate(upstreams)]


def chat(first_words: str, turns: int = 1) -> bytes:
    messages = [{"role": "user", "content": first_words}]
    messages += [{"role": "assistant", "content": "Yes."}, {"role": "user", "content": "Go on."}] * (turns - 1)
    return json.dumps({"messages": messages, "model": "demo"}).encode()


async def served_by(deck: Served, body: bytes, path: str = "/v1/chat/completions", **headers: str) -> str | None:
    """The engine that this request came to."""
    assert (await deck.post(body, path, **headers)).status == 200
    return deck.ledger.records[-1].engine


async def test_turns_of_a_session_come_to_one_engine_and_sessions_spread() -> None:
    """Told by nothing but their beginnings."""
    async with engines(3) as upstreams, serving(StatedEngines(*statuses(upstreams))) as deck:
        came_to = {name: {await served_by(deck, chat(name, turns)) for turns in (1, 2, 3)} for name in "abcdef"}
    assert all(len(found) == 1 for found in came_to.values())
    assert sorted(next(iter(found)) or "" for found in came_to.values()) == ["e0", "e0", "e1", "e1", "e2", "e2"]


async def test_a_header_ties_requests_together() -> None:
    """Whatever their prompts are."""
    async with engines(2) as upstreams, serving(StatedEngines(*statuses(upstreams))) as deck:
        found = {await served_by(deck, chat(str(n)), **{"X-Session-Id": "mine"}) for n in range(6)}
        assert len(found) == 1
        assert {record.session for record in deck.ledger.records} == {"mine"}


async def test_sessions_come_home_after_a_restart_of_their_engine() -> None:
    """While it is away one other serves them; when it is back its cache is."""
    async with engines(2) as upstreams:
        stated = StatedEngines(*statuses(upstreams))
        async with serving(stated) as deck:
            homes = {name: await served_by(deck, chat(name)) for name in "abcd"}
            away, other = statuses(upstreams)
            stated.become(engine(away.port, EngineState.STARTING, name="e0"), other)
            assert {await served_by(deck, chat(name, 2)) for name in "abcd"} == {"e1"}
            stated.become(away, other)
            assert {name: await served_by(deck, chat(name, 3)) for name in "abcd"} == homes


async def test_a_restarted_deck_knows_where_sessions_are() -> None:
    """From the records of the deck before it."""
    async with engines(2) as upstreams:
        homes = [("mine", "e1"), ("mine", "e0"), ("yours", "e0")]
        async with serving(StatedEngines(*statuses(upstreams)), homes=homes) as deck:
            assert await served_by(deck, chat("x"), **{"X-Session-Id": "mine"}) == "e1"
            assert await served_by(deck, chat("x"), **{"X-Session-Id": "yours"}) == "e0"


async def test_a_fleet_that_is_not_sticky_deals_by_load_alone() -> None:
    """As its setting says."""

    async def silent(exchange: Exchange) -> None:
        await exchange.until_closed()

    async with running(silent) as first, running(answer_ok) as second:
        pair = statuses([first, second], routing="least_busy")
        async with serving(StatedEngines(*pair), homes=[("mine", "e0")]) as deck:
            _, writer = await deck.connect()
            writer.write(request_bytes(b"{}"))
            await first.arrived.get()
            assert await served_by(deck, chat("x"), **{"X-Session-Id": "mine"}) == "e1"
            writer.close()


async def test_a_response_is_continued_where_it_was_made() -> None:
    """The next turn names only the response; so do questions about it."""

    async def respond(exchange: Exchange) -> None:
        await exchange.say(json_answer({"id": f"resp_{uuid4().hex}", "usage": None}))

    async with engines(2) as upstreams:
        for upstream in upstreams:
            upstream.script = respond
        async with serving(StatedEngines(*statuses(upstreams))) as deck:
            for words in ("one", "two", "three"):
                body = {"input": words}
                for _ in range(3):
                    answer = await deck.post(json.dumps(body).encode(), "/v1/responses")
                    body = {"input": "next", "previous_response_id": json.loads(answer.body)["id"]}
                await deck.exchange("GET", f"/v1/responses/{body['previous_response_id']}")
            by_session = defaultdict(set)
            for record in deck.ledger.records:
                by_session[record.session].add(record.engine)
            assert len(by_session) == 3 and all(len(found) == 1 for found in by_session.values())
            assert set.union(*by_session.values()) == {"e0", "e1"}


async def test_models_of_several_fleets() -> None:
    """Each request comes to the fleet of its model; one that nobody serves is a 404 that SDKs understand."""
    async with engines(2) as (small, large):
        fleets = [
            engine(small.port, name="s-1", fleet="small", served_model_name="small-7b"),
            engine(large.port, name="l-1", fleet="large", served_model_name="large-70b"),
        ]
        async with serving(StatedEngines(*fleets)) as deck:
            assert await served_by(deck, b'{"prompt": "x", "model": "large-70b"}', "/v1/completions") == "l-1"
            assert await served_by(deck, b'{"input": "x", "model": "small-7b"}', "/v1/embeddings") == "s-1"
            assert await served_by(deck, b'{"prompt": "x", "model": "small-7b"}', "/v1/tokenize") == "s-1"
            assert small.exchanges[-1].request_line == "POST /tokenize HTTP/1.1"
            client = openai.AsyncOpenAI(base_url=f"{deck.base_url}/v1", api_key="any", max_retries=0)
            with pytest.raises(openai.NotFoundError, match="'tiny'; there are 'large-70b', 'small-7b'") as missing:
                await client.completions.create(model="tiny", prompt="x")
            await client.close()
        assert missing.value.code == "model_not_found" and missing.value.param == "model"


async def test_the_list_of_models_is_that_of_all_fleets() -> None:
    """As their engines list them; a fleet whose engine does not answer now is listed by its name."""

    async def list_models(exchange: Exchange) -> None:
        cards = [{"id": "small-7b", "object": "model", "max_model_len": 4096}, {"id": "adapter", "object": "model"}]
        await exchange.say(json_answer({"object": "list", "data": cards}))

    async with running(list_models) as small:
        fleets = [
            engine(small.port, name="s-1", fleet="small", served_model_name="small-7b"),
            engine(1, EngineState.STARTING, name="l-1", fleet="large", served_model_name="large-70b"),
        ]
        async with (
            serving(StatedEngines(*fleets)) as deck,
            openai.AsyncOpenAI(base_url=f"{deck.base_url}/v1", api_key="any") as client,
        ):
            models = [model async for model in client.models.list()]
    assert [model.id for model in models] == ["small-7b", "adapter", "large-70b"]
    assert models[0].model_dump()["max_model_len"] == 4096


@pytest.mark.parametrize("state", [EngineState.STARTING, EngineState.FAILED])
async def test_the_list_of_models_waits_for_no_engine(state: EngineState) -> None:
    """A single fleet is listed by its name until its engine can be asked."""
    async with serving(StatedEngines(engine(state=state, served_model_name="demo-7b"))) as deck:
        async with asyncio.timeout(5):
            answer = await deck.exchange("GET", "/v1/models")
        assert answer.status == 200 and [card["id"] for card in json.loads(answer.body)["data"]] == ["demo-7b"]
        assert deck.ledger.records[0].outcome == "done"


async def test_a_name_that_the_deck_does_not_know_is_left_to_the_only_fleet() -> None:
    """Adapters are known to the engine alone."""
    async with engines(1) as upstreams, serving(StatedEngines(*statuses(upstreams))) as deck:
        assert await served_by(deck, b'{"prompt": "x", "model": "an-adapter"}', "/v1/completions") == "e0"


async def test_a_large_body_comes_to_the_right_fleet_whole() -> None:
    """The model stands behind megabytes of messages, where SDKs write it."""
    body = json.dumps({"messages": [{"role": "user", "content": "x" * 6_000_000}], "model": "large-70b"}).encode()
    async with engines(2) as (small, large):
        fleets = [
            engine(small.port, name="s-1", fleet="small", served_model_name="small-7b"),
            engine(large.port, name="l-1", fleet="large", served_model_name="large-70b"),
        ]
        async with serving(StatedEngines(*fleets)) as deck:
            async with asyncio.timeout(20):
                assert await served_by(deck, body) == "l-1"
        assert large.exchanges[0].body == body


async def test_an_engine_that_took_no_connection_is_nobodys_home() -> None:
    """A new session that was turned away there stays where it was served."""
    async with engines(1) as (upstream,):
        dead = engine(1, name="a")
        async with serving(StatedEngines(dead, engine(upstream.port, name="b"))) as deck:
            assert await served_by(deck, chat("x")) == "b"
            assert deck.door._dispatcher.homes.of(deck.ledger.records[-1].session or "") == "b"
