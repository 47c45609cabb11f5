"""Clients that stream through a deck's door without pause, and how each of their answers ended."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx

#: For a machine under load.
LIMIT_SECONDS = 1800.0
CLIENTS = 4
TOKENS = 24


@dataclass
class Seen:
    """What clients and a watcher saw: answers by how they ended, and the fewest engines that served."""

    answers: Counter[str] = field(default_factory=Counter)
    fewest_serving: int = 99


async def post(client: httpx.AsyncClient, path: str, **body: Any) -> dict[str, Any]:
    answer = await client.post(path, json=body)
    assert answer.is_success, answer.text
    told: dict[str, Any] = answer.json()
    return told


async def ended(client: httpx.AsyncClient, rollout_id: int) -> dict[str, Any]:
    """The rollout, once it has ended."""
    async with asyncio.timeout(LIMIT_SECONDS):
        async for _ in events(client, "rollout"):
            now: dict[str, Any] = (await client.get(f"/api/v1/rollouts/{rollout_id}")).json()
            if now["state"] != "running":
                return now
    raise AssertionError("the event stream ended")


async def versions(client: httpx.AsyncClient) -> dict[str, int]:
    """Engine -> version of its process."""
    return {one["name"]: one["running_version"] for one in (await client.get("/api/v1/engines")).json()}


async def until_serving(client: httpx.AsyncClient, count: int) -> None:
    """Wait until so many engines take requests, and no other is left."""
    async with asyncio.timeout(LIMIT_SECONDS):
        async for _ in events(client, "engine"):
            engines = (await client.get("/api/v1/engines")).json()
            if [one["serves"] for one in engines] == [True] * count:
                return


async def events(client: httpx.AsyncClient, kind: str) -> AsyncIterator[str]:
    """Once now, then at every event of a kind."""
    async with client.stream("GET", "/events") as response:
        yield "open"
        async for line in response.aiter_lines():
            if line == f"event: {kind}":
                yield line


@asynccontextmanager
async def streaming(client: httpx.AsyncClient, model: str) -> AsyncIterator[Seen]:
    """Clients that ask one streamed thing after the other; engines that serve are counted at each change."""
    seen = Seen()
    clients = [asyncio.create_task(_stream(client, model, number, seen)) for number in range(CLIENTS)]
    watcher = asyncio.create_task(_watch(client, seen))
    try:
        yield seen
    finally:
        for task in (*clients, watcher):
            task.cancel()
        for ended_as in await asyncio.gather(*clients, watcher, return_exceptions=True):
            assert isinstance(ended_as, asyncio.CancelledError), ended_as


async def until_more(client: httpx.AsyncClient, seen: Seen, than: int) -> None:
    """Wait for further answers."""
    async with asyncio.timeout(LIMIT_SECONDS):
        async for _ in events(client, "scrape"):
            if seen.answers.total() > than:
                return


async def _stream(client: httpx.AsyncClient, model: str, number: int, seen: Seen) -> None:
    asked = 0
    while True:
        asked += 1
        body = {
            "model": model,
            "prompt": f"Client {number}, question {asked}.",
            "max_tokens": TOKENS,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
        }
        seen.answers[await _ask(client, body)] += 1


async def _ask(client: httpx.AsyncClient, body: dict[str, Any]) -> str:
    """How a streamed answer ended: `whole` has its reason to finish and the end mark."""
    try:
        async with client.stream("POST", "/v1/completions", json=body) as response:
            lines = [line async for line in response.aiter_lines() if line.startswith("data: ")]
    except httpx.HTTPError as error:
        return f"{type(error).__name__}: {error}"
    if response.status_code != 200:
        return str(response.status_code)
    finished = any(json.loads(line[6:])["choices"][0]["finish_reason"] == "length" for line in lines[:-1])
    return "whole" if finished and lines[-1] == "data: [DONE]" else f"cut short after {len(lines)} events"


async def _watch(client: httpx.AsyncClient, seen: Seen) -> None:
    async for _ in events(client, "engine"):
        engines = (await client.get("/api/v1/engines")).json()
        seen.fewest_serving = min(seen.fewest_serving, sum(one["serves"] for one in engines))
