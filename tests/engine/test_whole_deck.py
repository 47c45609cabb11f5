"""The whole deck as its users meet it: `tierdeck up`, a real engine, its door, its numbers, its alerts.

One deck serves all tests of this file, in their order; the last one ends it.
"""

from __future__ import annotations

import asyncio
import json
import shlex
import signal
import socket
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import AsyncOpenAI

from app.config import inherited_environment
from app.supervisor.processes import process_table
from benchmarks.real_engine import complete, prompt
from tests.fakes.receiver import running_receiver
from tests.integration.cli_rig import command
from tests.integration.supervisor_rig import ROOT, free_port

pytestmark = pytest.mark.engine

MODEL = "tierdeck-demo"
LIMIT_SECONDS = 240.0
LENGTH = 20_000
BLOCK = 384


@dataclass(frozen=True)
class Deck:
    """The deck under test."""

    process: subprocess.Popen[str]
    welcome: dict[str, Any]
    ports: tuple[int, int]
    shared_memory_before: frozenset[str]
    cold: dict[int, tuple[int, ...]]
    """Answers to sessions, by seed."""

    @property
    def url(self) -> str:
        return str(self.welcome["url"])

    def client(self) -> httpx.AsyncClient:
        headers = {"Authorization": f"Bearer {self.welcome['token']}"}
        return httpx.AsyncClient(base_url=self.url, headers=headers, timeout=LIMIT_SECONDS, trust_env=False)


@pytest.fixture(scope="module")
def deck(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deck]:
    """`tierdeck up` with nothing configured but a directory and two ports."""
    directory, ports = tmp_path_factory.mktemp("deck"), (free_port(), free_port())
    environment = inherited_environment() | {
        "TIERDECK_DATA_DIR": str(directory / "data"),
        "TIERDECK_PORT": str(ports[0]),
        "TIERDECK_ENGINE_PORT": str(ports[1]),
    }
    before = _shared_memory()
    with (directory / "deck.log").open("w") as log:
        process = subprocess.Popen(
            command("up", "--json"), env=environment, cwd=ROOT, stdout=subprocess.PIPE, stderr=log, text=True
        )
        line = process.stdout.readline() if process.stdout else ""
        assert line, (directory / "deck.log").read_text()[-4000:]
        yield Deck(process, json.loads(line), ports, before, {})
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            process.wait(LIMIT_SECONDS)


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


async def test_a_session_comes_back_from_the_host_and_the_deck_says_so(deck: Deck) -> None:
    """Three long sessions push each other out; the first comes back, and token-origin counts it as host."""
    prompts = [prompt(seed, LENGTH) for seed in (1, 2, 3)]
    async with deck.client() as client:
        before = await _origin(client)
        cold, *_ = [await asyncio.to_thread(complete, deck.url, tokens, 8, MODEL) for tokens in prompts]
        deck.cold[1] = cold.tokens
        back = await asyncio.to_thread(complete, deck.url, prompts[0], 8, MODEL)
        origin = await _origin_until(client, lambda now: now["host_tokens"] > (before["host_tokens"] or 0))
    assert back.tokens == cold.tokens
    assert back.ttft_seconds < cold.ttft_seconds / 5
    assert origin["host_tokens"] == LENGTH // BLOCK * BLOCK
    assert origin["vram_tokens"] + origin["host_tokens"] + origin["recomputed_tokens"] == origin["input_tokens"]
    assert origin["input_tokens"] >= 4 * LENGTH


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


async def test_sessions_are_still_there_after_the_restart(deck: Deck) -> None:
    """Another process, another split of the memory: the session comes from the host, with the same tokens."""
    async with deck.client() as client:
        before = await _origin(client)
        back = await asyncio.to_thread(complete, deck.url, prompt(1, LENGTH), 8, MODEL)
        wanted = before["host_tokens"] + LENGTH // BLOCK * BLOCK
        await _origin_until(client, lambda now: now["host_tokens"] >= wanted)
    assert back.tokens == deck.cold[1]


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
            (rule,) = (await client.get("/api/v1/alert-rules")).json()["rules"]
            sharper = {"window_seconds": 60, "min_input_tokens": 2000, "hold_seconds": 0}
            changed = await client.put(f"/api/v1/alert-rules/{rule['id']}", json={"parameters": sharper})
            assert changed.status_code == 200, changed.text
            for seed in (11, 12):
                await asyncio.to_thread(complete, deck.url, prompt(seed, 4_000), 1, MODEL)
            await receiver.wait_for_arrival(LIMIT_SECONDS)
            told = json.loads(receiver.received[0].body)
            assert (told["state"], told["fleet"]) == ("firing", "main")
            assert told["evidence"]["recomputed_share"] > 0.3
            async for _ in _events(client, "alert"):
                flips = (await client.get("/api/v1/alerts")).json()["flips"]
                delivered = (await client.get("/api/v1/webhooks")).json()["webhooks"][0]["last_delivery"]
                if delivered and delivered["state"] == "delivered":
                    break
            assert flips[0]["new"] == "firing"


def test_nothing_is_left_after_the_end(deck: Deck) -> None:
    """Ctrl-C ends deck and engine: no process, no shared memory and no listening port of theirs is left."""
    deck.process.send_signal(signal.SIGINT)
    assert deck.process.wait(LIMIT_SECONDS) == 0
    ours = [entry.process.pid for entry in process_table() if entry.marker is not None and entry.alive]
    assert not [pid for pid in ours if _names_port(pid, deck.ports[1])]
    assert _shared_memory() <= deck.shared_memory_before
    for port in deck.ports:
        with socket.socket() as probe:
            assert probe.connect_ex(("127.0.0.1", port)) != 0


def _shared_memory() -> frozenset[str]:
    return frozenset(path.name for path in Path("/dev/shm").iterdir())


def _names_port(pid: int, port: int) -> bool:
    try:
        return str(port).encode() in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except (FileNotFoundError, ProcessLookupError):
        return False


async def _events(client: httpx.AsyncClient, kind: str) -> AsyncIterator[str]:
    """Once now, then at every event of a kind."""
    async with client.stream("GET", "/events") as response:
        yield "open"
        async for line in response.aiter_lines():
            if line == f"event: {kind}":
                yield line


async def _origin(client: httpx.AsyncClient) -> dict[str, Any]:
    answer: dict[str, Any] = (await client.get("/api/v1/token-origin", params={"window": "15m"})).json()
    return answer


async def _origin_until(client: httpx.AsyncClient, is_there: Any) -> dict[str, Any]:
    async with asyncio.timeout(LIMIT_SECONDS):
        async for _ in _events(client, "scrape"):
            if is_there(origin := await _origin(client)):
                return origin
    raise AssertionError("the event stream ended")


async def _save_changed(client: httpx.AsyncClient, **extra: Any) -> int:
    latest = (await client.get("/api/v1/profiles/demo/versions")).json()["versions"][-1]
    config = latest["kv_transfer_config"]
    config["kv_connector_extra_config"] |= extra
    saved = await client.post(
        "/api/v1/profiles/demo/versions",
        json={"kv_transfer_config": config, "flags": latest["flags"], "comment": f"test {extra}"},
    )
    assert saved.status_code == 201, saved.text
    return int(saved.json()["number"])


async def _roll_out(client: httpx.AsyncClient, version: int) -> dict[str, Any]:
    asked = {"fleet": "main", "profile": "demo", "version": version, "strategy": "in_place"}
    started = await client.post("/api/v1/rollouts", json=asked)
    assert started.status_code == 202, started.text
    async with asyncio.timeout(LIMIT_SECONDS):
        async for _ in _events(client, "rollout"):
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
        async for _ in _events(client, "scrape"):
            if len(answers) > length:
                return
