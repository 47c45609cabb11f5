"""The page of requests, used."""

from __future__ import annotations

import time

import pytest
from playwright.async_api import Page, expect

from app.proxy.record import Outcome, Record
from tests.browser.conftest import Served, live

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]


async def test_a_request_that_ends_appears_by_itself(page: Page, served: Served) -> None:
    """At the top, without a click."""
    await page.goto("/requests")
    await live(page)
    rows = page.locator("table.requests tbody tr")
    await expect(rows).to_have_count(8)
    record = Record("POST", "/v1/completions", at=time.time(), session="just-now", outcome=Outcome.DONE, status=200)
    record.close()
    served.deck.requests.keep(record)
    await served.deck.requests.flush()
    await expect(rows).to_have_count(9)
    await expect(rows.first).to_contain_text("just-now")


async def test_a_session_leads_to_its_requests(page: Page, served: Served) -> None:
    """And back to all of them."""
    await page.goto("/requests")
    await page.get_by_role("link", name="main-agent").first.click()
    await expect(page.locator("table.requests tbody tr")).to_have_count(3)
    await expect(page.get_by_role("searchbox")).to_have_value("main-agent")
    await page.get_by_label("Outcome").select_option("client_closed")
    await expect(page.locator("table.requests tbody tr")).to_have_count(1)
    await page.get_by_role("link", name="Show all").click()
    await expect(page.locator("table.requests tbody tr")).to_have_count(8)


async def test_the_call_behind_the_list_is_copied(page: Page, served: Served) -> None:
    """With the filters that are set."""
    await page.goto("/requests?session=main-agent")
    await page.get_by_role("button", name="Copy as curl").click()
    copied = await page.evaluate("navigator.clipboard.readText()")
    assert copied.endswith(f"'{served.address}/api/v1/requests?session=main-agent'")
