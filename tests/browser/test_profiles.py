"""The profile editor: fields and JSON in step, findings that one click mends, and everything around versions."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from playwright.async_api import Page, expect

from tests.browser.conftest import Served, live

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]

INSIDE = "kv-transfer-config.kv_connector_extra_config"


async def config(page: Page) -> dict[str, object]:
    found: dict[str, object] = json.loads(await page.input_value("#kv_transfer_config"))
    return found


async def test_fields_and_json_stay_in_step(page: Page) -> None:
    """What is typed in a field stands in the JSON at once, and the other way round."""
    await page.goto("/profiles/agents")
    size = page.locator("#field-cpu_bytes_to_use")
    await expect(size).to_have_value("64 GiB")
    for text, stored in (("5 GiB", 5368709120), ("5 GB", 5000000000)):
        await size.fill(text)
        assert (await config(page))["kv_connector_extra_config"]["cpu_bytes_to_use"] == stored  # type: ignore[index]
        await expect(page.locator("#field-cpu_bytes_to_use-bytes")).to_contain_text(f"{stored:,} B")
        await expect(page.locator("#field-cpu_bytes_to_use-bytes")).to_contain_text("GiB")
    await page.select_option("#field-enable-prefix-caching", "false")
    assert json.loads(await page.input_value("#flags"))["enable-prefix-caching"] is False
    await page.select_option("#field-enable-prefix-caching", "")
    assert "enable-prefix-caching" not in json.loads(await page.input_value("#flags"))
    await page.fill("#flags", '{"max-model-len": 4096, "kv-cache-memory-bytes": 8589934592}')
    await expect(page.locator("#field-max-model-len")).to_have_value("4096")
    await expect(page.locator("#field-kv-cache-memory-bytes")).to_have_value("8 GiB")
    await page.fill("#flags", '{"max-model-len": ')
    await expect(page.locator("#field-max-model-len")).to_be_disabled()
    await page.fill("#flags", "{}")
    await expect(page.locator("#field-max-model-len")).to_have_value("")


async def test_one_click_mends_what_is_found(page: Page) -> None:
    """Two typos and a key at the wrong level: three clicks, and it can be saved."""
    await page.goto("/profiles/agents")
    wrong = {
        "kv_connector": "OffloadingConnector",
        "kv_role": "kv_both",
        "spec_name": "TieringOffloadingSpec",
        "kv_connector_extra_config": {"cpu_bytes_to_use": 10737418240, "evict_policy": "lru"},
    }
    await page.fill("#kv_transfer_config", json.dumps(wrong))
    typo = page.locator(f'#findings [data-path="{INSIDE}.evict_policy"]')
    await expect(typo).to_contain_text("eviction_policy")
    await typo.get_by_text("Rename it to eviction_policy").click()
    await page.get_by_text("Move it to kv_connector_extra_config.spec_name").click()
    await expect(page.locator("#findings .error")).to_have_count(0)
    assert (await config(page))["kv_connector_extra_config"] == {
        "cpu_bytes_to_use": 10737418240,
        "eviction_policy": "lru",
        "spec_name": "TieringOffloadingSpec",
    }
    await page.click("text=Save as version 4")
    await page.wait_for_url("**/profiles/agents?version=4#apply")


async def test_not_quite_json_is_mended_too(page: Page) -> None:
    """A bare unit and a comment: place, sentence, and a click."""
    await page.goto("/new-profile")
    await page.fill("#kv_transfer_config", '{"cpu_bytes_to_use": 2g}')
    finding = page.locator("#findings .finding.error")
    await expect(finding).to_contain_text("Line 1, column 23")
    await finding.locator("[data-fix]").click()
    await expect(page.locator("#kv_transfer_config")).to_have_value('{"cpu_bytes_to_use": 2147483648}')


async def test_what_is_allowed_is_shown_and_can_be_taken_back(page: Page) -> None:
    """A key of a foreign connector is an error until it is allowed."""
    await page.goto("/new-profile")
    foreign = {"kv_connector": "Mine", "kv_role": "kv_both", "kv_connector_extra_config": {"my_key": 1}}
    await page.fill("#kv_transfer_config", json.dumps(foreign))
    await page.get_by_text("Allow this key").click()
    await expect(page.locator("#findings .error")).to_have_count(0)
    await expect(page.locator("#allowed")).to_contain_text("my_key")
    await page.locator("#allowed button").click()
    await expect(page.locator("#findings .error")).to_have_count(1)


async def test_total_and_per_rank_stand_side_by_side(page: Page) -> None:
    """25 GiB on each of two ranks are 50 GiB; where each rank counts for itself, 50 are 100."""
    await page.goto("/new-profile")
    ours = {"kv_connector": "OffloadingConnector", "kv_role": "kv_both"}
    await page.fill(
        "#kv_transfer_config", json.dumps({**ours, "kv_connector_extra_config": {"cpu_bytes_to_use": 53687091200}})
    )
    await page.fill("#flags", '{"tensor-parallel-size": 2}')
    cells = page.locator("#host-memory td")
    await expect(cells).to_have_text(["OffloadingConnector", "25 GiB", "× 2", "50 GiB"])
    other = {
        "kv_connector": "LMCacheConnectorV1",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"max_local_cpu_size": 50},
    }
    await page.fill("#kv_transfer_config", json.dumps(other))
    await expect(cells).to_have_text(["LMCacheConnectorV1", "50 GiB", "× 2", "100 GiB"])
    old = {**ours, "kv_connector_extra_config": {"num_cpu_blocks": 1000}}
    await page.fill("#kv_transfer_config", json.dumps(old))
    await expect(page.locator("#findings")).to_contain_text("counts blocks of each worker")
    small = {**ours, "kv_connector_extra_config": {"cpu_bytes_to_use": 10}}
    await page.fill("#kv_transfer_config", json.dumps(small))
    await expect(page.locator("#findings")).to_contain_text("was 10 GiB meant?")


async def test_presets_fill_the_editor(page: Page) -> None:
    """Each says when to use it, and what it fills in has no error."""
    await page.goto("/new-profile")
    presets = page.locator(".presets li")
    for place in range(await presets.count()):
        await expect(presets.nth(place).locator("span")).not_to_be_empty()
        await presets.nth(place).locator("button").click()
        await expect(page.locator("#field-enable-prefix-caching")).to_have_value("true")
        await expect(page.locator("#findings .error")).to_have_count(0)
    await page.fill("#name", "from-preset")
    await page.click("#editor [type=submit]")
    await page.wait_for_url("**/profiles/from-preset?version=1#apply")


async def test_command_is_copied(page: Page) -> None:
    """The start with this version, ready for a shell."""
    await page.goto("/profiles/agents?version=2")
    await page.click("#copy-command")
    await expect(page.locator("#copy-command")).to_have_text("Copied")
    text = await page.evaluate("navigator.clipboard.readText()")
    assert text.startswith("env ")
    assert '--kv-transfer-config \'{"kv_connector"' in text


async def test_clone_export_and_import(page: Page, served: Served, tmp_path: Path) -> None:
    """A version becomes a profile of its own, or a file that another deck takes in."""
    await page.goto("/profiles/agents?version=2")
    async with page.expect_download() as waiting:
        await page.click("text=Export")
    file = tmp_path / "agents-v2.json"
    await (await waiting.value).save_as(file)
    await page.click("button:has-text('Clone')")
    await page.fill("#clone-name", "copy")
    await page.click("dialog[open] [type=submit]")
    await page.wait_for_url("**/profiles")
    await expect(page.locator("#profile-copy")).to_be_visible()
    await page.click("button:has-text('Import')")
    await page.set_input_files("#import-file", file)
    await page.click("dialog[open] [type=submit]")
    await expect(page.locator("dialog[open]")).to_contain_text("already")
    await page.fill("#import-name", "elsewhere")
    await page.click("dialog[open] [type=submit]")
    await page.wait_for_url("**/profiles/elsewhere")
    assert (await served.deck.profiles.version("elsewhere")).flags["max-model-len"] == 262144
    served.complaints.clear()  # the browser notes the refused request


async def test_versions_of_two_profiles_are_compared(page: Page, served: Served) -> None:
    """Field by field, and what that means in bytes."""
    await served.deck.profiles.clone("agents", 2, "copy", "admin")
    await page.goto("/profiles/copy")
    await live(page)
    await page.select_option("#compare-with", "agents@3")
    await page.click("button:has-text('Compare')")
    await expect(page.locator("#compare h2")).to_have_text("From agents v3 to copy v1")
    rows = page.locator("#compare tbody tr")
    await expect(rows).to_have_count(1)
    await expect(rows.locator("del")).to_have_text("65536")


async def test_the_engine_is_asked_from_the_page(page: Page) -> None:
    """Its findings stand with the others; a dry run tells the numbers it found."""
    await page.goto("/profiles/agents")
    await page.fill("#flags", '{"max-model-length": 4096, "enable-prefix-caching": true}')
    await page.click("[data-depth='2']")
    await expect(page.locator("#depth-answer")).to_contain_text("vLLM 0.32.0")
    await page.get_by_text("Rename it to max-model-len").click()
    await expect(page.locator("#findings .error")).to_have_count(0)
    await page.click("[data-depth='3']")
    await expect(page.locator("#depth-answer")).to_contain_text("54138 tokens in VRAM")
