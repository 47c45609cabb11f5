"""Asks the canary's questions of an engine that is kept from traffic."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx

from app.rollouts import canary
from app.rollouts.canary import Answered, Shape
from app.rollouts.said import Said, say
from app.scrape.names import SeriesKey
from app.scrape.parse import Page, parse_page

ANSWER_SECONDS = 300.0
FORGET_SECONDS = 60.0
COUNTED_SECONDS = 10.0
LOOK_SECONDS = 0.2
FORGET_PATH = "/tierdeck/forget-device-cache"
HEADER = "x-tierdeck-marker"
COMPLETIONS = "/v1/completions"


class CanaryFailed(Exception):
    """The version is wrong, or could not be tested; `said` tells with the numbers."""

    def __init__(self, said: Said) -> None:
        super().__init__(said.text)
        self.said = said


class NotAsked(Exception):
    """This engine cannot be tested in this way; `said` tells why."""

    def __init__(self, said: Said) -> None:
        super().__init__(said.text)
        self.said = said


@dataclass(frozen=True)
class Patient:
    """The engine under test. `marker` is the secret of its start."""

    base_url: str
    model: str
    marker: str
    has_tier: bool
    """Whether a connector is to bring the prompt back."""
    chunk_blocks: int = 1
    stored_after: int = 1
    """How often a prompt is to be offered until the tier keeps it."""


class Canary:
    """One test of one engine."""

    def __init__(self, client: httpx.AsyncClient, patient: Patient) -> None:
        self._client = client
        self._patient = patient

    async def run(self, seed: str) -> Said:
        """What was seen. Raises CanaryFailed, NotAsked."""
        prompt = canary.prompt(seed, await self._shape())
        if prompt is None:
            raise CanaryFailed(
                say("max-model-len is shorter than one block: nothing can ever come back from host memory.")
            )
        cold = await self._ask(prompt)
        for _ in range(self._patient.stored_after - 1):
            await self._forget()
            await self._ask(prompt)
        if not self._patient.has_tier:
            return self._judged(len(prompt), cold, await self._ask(prompt), None)
        await self._forget()
        before = await self._host_hits()
        back = await self._ask(prompt)
        return self._judged(len(prompt), cold, back, await self._gained(before))

    def _judged(self, length: int, cold: Answered, back: Answered, host_tokens: float | None) -> Said:
        failure = canary.judge(cold, back, host_tokens)
        if failure is not None:
            raise CanaryFailed(failure)
        return canary.passed(length, cold, back, host_tokens)

    async def _shape(self) -> Shape:
        page = await self._metrics()
        blocks = [
            int(size)
            for key in page.gauges
            if key.name == "cache_config" and (size := key.label("block_size")).isdigit()
        ]
        answer = await self._get("/v1/models")
        longest = [one.get("max_model_len") for one in answer.get("data", [])]
        known = longest[0] if longest and isinstance(longest[0], int) else None
        return Shape(max(blocks, default=16) * self._patient.chunk_blocks, known)

    async def _ask(self, prompt: tuple[int, ...]) -> Answered:
        body = {
            "model": self._patient.model,
            "prompt": list(prompt),
            "max_tokens": canary.ANSWER_TOKENS,
            "temperature": 0,
            "ignore_eos": True,
            "logprobs": 5,
            "return_tokens_as_token_ids": True,
        }
        response = await self._send("POST", COMPLETIONS, json=body)
        return read_answer(response.json())

    async def _forget(self) -> None:
        """Empty the device's prefix cache, as soon as nothing is in flight there any more."""
        until = time.monotonic() + FORGET_SECONDS
        while time.monotonic() < until:
            response = await self._send("POST", FORGET_PATH, headers={HEADER: self._patient.marker})
            if response.json().get("success"):
                return
            await asyncio.sleep(LOOK_SECONDS)  # transfers end by themselves, and tell nobody
        raise CanaryFailed(
            say(
                "The device's cache could not be emptied for %(seconds)s s: requests hold its blocks.",
                seconds=int(FORGET_SECONDS),
            )
        )

    async def _host_hits(self) -> float:
        return (await self._metrics()).counters.get(SeriesKey("external_hits"), 0.0)

    async def _gained(self, before: float) -> float:
        """The counter follows the answer by a moment."""
        for _ in range(round(COUNTED_SECONDS / LOOK_SECONDS)):
            if (now := await self._host_hits()) > before:
                return now - before
            await asyncio.sleep(LOOK_SECONDS)
        return 0.0

    async def _metrics(self) -> Page:
        return parse_page((await self._send("GET", "/metrics")).text)

    async def _get(self, path: str) -> dict[str, Any]:
        answer: dict[str, Any] = (await self._send("GET", path)).json()
        return answer

    async def _send(self, method: str, path: str, **content: Any) -> httpx.Response:
        try:
            response = await self._client.request(
                method, f"{self._patient.base_url}{path}", timeout=ANSWER_SECONDS, **content
            )
        except httpx.HTTPError as error:
            raise CanaryFailed(
                say("%(path)s: %(error)s.", path=path, error=f"{type(error).__name__} {error}")
            ) from error
        if path == COMPLETIONS and response.status_code in {404, 501}:
            raise NotAsked(say("It gives no completions, so nothing was written and read back."))
        if not response.is_success:
            told = response.text[:200]
            raise CanaryFailed(
                say("%(path)s answered %(status)s: %(told)s", path=path, status=response.status_code, told=told)
            )
        return response


def read_answer(body: Mapping[str, Any]) -> Answered:
    """Tokens and logprobs of a completion. Raises CanaryFailed when they are not there. Pure."""
    try:
        logprobs = body["choices"][0]["logprobs"]
        return Answered(tuple(logprobs["tokens"]), {str(k): float(v) for k, v in logprobs["top_logprobs"][0].items()})
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise CanaryFailed(say("A completion came back without logprobs.")) from error
