"""The whole deck as its users meet it: `tierdeck up`, a real engine, its door, its numbers, its alerts.

One deck serves all tests of this file, in their order; the last one ends it.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import shlex
import socket
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import AsyncOpenAI

from app.supervisor.processes import process_table
from benchmarks.real_engine import complete, prompt
from tests.engine.deck_rig import MODEL, Deck, running_deck, shared_memory
from tests.fakes.receiver import Receiver, running_receiver
from tests.integration.streaming_clients import LIMIT_SECONDS, events

pytestmark = pytest.mark.engine

LENGTH = 20_000
BLOCK = 384


@dataclass(frozen=True)
class Seen:
    """What later tests compare with."""

    shared_memory_before: frozenset[str]
    cold: dict[int, tuple[int, ...]] = field(default_factory=dict)
    """Answers to sessions, by seed."""


@pytest.fixture(scope="module")
def seen() -> Seen:
    return Seen(shared_memory())


@pytest.fixture(scope="module")
def deck(seen: Seen, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deck]:
    with running_deck(tmp_path_factory.mktemp("deck")) as deck:
        yield deck


def test_the_printed_line_works_at_once(deck: Deck) -> None:
    """The curl line of the banner, pasted while the engine is still starting, answers with a completion."""
    argv = shlex.split(deck.welcome["curl"])
    done = subprocess.run(
        [*argv, "-sS", "--fail-with-body"], capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout)["choices"][0]["text"]


async def test_the_stock_client_works_unchanged(deck: Deck) -> None:
    """The openai package gets a whole answer and a streamed one from the real engine through the door."""
    client = AsyncOpenAI(base_url=f"{deck.url}/v1", api_key="not-needed-here")
    asked: Any = {"model": MODEL, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 8, "temperature": 0}
    whole = await client.chat.completions.create(**asked)
    parts = [
        chunk.choices[0].delta.content or ""
        async for chunk in await client.chat.completions.create(**asked, stream=True)
        if chunk.choices
    ]
    assert whole.choices[0].message.content == "".join(parts)
    assert [model.id async for model in client.models.list()] == [MODEL]


async def test_a_session_comes_back_from_the_host_and_the_deck_says_so(deck: Deck, seen: Seen) -> None:
    """Three long sessions push each other out; the first comes back, and token-origin counts it as host."""
    prompts = [prompt(seed, LENGTH) for seed in (1, 2, 3)]
    async with deck.client() as client:
        before = await _origin(client)
        cold, *_ = [await asyncio.to_thread(complete, deck.url, tokens, 8, MODEL) for tokens in prompts]
        seen.cold[1] = cold.tokens
        back = await asyncio.to_thread(complete, deck.url, prompts[0], 8, MODEL)
        origin = await _origin_until(client, lambda now: now["host_tokens"] > (before["host_tokens"] or 0))
    assert back.tokens == cold.tokens
    assert back.ttft_seconds < cold.ttft_seconds / 5
    assert origin["host_tokens"] == LENGTH // BLOCK * BLOCK
    assert origin["vram_tokens"] + origin["host_tokens"] + origin["recomputed_tokens"] == origin["input_tokens"]
    assert origin["input_tokens"] >= 4 * LENGTH


async def test_each_request_leaves_its_numbers(deck: Deck) -> None:
    """In whatever words a client asks, and streamed or not: session, tokens in, from the cache and out, and its end."""
    said = [{"role": "user", "content": "Tell me of caches. " * 60}]
    asked: dict[str, dict[str, Any]] = {
        "/v1/chat/completions": {"messages": said, "max_tokens": 8},
        "/v1/responses": {"input": said, "max_output_tokens": 8},
        "/v1/messages": {"messages": said, "max_tokens": 8},
        "/v1/completions": {"prompt": said[0]["content"], "stream": True, "stream_options": {"include_usage": True}},
    }
    async with deck.client() as client:
        for path, body in asked.items():
            for _ in range(2):
                answer = await client.post(path, json={"model": MODEL, "user": f"of {path}", **body})
                assert answer.status_code == 200, (path, answer.text)
        for path in asked:
            second, first = await _records(client, path, 2)
            assert first["outcome"] == second["outcome"] == "done"
            assert second["vram_tokens"] == second["cached_tokens"] and second["host_tokens"] == 0, path
            assert first["path"] == second["path"] == path
            assert first["input_tokens"] == second["input_tokens"] > BLOCK
            assert second["cached_tokens"] == second["input_tokens"] // BLOCK * BLOCK, path
            assert 0 < second["output_tokens"] <= 16
            assert second["first_byte_seconds"] <= second["total_seconds"]


async def test_a_request_that_asked_for_no_counts_and_one_whose_client_left_have_them_too(deck: Deck) -> None:
    """The engine's scheduler knows them: a stream that goes on from the host, and one that is broken off."""
    tokens = prompt(2, LENGTH)
    async with deck.client() as client:
        body = {
            "model": MODEL,
            "prompt": tokens,
            "max_tokens": 3,
            "ignore_eos": True,
            "stream": True,
            "user": "of the host",
        }
        assert (await client.post("/v1/completions", json=body)).status_code == 200
        body |= {"max_tokens": 5_000, "user": "of one who left"}
        async with client.stream("POST", "/v1/completions", json=body) as answer:
            async for _ in answer.aiter_bytes():
                break
        [whole] = await _records(client, "the host", 1)
        [left] = await _records(client, "one who left", 1)
    blocks = LENGTH // BLOCK * BLOCK
    assert (whole["outcome"], whole["input_tokens"], whole["output_tokens"]) == ("done", LENGTH, 3)
    assert whole["vram_tokens"] + whole["host_tokens"] == whole["cached_tokens"] == blocks
    assert whole["host_tokens"] > 0
    assert (left["outcome"], left["input_tokens"], left["vram_tokens"]) == ("client_closed", LENGTH, blocks)
    assert 0 < left["output_tokens"] < 5_000


async def _records(client: httpx.AsyncClient, path: str, count: int) -> list[dict[str, Any]]:
    """The newest requests of a session that is called after its path, newest first, once so many are complete."""
    async with asyncio.timeout(LIMIT_SECONDS):
        async for _ in events(client, "scrape"):
            answer = await client.get("/api/v1/requests", params={"session": f"of {path}"})
            found: list[dict[str, Any]] = answer.json()["requests"][:count]
            if len(found) == count and all(one["vram_tokens"] is not None for one in found):
                return found
    raise AssertionError("the event stream ended")


async def test_the_charts_have_the_numbers(deck: Deck) -> None:
    """Every chart of the overview has drawn something after traffic."""
    async with deck.client() as client:
        for chart in ("token-origin", "slots", "ttft", "load", "memory"):
            drawn = (await client.get("/api/v1/series", params={"chart": chart, "window": "5m"})).json()
            for line in drawn["lines"]:
                assert any(value is not None for value in line["values"]), (chart, line["key"])


async def test_no_request_fails_while_a_new_profile_is_applied(deck: Deck) -> None:
    """A client that asks without pause sees no failure while the engine restarts with another version."""
    async with deck.client() as client, _asking(client) as answers:
        version = await _save_changed(client, mamba_state_slots_reference_tokens=8192)
        ended = await _roll_out(client, version)
        asked_by_then = len(answers)
        assert ended["state"] == "done", ended
        await _until_longer(client, answers, asked_by_then)
        engine = (await client.get("/api/v1/engines/main-1")).json()
    assert engine["running_version"] == version
    assert set(answers) == {200}


async def test_sessions_are_still_there_after_the_restart(deck: Deck, seen: Seen) -> None:
    """Another process, another split of the memory: the session comes from the host, with the same tokens."""
    async with deck.client() as client:
        before = await _origin(client)
        back = await asyncio.to_thread(complete, deck.url, prompt(1, LENGTH), 8, MODEL)
        wanted = before["host_tokens"] + LENGTH // BLOCK * BLOCK
        await _origin_until(client, lambda now: now["host_tokens"] >= wanted)
    assert back.tokens == seen.cold[1]


async def test_a_profile_that_cannot_start_is_taken_back(deck: Deck) -> None:
    """A host tier larger than the machine: one sentence with both numbers, the engine serves the old version."""
    async with deck.client() as client:
        running = (await client.get("/api/v1/engines/main-1")).json()["running_version"]
        version = await _save_changed(client, cpu_bytes_to_use="900TiB")
        ended = await _roll_out(client, version)
        assert ended["state"] == "rolled_back"
        assert "900 TiB" in ended["reason"] and "machine" in ended["reason"]
        engine = (await client.get("/api/v1/engines/main-1")).json()
        answer = await client.post("/v1/completions", json={"model": MODEL, "prompt": "Hi", "max_tokens": 1})
    assert (engine["state"], engine["running_version"]) == ("ready", running)
    assert answer.status_code == 200


async def test_the_webhook_is_called_when_host_hits_go_to_zero(deck: Deck) -> None:
    """Sessions that are all new: host hits near 0, recompute high, one message delivered and listed."""
    with running_receiver() as receiver:
        async with deck.client() as client:
            hook = {"name": "test", "channel": "generic", "url": receiver.url()}
            assert (await client.post("/api/v1/webhooks", json=hook)).status_code == 201
            rules = (await client.get("/api/v1/alert-rules")).json()["rules"]
            rule = next(rule for rule in rules if rule["kind"] == "host_hits_low")
            sharper = {"window_seconds": 60, "min_input_tokens": 2000, "hold_seconds": 0}
            # Off and on: what fired in the tests before is over.
            for change in ({"enabled": False}, {"enabled": True, "parameters": sharper}):
                changed = await client.put(f"/api/v1/alert-rules/{rule['id']}", json=change)
                assert changed.status_code == 200, changed.text
            # For as long as it takes: what came from the host before has to leave the window first.
            asking = asyncio.create_task(_ask_new_things(deck))
            try:
                told = await _firing(receiver)
            finally:
                asking.cancel()
                await asyncio.gather(asking, return_exceptions=True)
            assert told["fleet"] == "main"
            assert told["evidence"]["recomputed_share"] > 0.3
            async for _ in events(client, "alert"):
                flips = (await client.get("/api/v1/alerts")).json()["flips"]
                delivered = (await client.get("/api/v1/webhooks")).json()["webhooks"][0]["last_delivery"]
                if delivered and delivered["state"] == "delivered":
                    break
            assert flips[0]["new"] == "firing"


async def _ask_new_things(deck: Deck) -> None:
    """One session after the other that nobody has seen."""
    for seed in itertools.count(11):
        await asyncio.to_thread(complete, deck.url, prompt(seed, 4_000), 1, MODEL)


async def _firing(receiver: Receiver) -> dict[str, Any]:
    """The first message that says so; the end of an alert of before may come ahead of it."""
    while True:
        await receiver.wait_for_arrival(LIMIT_SECONDS)
        for told in (json.loads(one.body) for one in tuple(receiver.received)):
            if told["state"] == "firing":
                return dict(told)


def test_nothing_is_left_after_the_end(deck: Deck, seen: Seen) -> None:
    """Ctrl-C ends deck and engine: no process, no shared memory and no listening port of theirs is left."""
    assert deck.end() == 0
    ours = [entry.process.pid for entry in process_table() if entry.marker is not None and entry.alive]
    assert not [pid for pid in ours if _names_port(pid, deck.ports[1])]
    assert shared_memory() <= seen.shared_memory_before
    for port in deck.ports:
        with socket.socket() as probe:
            assert probe.connect_ex(("127.0.0.1", port)) != 0


def _names_port(pid: int, port: int) -> bool:
    try:
        return str(port).encode() in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except (FileNotFoundError, ProcessLookupError):
        return False


async def _origin(client: httpx.AsyncClient) -> dict[str, Any]:
    answer: dict[str, Any] = (await client.get("/api/v1/token-origin", params={"window": "15m"})).json()
    return answer


async def _origin_until(client: httpx.AsyncClient, is_there: Any) -> dict[str, Any]:
    async with asyncio.timeout(LIMIT_SECONDS):
        async for _ in events(client, "scrape"):
            if is_there(origin := await _origin(client)):
                return origin
    raise AssertionError("the event stream ended")


async def _save_changed(client: httpx.AsyncClient, **extra: Any) -> int:
    first = (await client.get("/api/v1/profiles/demo/versions")).json()["versions"][-1]
    config = first["kv_transfer_config"]
    config["kv_connector_extra_config"] |= extra
    saved = await client.post(
        "/api/v1/profiles/demo/versions",
        json={"kv_transfer_config": config, "flags": first["flags"], "comment": f"test {extra}"},
    )
    assert saved.status_code == 201, saved.text
    return int(saved.json()["number"])


async def _roll_out(client: httpx.AsyncClient, version: int) -> dict[str, Any]:
    asked = {"fleet": "main", "profile": "demo", "version": version, "strategy": "in_place"}
    started = await client.post("/api/v1/rollouts", json=asked)
    assert started.status_code == 202, started.text
    async with asyncio.timeout(LIMIT_SECONDS):
        async for _ in events(client, "rollout"):
            now: dict[str, Any] = (await client.get(f"/api/v1/rollouts/{started.json()['id']}")).json()
            if now["state"] != "running":
                return now
    raise AssertionError("the event stream ended")


@asynccontextmanager
async def _asking(client: httpx.AsyncClient) -> AsyncIterator[list[int]]:
    """Two clients that ask one short thing after the other; the status of each answer."""
    answers: list[int] = []

    async def ask(number: int) -> None:
        while True:
            body = {"model": MODEL, "prompt": f"client {number}", "max_tokens": 4}
            answers.append((await client.post("/v1/completions", json=body)).status_code)

    tasks = [asyncio.create_task(ask(number)) for number in range(2)]
    try:
        yield answers
    finally:
        for task in tasks:
            task.cancel()
        for ended in await asyncio.gather(*tasks, return_exceptions=True):
            assert isinstance(ended, asyncio.CancelledError), ended


async def _until_longer(client: httpx.AsyncClient, answers: list[int], length: int) -> None:
    async with asyncio.timeout(LIMIT_SECONDS):
        async for _ in events(client, "scrape"):
            if len(answers) > length:
                return
