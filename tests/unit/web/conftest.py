"""A played deck behind the real web layer, without a server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI

from tests.fakes import fake_deck

ORIGIN = "http://127.0.0.1:8700"
BEARER = {"authorization": f"Bearer {fake_deck.TOKEN}"}
HTML = {"accept": "text/html"}


@asynccontextmanager
async def running(application: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the application, between its start and its end."""
    transport = httpx.ASGITransport(application, raise_app_exceptions=False)
    async with (
        application.router.lifespan_context(application),
        httpx.AsyncClient(transport=transport, base_url=ORIGIN) as client,
    ):
        yield client


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    """Someone who has not signed in, at a busy deck."""
    async with running(fake_deck.build(tmp_path, "busy")) as client:
        yield client


async def sign_in(client: httpx.AsyncClient) -> None:
    """Show the token; the client keeps the cookie."""
    answer = await client.post("/login", data={"token": fake_deck.TOKEN}, headers={"origin": ORIGIN})
    assert answer.status_code == 303
