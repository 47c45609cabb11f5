"""What the demo says at its end."""

from __future__ import annotations

import asyncio
import json

import httpx
import pytest

from app.demo.player import Model, Played, Player, fitted, summarise
from app.demo.traffic import Kind, Sizes, Step, Turn


def played(kind: Kind, tokens: int, seconds: float | None, error: str | None = None) -> Played:
    return Played(0.0, Turn("s", 1, kind, tokens, 8), tokens, None, seconds, 1.0, error)


def test_cold_is_compared_with_back_from_the_host_per_token() -> None:
    """The longest of each kind; what failed is counted, not compared."""
    summary = summarise(
        [
            played(Kind.NEW, 4_000, 1.0),
            played(Kind.NEW, 20_000, 10.0),
            played(Kind.GROWS, 20_000, 0.1),
            played(Kind.RETURNS, 20_000, 0.25),
            played(Kind.RETURNS, 30_000, None, "The engine left."),
        ]
    )
    assert summary.requests == 5 and summary.failed == 1
    assert summary.cold_first_token_seconds == 10.0 and summary.return_first_token_seconds == 0.25
    assert summary.times_faster == pytest.approx(40)


def test_without_a_return_there_is_nothing_to_compare() -> None:
    """Missing is None, never 0."""
    summary = summarise([played(Kind.NEW, 4_000, 1.0)])
    assert summary.return_tokens is None and summary.times_faster is None


def test_a_small_model_gets_shorter_sessions() -> None:
    """Nothing is sent that the model would refuse."""
    sizes = fitted(Sizes(), Model("m", 8192, 2.0))
    assert max(sizes.main_first, sizes.main_last, sizes.short_most) + sizes.answer < 8192
    assert fitted(Sizes(), Model("m", None, 2.0)) == Sizes()


async def test_no_request_begins_after_the_time_is_over() -> None:
    """Also in the middle of a long step: the slow machine's demo ends when the fast one's does."""
    answer = {"usage": {"prompt_tokens": 10}}
    asked = []

    async def slow_engine(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        await asyncio.sleep(0.05)
        return httpx.Response(200, text=f"data: {json.dumps(answer)}\n\ndata: [DONE]\n\n")

    seen: list[Step | Played] = []
    transport = httpx.MockTransport(slow_engine)
    async with httpx.AsyncClient(transport=transport, base_url="http://deck") as client:
        await Player(client, 1).play(Sizes(), Model("m", None, 2.0), 0.22, seen.append)
    assert any(isinstance(what, Step) and what.width == 2 for what in seen)
    assert len(asked) == sum(isinstance(what, Played) for what in seen) < 12
