"""Plays the demo traffic through the door and keeps what it saw."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import Any

import httpx

from app.demo.traffic import Kind, Sizes, Step, Turn, acts, session_text
from app.errors import TierdeckError, Unavailable

SAMPLE_CHARACTERS = 4000
MOST_CHARACTERS_PER_TOKEN = 8.0


@dataclass(frozen=True)
class Played:
    """One request as it went. Tokens are what the engine counted; None = it did not say."""

    at_seconds: float
    turn: Turn
    prompt_tokens: int | None
    cached_tokens: int | None
    first_token_seconds: float | None
    total_seconds: float
    error: str | None = None


#: Told of each step as it begins and each request as it ends.
Report = Callable[["Step | Played"], None]


@dataclass(frozen=True)
class Model:
    """What is served: its name, its longest context, and how much text makes a token."""

    name: str
    max_tokens: int | None
    characters_per_token: float


@dataclass(frozen=True)
class Clock:
    """The playing time."""

    started: float
    until_seconds: float

    def is_over(self) -> bool:
        """True when no further request may begin."""
        return time.monotonic() - self.started >= self.until_seconds


class Player:
    """Sends turns to a deck. The client carries base URL and credentials."""

    def __init__(self, client: httpx.AsyncClient, seed: int) -> None:
        self._client = client
        self._seed = seed

    async def model(self) -> Model:
        """Ask for the model, then measure its tokenizer with one short request. Waits while an engine starts."""
        name = (await self._first_model())["id"]
        sample = session_text(self._seed, "sample", SAMPLE_CHARACTERS)
        body = {"model": name, "prompt": sample, "max_tokens": 1, "temperature": 0}
        usage = _checked(await self._client.post("/v1/completions", json=body)).json()["usage"]
        measured = SAMPLE_CHARACTERS / max(1, usage["prompt_tokens"])
        length = (await self._first_model()).get("max_model_len")  # of an engine, which is ready only now
        return Model(name, length, min(measured, MOST_CHARACTERS_PER_TOKEN))

    async def _first_model(self) -> dict[str, Any]:
        listed: list[dict[str, Any]] = _checked(await self._client.get("/v1/models")).json()["data"]
        return listed[0]

    async def play(self, sizes: Sizes, model: Model, until_seconds: float, report: Report) -> None:
        """Report each step as it begins and each request as it ends; none begins after `until_seconds`."""
        clock = Clock(time.monotonic(), until_seconds)
        for step in acts(self._seed, sizes):
            if clock.is_over():
                return
            report(step)
            waiting = iter(step.sessions)
            async with asyncio.TaskGroup() as group:
                for _ in range(step.width):
                    group.create_task(self._lane(waiting, model, clock, report))

    async def _lane(self, sessions: Iterator[tuple[Turn, ...]], model: Model, clock: Clock, report: Report) -> None:
        for session in sessions:
            for turn in session:
                if clock.is_over():
                    return
                report(await self._turn(turn, model, clock.started))

    async def _turn(self, turn: Turn, model: Model, started: float) -> Played:
        text = session_text(self._seed, turn.session, int(turn.tokens * model.characters_per_token))
        body = {
            "model": model.name,
            "prompt": text,
            "max_tokens": turn.answer_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        sent = time.monotonic()
        first: float | None = None
        usage: dict[str, Any] = {}
        error = None
        try:
            async with self._client.stream("POST", "/v1/completions", json=body) as response:
                if response.is_error:
                    await response.aread()
                _checked(response)
                async for event in _events(response):
                    if event.get("choices") and first is None:
                        first = time.monotonic() - sent
                    usage = event.get("usage") or usage
        except (httpx.HTTPError, TierdeckError) as problem:
            error = str(problem) or type(problem).__name__
        return _played(turn, usage, sent - started, first, time.monotonic() - sent, error)


async def _events(response: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    async for line in response.aiter_lines():
        if line.startswith("data: ") and line != "data: [DONE]":
            yield json.loads(line.removeprefix("data: "))


def _played(
    turn: Turn, usage: dict[str, Any], at: float, first: float | None, total: float, error: str | None
) -> Played:
    details = usage.get("prompt_tokens_details") or {}
    return Played(at, turn, usage.get("prompt_tokens"), details.get("cached_tokens"), first, total, error)


def _checked(response: httpx.Response) -> httpx.Response:
    if not response.is_error:
        return response
    try:
        message = response.json()["error"]["message"]
    except (ValueError, KeyError, TypeError):
        message = f"The deck answered {response.status_code}."
    raise Unavailable(str(message), code="engine_not_ready")


def fitted(sizes: Sizes, model: Model) -> Sizes:
    """`sizes`, cut to what the model takes."""
    if model.max_tokens is None:
        return sizes
    longest = int(model.max_tokens * 0.95) - sizes.answer
    cut = {
        name: min(getattr(sizes, name), longest) for name in ("main_first", "main_last", "short_least", "short_most")
    }
    return Sizes(**{**sizes.__dict__, **cut})


@dataclass(frozen=True)
class Summary:
    """Cold against back from the host, at the longest length that was played both ways."""

    requests: int
    failed: int
    input_tokens: int
    cold_tokens: int | None
    cold_first_token_seconds: float | None
    return_tokens: int | None
    return_first_token_seconds: float | None

    @property
    def times_faster(self) -> float | None:
        """Cold time by return time, per input token."""
        if not (self.cold_tokens and self.return_tokens):
            return None
        if not (self.cold_first_token_seconds and self.return_first_token_seconds):
            return None
        cold = self.cold_first_token_seconds / self.cold_tokens
        return cold / (self.return_first_token_seconds / self.return_tokens)


def summarise(played: list[Played]) -> Summary:
    """Compare the longest cold prompt with the longest one that came back. Pure."""
    good = [p for p in played if p.error is None and p.first_token_seconds is not None]
    cold = _longest([p for p in good if p.turn.kind is Kind.NEW])
    back = _longest([p for p in good if p.turn.kind is Kind.RETURNS])
    return Summary(
        requests=len(played),
        failed=len(played) - len(good),
        input_tokens=sum(p.prompt_tokens or 0 for p in good),
        cold_tokens=cold.prompt_tokens if cold else None,
        cold_first_token_seconds=cold.first_token_seconds if cold else None,
        return_tokens=back.prompt_tokens if back else None,
        return_first_token_seconds=back.first_token_seconds if back else None,
    )


def _longest(played: list[Played]) -> Played | None:
    return max(played, key=lambda one: one.prompt_tokens or one.turn.tokens, default=None)
