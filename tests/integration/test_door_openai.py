"""The stock `openai` client works against the door unchanged."""

from __future__ import annotations

import json

import openai
import pytest

from app.supervisor.states import EngineState
from tests.fakes.upstream import Exchange, running
from tests.integration.door_rig import StatedEngines, engine, serving

WORDS = ["one", " two", " three"]


def completion(text: str) -> dict[str, object]:
    choice = {"index": 0, "text": text, "finish_reason": None, "logprobs": None}
    return {"id": "c", "object": "text_completion", "created": 1, "model": "demo", "choices": [choice]}


async def model_server(exchange: Exchange) -> None:
    """Completions as vLLM writes them, streaming when asked."""
    if json.loads(exchange.body).get("stream"):
        await exchange.say(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        for word in WORDS:
            await exchange.chunk(b"data: %s\n\n" % json.dumps(completion(word)).encode())
        await exchange.chunk(b"data: [DONE]\n\n")
        await exchange.say(b"0\r\n\r\n")
        return
    body = json.dumps(completion("".join(WORDS))).encode()
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    await exchange.say(head % len(body) + body)


async def test_completions_streaming_and_not() -> None:
    """Only base_url is set; the key is any word, as the SDK demands one."""
    async with (
        running(model_server) as upstream,
        serving(StatedEngines(engine(upstream.port))) as deck,
        openai.AsyncOpenAI(base_url=f"{deck.base_url}/v1", api_key="any") as client,
    ):
        whole = await client.completions.create(model="demo", prompt="count")
        stream = await client.completions.create(model="demo", prompt="count", stream=True)
        pieces = [event.choices[0].text async for event in stream]
    assert whole.choices[0].text == "one two three" and pieces == WORDS


async def test_a_refusal_is_read_by_the_client() -> None:
    """The SDK raises its own type, with the deck's sentence in it."""
    engines = StatedEngines(engine(state=EngineState.FAILED, cause="The model does not exist."))
    async with (
        serving(engines) as deck,
        openai.AsyncOpenAI(base_url=f"{deck.base_url}/v1", api_key="any", max_retries=0) as client,
    ):
        with pytest.raises(openai.InternalServerError, match="The model does not exist") as caught:
            await client.completions.create(model="demo", prompt="count")
    assert caught.value.status_code == 503 and caught.value.code == "engine_failed"
