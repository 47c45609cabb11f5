"""Whether an engine really serves: it must give a token. `/health` alone is answered by the front end."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

import httpx

from app.supervisor.causes import Cause

HEALTH_TIMEOUT_SECONDS = 5.0
TOKEN_TIMEOUT_SECONDS = 60.0
_FIRST_WAIT_SECONDS = 0.1
_CAP_SECONDS = 2.0


class Answer(Enum):
    """What an engine answered to the question whether it serves."""

    SILENT = "silent"
    HEALTHY = "healthy"
    SERVES = "serves"


@dataclass(frozen=True)
class Probe:
    """An answer, and the words to show when it is not the wished one."""

    answer: Answer
    detail: str
    prompt_tokens: int = 0
    """Tokens of the question itself, as the engine counted them; of one that serves."""


def wait_seconds(tries: int) -> float:
    """How long to wait before the next question, after `tries` of them. Pure."""
    return float(min(_CAP_SECONDS, _FIRST_WAIT_SECONDS * 1.5 ** min(tries, 30)))


async def ask_health(client: httpx.AsyncClient, base_url: str) -> Probe:
    """Whether the front end answers."""
    try:
        response = await client.get(f"{base_url}/health", timeout=HEALTH_TIMEOUT_SECONDS)
    except httpx.HTTPError as error:
        return Probe(Answer.SILENT, f"{type(error).__name__}: {error}")
    if response.is_success:
        return Probe(Answer.HEALTHY, "")
    return Probe(Answer.SILENT, Cause.HEALTH_ANSWERED % {"status": response.status_code})


async def ask_token(
    client: httpx.AsyncClient, base_url: str, model: str, patience_seconds: float = TOKEN_TIMEOUT_SECONDS
) -> Probe:
    """Whether one token comes out; an engine that only embeds is asked for an embedding."""
    try:
        response = await client.post(
            f"{base_url}/v1/completions",
            json={"model": model, "prompt": "a", "max_tokens": 1, "temperature": 0},
            timeout=patience_seconds,
        )
        if response.status_code in {404, 501}:
            response = await client.post(
                f"{base_url}/v1/embeddings", json={"model": model, "input": "a"}, timeout=patience_seconds
            )
    except httpx.TimeoutException:
        return Probe(Answer.HEALTHY, Cause.ONLY_HEALTH % {"seconds": f"{patience_seconds:.0f}"})
    except httpx.HTTPError as error:
        return Probe(Answer.SILENT, f"{type(error).__name__}: {error}")
    return judge_token(response)


def judge_token(response: httpx.Response) -> Probe:
    """What the answer to the one-token request proves. Pure."""
    if not response.is_success:
        return Probe(Answer.HEALTHY, Cause.ONLY_HEALTH_ANSWERED % {"status": response.status_code})
    try:
        body: Any = response.json()
    except ValueError:
        return Probe(Answer.HEALTHY, Cause.ONLY_HEALTH_NO_JSON.value)
    if isinstance(body, dict) and (body.get("choices") or body.get("data")):
        return Probe(Answer.SERVES, "", _prompt_tokens(body))
    return Probe(Answer.HEALTHY, Cause.ONLY_HEALTH_EMPTY.value)


def _prompt_tokens(body: dict[str, Any]) -> int:
    usage = body.get("usage")
    tokens = usage.get("prompt_tokens") if isinstance(usage, dict) else None
    return tokens if isinstance(tokens, int) else 0
