"""The planner in a browser: typing, files, the drawing, a phone."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from playwright.async_api import Page, expect
from sqlalchemy import select

from app.store.models import FleetRow
from tests.browser.conftest import Served, live
from tests.browser.test_looks import CONTRAST, HEADINGS, UNLABELLED
from tests.unit.planner.models import MODELS

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]

HYBRID = json.dumps(MODELS["Qwen3.6-27B"].config)


async def test_a_plan_follows_what_is_typed(page: Page, tmp_path: Path) -> None:
    """No button needed; a wrong size is told at its field while the typing goes on."""
    await page.goto("/planner")
    await live(page)
    await page.fill("#config", HYBRID)
    result = page.locator("#plan-result")
    await expect(result).to_contain_text("48 × gated delta net")
    await expect(result.locator("canvas")).to_be_visible()
    await page.fill("#host_bytes", "5 GB")
    await expect(page.locator("[data-size-of=host_bytes]")).to_contain_text("5,000,000,000 B")
    await page.fill("#host_bytes", "2g")
    await expect(page.locator("#host_bytes-error")).to_contain_text("64GiB")
    await expect(page.locator("#host_bytes")).to_be_focused()
    await expect(page.locator("#host_bytes")).to_have_value("2g")
    await page.fill("#host_bytes", "64 GiB")
    await expect(page.locator("#host_bytes-error")).to_have_count(0)
    await expect(result.locator("[data-slots]")).to_be_visible()


async def test_a_file_is_taken_instead_of_a_paste(page: Page, tmp_path: Path) -> None:
    """Chosen in the dialog; its text stands in the field."""
    file = tmp_path / "config.json"
    file.write_text(json.dumps(MODELS["DeepSeek-V3"].config))
    await page.goto("/planner")
    async with page.expect_file_chooser() as chooser:
        await page.click("[data-choose-file]")
    await (await chooser.value).set_files(file)
    await expect(page.locator("#plan-result")).to_contain_text("latent attention (MLA)")
    await expect(page.locator("#config")).to_have_value(re.compile("kv_lora_rank"))


async def test_the_drawing_reads_out_by_keyboard(page: Page, served: Served, tmp_path: Path) -> None:
    """The present setting is marked; arrow keys go from length to length."""
    (tmp_path / "config.json").write_text(HYBRID)
    async with served.deck.database.begin() as session:
        (await session.scalars(select(FleetRow))).one().model = str(tmp_path)
    await page.goto("/planner?profile=agents&version=3")
    legend = page.locator("#plan-result .legend")
    await expect(legend).to_contain_text("65,536 · reference length now")
    await expect(page.locator("tr[aria-current]").first).to_contain_text("65,536")
    await page.locator(".slot-chart .plot").focus()
    await page.keyboard.press("ArrowRight")
    await expect(page.locator("[data-reading]")).to_contain_text("131,072, Tokens held")
    await page.keyboard.press("Home")
    await expect(legend).to_contain_text("4,096")


@pytest.mark.parametrize("viewport", [(390, 844)])
@pytest.mark.parametrize("theme", ["light", "dark"])
async def test_a_whole_plan_on_a_phone(page: Page, viewport: tuple[int, int], theme: str) -> None:
    """Nothing scrolls sideways but wide tables in their box; readable; every control has a name."""
    await page.emulate_media(color_scheme=theme, reduced_motion="reduce")  # type: ignore[arg-type]
    await page.goto("/planner")
    await live(page)
    await page.fill("#config", HYBRID)
    await page.fill("#weights_bytes", "54 GB")
    await page.fill("#gpu_bytes", "141 GB")
    await expect(page.locator(".card-bar")).to_be_visible()
    assert await page.evaluate("document.documentElement.scrollWidth") <= 390
    assert await page.evaluate(CONTRAST) == []
    assert await page.evaluate(UNLABELLED) == []
    assert set(await page.evaluate(HEADINGS)) == {1, 2}
