"""The fleets' page: setting one up, changing it, more engines and fewer."""

from __future__ import annotations

import pytest
from playwright.async_api import Page, expect

from app.supervisor import machine
from tests.browser.conftest import Served, live

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]


@pytest.fixture(autouse=True)
def large_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """The played fleet's host tier is that of a large machine."""
    monkeypatch.setattr(machine, "usable_bytes", lambda: 1 << 40)


async def opened(page: Page) -> None:
    await page.goto("/")
    await page.click("#to-fleets")
    await live(page)


async def test_a_fleet_is_added_with_its_engines(page: Page, served: Served) -> None:
    """From the overview to two engines that are ready; what is wrong is told at its field, nothing typed is lost."""
    await opened(page)
    await page.click("#new-fleet")
    dialog = page.locator("#create-dialog")
    await dialog.locator("[name=name]").fill("chat")
    await dialog.locator("[name=model]").fill("org/chat")
    await dialog.locator("[name=engines]").fill("2")
    await dialog.locator("[name=base_flags]").fill('{"max-num-seqs": 0}')
    await dialog.locator("[type=submit]").click()
    await expect(dialog.locator(".field", has_text="Engine flags").locator(".error")).to_contain_text("too small")
    await expect(dialog.locator("[name=model]")).to_have_value("org/chat")
    await dialog.locator("[name=base_flags]").fill('{"max-num-seqs": 4}')
    await dialog.locator("[name=devices]").fill("0,1")
    await dialog.locator("[type=submit]").click()
    await expect(dialog).not_to_be_visible()
    chat = page.locator("#fleet-chat")
    await expect(chat.locator("header")).to_contain_text("2 of 2 ready")
    await expect(chat.locator("tbody tr")).to_have_count(2)
    await expect(chat.locator("tbody tr").nth(1)).to_contain_text("chat-2")
    await expect(chat).to_contain_text('"max-num-seqs": 4')


async def test_a_change_says_what_waits_for_a_restart(page: Page) -> None:
    """The form holds what is set; saved, the page says what runs on with the old value."""
    await opened(page)
    await page.click("#change-main")
    dialog = page.locator("#change-dialog")
    await expect(dialog.locator("[name=model]")).to_have_value("/models/qwen")
    await dialog.locator("[name=model]").fill("org/other")
    await dialog.locator("[name=routing]").select_option("least_busy")
    await dialog.locator("[name=port_from]").fill("9000")
    await dialog.locator("[type=submit]").click()
    await expect(dialog.locator(".field", has_text="Last port").locator(".error")).to_contain_text("both ends")
    await dialog.locator("[name=port_to]").fill("9009")
    await dialog.locator("[type=submit]").click()
    await expect(dialog).not_to_be_visible()
    main = page.locator("#fleet-main")
    await expect(main.locator(".waits")).to_contain_text("Restart to apply: Model.")
    await expect(main).to_contain_text("To the least busy engine")
    await expect(main).to_contain_text("9000–9009")
    await page.click("#change-main")
    await expect(dialog.locator("[name=port_to]")).to_have_value("9009")


async def test_what_does_not_fit_is_told_before_it_is_tried(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without memory for another engine the button is off, and the reason has the numbers."""
    monkeypatch.setattr(machine, "usable_bytes", lambda: 100 << 30)
    await opened(page)
    await expect(page.locator("#add-to-main")).to_be_disabled()
    said = "main-3 takes 64 GiB of host memory beside main-2 64 GiB; together more than the 100 GiB that there is."
    await expect(page.locator("#fleet-main")).to_contain_text(said)


async def test_more_engines_and_fewer(page: Page, served: Served) -> None:
    """What will happen is said before; the page then shows it happening, and the only engine stays."""
    await opened(page)
    main = page.locator("#fleet-main")
    await page.click("#add-to-main")
    dialog = page.locator("dialog[open]")
    await expect(dialog).to_contain_text("main-3 is started on port 87")
    await expect(dialog).to_contain_text("with agents v")
    await dialog.locator("[type=submit]").click()
    await expect(main.locator("header")).to_contain_text("3 of 3 ready")
    for name in ("main-3", "main-2"):
        await page.click(f"#remove-{name}")
        await expect(dialog).to_contain_text("3 requests are in flight and are waited for.")
        submit = dialog.locator("[type=submit]")
        await expect(submit).to_be_disabled()
        await dialog.locator("[data-confirm-name]").fill(name)
        await submit.click()
        await expect(main.locator(f"#engine-{name}")).to_have_count(0)
    assert [status.name for status in served.deck.engines.statuses("main")] == ["main-1"]
    await expect(page.locator("#remove-main-1")).to_be_disabled()


async def test_a_fleet_is_deleted_by_its_name(page: Page, served: Served) -> None:
    """Nothing serves the model any more; the page says how to begin again."""
    await opened(page)
    await page.click("#delete-main")
    dialog = page.locator("dialog[open]")
    await expect(dialog).to_contain_text("Nobody serves qwen any more.")
    await dialog.locator("[data-confirm-name]").fill("main")
    await dialog.locator("[type=submit]").click()
    await expect(page.locator("#fleet-list .empty")).to_contain_text("Add the first one")
    await page.goto("/")
    await expect(page.locator("#engines-table")).to_contain_text("Add a fleet")
