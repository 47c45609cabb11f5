"""A real browser, and played decks served over a real port, all in one event loop."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import uvicorn
from fastapi import FastAPI
from playwright.async_api import Browser, Page, async_playwright, expect

from app.services.signin import COOKIE_NAME
from tests.fakes import fake_deck

#: No sandbox: CI runs as root. The rest keeps the browser from calling anyone.
ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


#: A machine that also starts engines is slow at times; what is waited for ends the wait.
expect.set_options(timeout=20_000)


@dataclass
class Served:
    """A deck on a port, and everything its pages complained about."""

    address: str
    application: FastAPI
    complaints: list[str] = field(default_factory=list)

    @property
    def deck(self) -> Any:
        return self.application.state.deck


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser() -> AsyncIterator[Browser]:
    """Chromium, started once."""
    executable = shutil.which("chromium") or shutil.which("chromium-browser")
    if executable is None:
        pytest.fail("Install Chromium (Debian: chromium), or leave the browser tests out with -m 'not browser'.")
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=executable, args=ARGUMENTS)
        yield browser
        await browser.close()


@contextlib.asynccontextmanager
async def serve(application: FastAPI, port: int = 0) -> AsyncIterator[str]:
    """Serve `application` on a free port, or on this one; its address."""
    config = uvicorn.Config(application, port=port, log_level="warning", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    # Signals are pytest's.
    server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign]
    task = asyncio.create_task(server.serve())
    while not server.started:  # uvicorn offers no event for it
        await asyncio.sleep(0.01)
        if task.done():
            await task
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        await task


@pytest.fixture
def scenario() -> str:
    """Overridden by tests that look at another state of the deck."""
    return "busy"


@pytest_asyncio.fixture(loop_scope="session")
async def served(tmp_path: Path, scenario: str) -> AsyncIterator[Served]:
    """A played deck in `scenario`; at the end, no page of it may have complained."""
    application = fake_deck.build(tmp_path, scenario, step_seconds=0.3)
    async with serve(application) as address:
        served = Served(address, application)
        yield served
    assert served.complaints == []


@pytest.fixture
def viewport() -> tuple[int, int]:
    """Overridden by tests on a phone."""
    return (1440, 900)


@pytest_asyncio.fixture(loop_scope="session")
async def page(browser: Browser, served: Served, viewport: tuple[int, int]) -> AsyncIterator[Page]:
    """Someone signed in, on the overview."""
    context = await browser.new_context(
        base_url=served.address, viewport={"width": viewport[0], "height": viewport[1]}, locale="en-US"
    )
    await context.grant_permissions(["clipboard-read", "clipboard-write"], origin=served.address)
    cookie = served.deck.signin.issue_cookie(time.time())
    await context.add_cookies([{"name": COOKIE_NAME, "value": cookie, "url": served.address}])
    page = await context.new_page()
    watch(page, served)
    await page.goto("/")
    yield page
    await context.close()


def watch(page: Page, served: Served) -> None:
    """Note script errors, refused resources and broken answers. An expected 4xx is not one of them."""

    def on_console(message: Any) -> None:
        if message.type in {"error", "warning"} and "the server responded with a status of 4" not in message.text:
            served.complaints.append(message.text)

    page.on("console", on_console)
    page.on("pageerror", lambda error: served.complaints.append(str(error)))
    page.on(
        "response",
        lambda answer: served.complaints.append(f"{answer.status} {answer.url}") if answer.status >= 500 else None,
    )


async def live(page: Page) -> None:
    """Wait until the page listens to the deck."""
    await page.wait_for_selector("#live[data-state=open]")


async def drawn(page: Page) -> None:
    """Wait until every chart of the page is drawn."""
    await expect(page.locator(".plot canvas")).to_have_count(await page.locator(".plot").count())
