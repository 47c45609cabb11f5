"""An engine's answers to the canary, for a deck whose engines are only played."""

from __future__ import annotations

import json

import httpx

from app.services.canary import COMPLETIONS, FORGET_PATH


def canary_client() -> httpx.AsyncClient:
    """A client that finds such an engine wherever it asks."""
    hits = 0

    def answer(request: httpx.Request) -> httpx.Response:
        nonlocal hits
        if request.url.path == COMPLETIONS:
            hits += len(json.loads(request.content)["prompt"])
            logprobs = {"tokens": ["token_id:1"] * 8, "top_logprobs": [{"token_id:1": -0.5}]}
            return httpx.Response(200, json={"choices": [{"logprobs": logprobs}]})
        if request.url.path == FORGET_PATH:
            return httpx.Response(200, json={"success": True})
        if request.url.path == "/v1/models":
            return httpx.Response(200, json={"data": [{"max_model_len": 4096}]})
        lines = ("# TYPE vllm:external_prefix_cache_hits counter", f"vllm:external_prefix_cache_hits_total {hits}.0")
        return httpx.Response(200, text="\n".join(lines) + "\n")

    return httpx.AsyncClient(transport=httpx.MockTransport(answer))
