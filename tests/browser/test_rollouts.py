"""A rollout as it is watched: steps as they come, and the two ways to end it."""

from __future__ import annotations

import asyncio
import re

import pytest
from playwright.async_api import Page, Route, expect

from app.supervisor.states import EngineState
from tests.browser.conftest import Served, live

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]


async def test_a_rollout_is_watched_and_cancelled(page: Page, served: Served) -> None:
    """The cell of the step in work moves; cancel says first what it does, then the page shows it happening."""
    served.deck.engines.hold_at(EngineState.STARTING)
    begun = await served.deck.rollouts.start("main", "agents", 3, "rolling", "ann")
    await page.goto(f"/rollouts/{begun.id}")
    await live(page)
    steps = page.locator(".steps tbody tr")
    await expect(steps).to_have_count(2)
    working = steps.first.locator("td.is-working")
    await expect(working).to_contain_text("Loading the weights")
    await expect(working.locator("progress")).to_be_visible()
    await expect(page.locator(".rollout-log li").first).to_contain_text("ready begins.")
    await expect(page.locator(".rollout-log li [data-clock]").first).to_have_text(re.compile(r"^\d\d:\d\d:\d\d$"))
    await page.click("#do-cancel")
    dialog = page.locator("dialog[open]")
    await expect(dialog).to_contain_text("those done stay")
    await dialog.locator("[type=submit]").click()
    await expect(steps).to_have_count(3)
    await expect(page.locator("#rollout-state")).to_contain_text("admin has cancelled it.")
    served.deck.engines.go_on()
    await expect(page.locator(".rollout-head .now")).to_contain_text("cancelled")
    await expect(page.locator(".rollout-head .reason")).to_contain_text("Cancelled by admin.")
    await expect(page.locator("#do-cancel")).to_have_count(0)


async def test_what_was_done_is_rolled_back(page: Page, served: Served) -> None:
    """From the list to the rollout, and back with every engine."""
    begun = await served.deck.rollouts.start("main", "agents", 3, "rolling", "ann")
    await page.goto("/rollouts")
    await live(page)
    row = page.locator("#rollout-list tbody tr").first
    await expect(row).to_contain_text("done")
    await row.locator(f"#rollout-{begun.id}").click()
    await page.click("#do-rollback")
    await page.locator("dialog[open] [type=submit]").click()
    await expect(page.locator(".rollout-head .now")).to_contain_text("rolled back")
    await expect(page.locator(".steps tr.back")).to_have_count(2)


async def test_what_happens_while_a_page_opens_is_shown(page: Page, served: Served) -> None:
    """The rollout ends after the page was made and before it listens: nothing tells of that any more."""
    served.deck.engines.hold_at(EngineState.STARTING)
    begun = await served.deck.rollouts.start("main", "agents", 3, "rolling", "ann")
    listens = asyncio.Event()

    async def later(route: Route) -> None:
        await listens.wait()
        await route.continue_()

    await page.route("**/events", later)
    await page.goto(f"/rollouts/{begun.id}")
    await expect(page.locator(".rollout-head .now")).to_contain_text("running")
    served.deck.engines.go_on()
    async with asyncio.timeout(30):
        while (await served.deck.rollouts.get(begun.id)).state == "running":
            await asyncio.sleep(0.05)
    listens.set()
    await expect(page.locator(".rollout-head .now")).to_contain_text("done")
