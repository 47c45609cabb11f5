"""The overview in a real browser."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.async_api import Browser, Page, expect

from app.events import Event
from app.supervisor.states import EngineState
from tests.browser.conftest import Served, drawn, live, serve
from tests.fakes import fake_deck

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]

LEGEND = "[data-chart=slots] .legend"


async def test_says_whether_the_cache_works_and_draws_every_chart(page: Page) -> None:
    """The sentence first, then numbers beside those of the window before, then five charts with values."""
    await expect(page.locator("#sentence")).to_have_text("The cache works: 92.5 % of input tokens came from cache.")
    await expect(page.locator(".key-vram .beside")).to_contain_text("from 85.9 %")
    await drawn(page)
    assert await page.locator("[data-chart] canvas").count() == 5
    await expect(page.locator(LEGEND)).to_contain_text(re.compile(r"Token slots used \d+\.\d %.*State slots used"))


async def test_new_numbers_come_without_a_reload(page: Page, served: Served) -> None:
    """A scrape is told over the open line; tiles, table and charts follow, focus and page stay."""
    await live(page)
    await drawn(page)
    await page.evaluate("window.untouched = true")
    await page.focus("#engine-main-1")
    async with page.expect_request("**/api/v1/series?chart=load*", timeout=30_000):
        served.deck.charts.shift = 9_000_000
        await page.wait_for_timeout(1600)  # what was just drawn is not read again at once
        await page.evaluate("Date.now = ((now) => () => now() + 120000)(Date.now)")
        served.deck.events.publish(Event("scrape", "main-1", {"ok": True}))
    await expect(page.locator(".key-input .value")).to_contain_text("50.2M")
    assert await page.evaluate("window.untouched")
    assert await page.evaluate("document.activeElement.id") == "engine-main-1"


async def test_state_of_an_engine_changes_in_place(page: Page, served: Served) -> None:
    """What the supervisor sees, the table shows, with the cause."""
    await live(page)
    served.deck.engines.set("main-2", state=EngineState.FAILED, cause="The model is gone.")
    row = page.locator("#engines-table tr", has_text="main-2")
    await expect(row).to_contain_text("failed")
    await expect(row).to_contain_text("The model is gone.")


async def test_arrow_keys_read_values_out_on_all_charts(page: Page) -> None:
    """Without a mouse: the values of a moment are spoken, and every chart points to the same one."""
    await drawn(page)
    plot = page.locator("[data-chart=ttft] .plot")
    await plot.focus()
    for _ in range(3):
        await page.keyboard.press("ArrowLeft")
    reading = page.locator("[data-chart=ttft] [data-reading]")
    await expect(reading).to_have_text(re.compile(r"^\d\d:\d\d:\d\d, p50 .* ms, p90 .* s, p99 .* s$"))
    moment = (await reading.inner_text()).split(",")[0]
    await expect(page.locator("[data-chart=load] .legend .at")).to_have_text(moment)
    await page.keyboard.press("Home")
    await expect(reading).not_to_contain_text(moment)
    await page.keyboard.press("Escape")
    await expect(page.locator("[data-chart=load] .legend .at")).to_have_text("now")


async def test_restart_is_marked_and_named(page: Page) -> None:
    """Pointing at the mark tells what happened then."""
    await drawn(page)
    await page.locator("[data-chart=memory]").scroll_into_view_if_needed()
    box = await page.locator("[data-chart=memory] .u-over").bounding_box()
    assert box is not None
    await page.mouse.move(box["x"] + box["width"] * 0.58, box["y"] + 20)
    await expect(page.locator("[data-chart=memory] .legend .at")).to_contain_text("main-1 restarted")


async def test_zoom_is_shared_and_in_the_address(page: Page, served: Served) -> None:
    """A link reproduces what is seen; one click or Escape goes back."""
    await drawn(page)
    await page.locator("[data-chart=load]").scroll_into_view_if_needed()
    box = await page.locator("[data-chart=load] .u-over").bounding_box()
    assert box is not None
    await page.mouse.move(box["x"] + 50, box["y"] + 50)
    await page.mouse.down()
    await page.mouse.move(box["x"] + 200, box["y"] + 60, steps=4)
    await page.mouse.up()
    await expect(page).to_have_url(re.compile("from=.*to="))
    address = page.url
    await page.goto(address)
    await drawn(page)
    await expect(page.locator("#reset-zoom")).to_be_visible()
    await page.click("#reset-zoom")
    await expect(page).not_to_have_url(re.compile("from="))
    await expect(page.locator("#reset-zoom")).to_be_hidden()


async def test_numbers_can_be_had_as_table_and_as_curl(page: Page) -> None:
    """What is drawn can be read and fetched."""
    await drawn(page)
    chart = page.locator("[data-chart=slots]")
    await chart.locator("[data-table]").click()
    await expect(chart.locator("thead th")).to_have_text(["Time", "Token slots used", "State slots used"])
    assert await chart.locator("tbody tr").count() > 100
    await chart.locator("[data-table]").click()
    await expect(chart.locator("canvas")).to_be_visible()
    await chart.locator("[data-curl]").click()
    copied = await page.evaluate("navigator.clipboard.readText()")
    assert copied.startswith('curl -H "Authorization: Bearer $TIERDECK_ADMIN_TOKEN" ')
    assert "/api/v1/series?chart=slots&window=1h" in copied


async def test_window_is_in_the_address(page: Page) -> None:
    """A window is a link; the charts ask for it."""
    async with page.expect_request("**/api/v1/series?chart=slots&window=24h"):
        await page.click("[data-window='24h']")
    await expect(page.locator("[data-window='24h'][aria-current]")).to_be_visible()


async def test_a_deck_that_went_away_is_told_and_found_again(browser: Browser, tmp_path: Path) -> None:
    """The dot says that the line is lost, the drawings stay, and what was missed is read on coming back."""
    context = await browser.new_context(viewport={"width": 1440, "height": 900})
    page = await context.new_page()
    async with serve(fake_deck.build(tmp_path)) as address:
        await page.goto(f"{address}/login")
        await page.fill("#token", fake_deck.TOKEN)
        await page.keyboard.press("Enter")
        await live(page)
        await drawn(page)
    await expect(page.locator("#live")).to_have_text("connection lost, trying again")
    assert await page.locator("[data-chart] canvas").count() == 5
    again = fake_deck.build(tmp_path)
    again.state.deck.charts.shift = 9_000_000
    async with serve(again, int(address.rpartition(":")[2])):
        await expect(page.locator("#live")).to_have_text("live", timeout=15_000)
        await expect(page.locator(".key-input .value")).to_contain_text("50.2M")
        await context.close()


async def test_selected_text_is_not_taken_away(page: Page, served: Served) -> None:
    """Who copies a number keeps the selection while new ones come."""
    await live(page)
    await page.evaluate("document.getSelection().selectAllChildren(document.querySelector('.key-vram .value'))")
    async with page.expect_response(lambda answer: answer.url.endswith("/?window=1h")):
        served.deck.events.publish(Event("scrape", "main-1", {"ok": True}))
    assert "86.5" in await page.evaluate("document.getSelection().toString()")


@pytest.mark.parametrize("scenario", ["empty", "idle", "down", "starting", "none"])
async def test_no_numbers_is_a_sentence_not_an_empty_axis(page: Page, scenario: str) -> None:
    """Each chart says why it has nothing to draw."""
    await expect(page.locator(".plot", has_text="Loading")).to_have_count(0)
    texts = await page.locator(".chart-state p:first-child").all_inner_texts()
    assert len(texts) == 5
    assert set(texts) <= {
        "No requests yet.",
        "No requests in this window.",
        "The engine does not run.",
        "The engine is starting; numbers come when it is ready.",
        "There is no engine.",
    }


async def test_a_chart_that_cannot_be_read_offers_another_try(page: Page, served: Served) -> None:
    """Sentence, and a button that helps once the fault is over."""
    body = '{"error": {"code": "internal", "message": "The store is locked.", "path": null}}'
    await page.route("**/api/v1/series*", lambda route: route.fulfill(status=503, body=body))
    await page.goto("/")
    state = page.locator("[data-chart=load] .chart-state")
    await expect(state).to_contain_text("The store is locked.")
    await page.unroute("**/api/v1/series*")
    await state.locator("button").click()
    await expect(page.locator("[data-chart=load] canvas")).to_be_visible()
    served.complaints.clear()  # the browser notes the answers made up above


async def test_scripts_write_numbers_as_the_server_does(page: Page, served: Served) -> None:
    """The legend and the tiles agree on every digit."""
    from app.web import formats

    values = [
        0,
        0.0004,
        0.00123,
        0.5,
        0.865,
        0.9996,
        1,
        5.7,
        9.999,
        59.94,
        59.97,
        265,
        999.4,
        999.9,
        1234,
        97_400,
        281_000,
        41_234_567,
    ]
    script = """async ([address, values]) => {
        const { count, duration, share, size } = await import(address);
        return values.map((value) => [count(value), duration(value), size(value), share(value)]);
    }"""
    address = await page.evaluate("document.querySelector('script[type=module]').src.replace('deck.js', 'format.js')")
    told = await page.evaluate(script, [address, values])
    for value, (count, duration, size, share) in zip(values, told, strict=True):
        assert count == str(formats.count(value))
        assert duration == str(formats.duration(value))
        assert size == str(formats.size(value))
        if value <= 1:
            assert share == str(formats.share(value))


async def test_sign_in_leads_to_where_one_wanted(page: Page) -> None:
    """A wrong token says so; the right one opens the page that was asked for."""
    await page.context.clear_cookies()
    await page.goto("/alerts")
    await page.fill("#token", "guess")
    await page.keyboard.press("Enter")
    await expect(page.locator("#token-error")).to_have_text("This is not the deck's token.")
    await page.fill("#token", fake_deck.TOKEN)
    await page.keyboard.press("Enter")
    await expect(page.locator("h1")).to_have_text("Alerts")
