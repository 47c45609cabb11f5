"""Real engines whose processes are killed and stopped under a deck: it sees it, mends it, and no session is lost.

One deck serves all tests of this file, in their order.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from typing import Any

import httpx
import psutil
import pytest

from benchmarks.real_engine import complete, metrics, prompt
from benchmarks.restart import HITS, find, whole_blocks
from tests.engine.deck_rig import MODEL, Deck, running_deck, shared_memory
from tests.integration.streaming_clients import LIMIT_SECONDS, events

pytestmark = pytest.mark.engine

LENGTH = 5_000
ENGINE = "/api/v1/engines/main-1"


@pytest.fixture(scope="module")
def deck(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deck]:
    """It restarts an engine that is stalled; afterwards nothing of any of its engines is left."""
    before = shared_memory()
    with running_deck(tmp_path_factory.mktemp("supervision"), TIERDECK_RESTART_STALLED_SECONDS="5") as deck:
        yield deck
        assert deck.end() == 0
    assert shared_memory() <= before


@pytest.fixture(scope="module")
def cold(deck: Deck) -> tuple[int, ...]:
    """The answer to the session that every test asks for again."""
    answer = complete(deck.url, prompt(1, LENGTH), model=MODEL)
    complete(deck.url, prompt(2, 900), model=MODEL)  # a step later, the last stores are acknowledged
    return answer.tokens


async def moved(client: httpx.AsyncClient, *states: str) -> dict[str, Any]:
    """The engine, once it is in one of the states."""
    async with asyncio.timeout(LIMIT_SECONDS):
        async for _ in events(client, "engine"):
            engine: dict[str, Any] = (await client.get(ENGINE)).json()
            if engine["state"] in states:
                return engine
    raise AssertionError("the event stream ended")


async def ask_briefly(client: httpx.AsyncClient) -> int:
    return (await client.post("/v1/completions", json={"model": MODEL, "prompt": "Hi", "max_tokens": 1})).status_code


def asked_again(deck: Deck, engine: dict[str, Any]) -> tuple[tuple[int, ...], float]:
    """The answer of a new process, and how many of the session's tokens came from host memory."""
    before = metrics(engine["base_url"]).get(HITS, 0.0)
    answer = complete(deck.url, prompt(1, LENGTH), model=MODEL)
    return answer.tokens, metrics(engine["base_url"])[HITS] - before


@pytest.mark.parametrize("victim", ["API server", "core", "worker"])
async def test_a_killed_process(deck: Deck, cold: tuple[int, ...], victim: str) -> None:
    """Told as a crash, restarted; who asks meanwhile waits and is answered; the session is in host memory."""
    async with deck.client() as client:
        first = await moved(client, "ready")
        tree = [psutil.Process(first["pid"]), *psutil.Process(first["pid"]).children(recursive=True)]
        find(first["pid"], victim).send_signal(signal.SIGKILL)
        await moved(client, "backoff", "starting")
        assert await ask_briefly(client) == 200
        back = await moved(client, "ready")
        moves = (await client.get(f"{ENGINE}/transitions")).json()
    crash = next(move for move in moves if move["new_state"] == "backoff")
    assert "while it served" in crash["cause"]
    assert back["pid"] != first["pid"]
    assert not [process for process in tree if process.is_running()]
    assert asked_again(deck, back) == (cold, whole_blocks(LENGTH))


async def test_a_stopped_core(deck: Deck, cold: tuple[int, ...]) -> None:
    """HTTP answers, nothing computes: told by pid and name, taken out of traffic, and ended with all its processes."""
    async with deck.client() as client:
        first = await moved(client, "ready")
        tree = [psutil.Process(first["pid"]), *psutil.Process(first["pid"]).children(recursive=True)]
        core = find(first["pid"], "core")
        core.send_signal(signal.SIGSTOP)
        assert httpx.get(f"{first['base_url']}/health", trust_env=False).status_code == 200
        stalled = await moved(client, "stalled")
        assert f"pid {core.pid}, VLLM::EngineCor is stopped (SIGSTOP)" in stalled["cause"]
        assert await ask_briefly(client) == 200
        back = await moved(client, "ready")
    assert back["pid"] != first["pid"]
    assert not [process for process in tree if process.is_running()]
    assert asked_again(deck, back) == (cold, whole_blocks(LENGTH))
