"""The profile editor: fields and JSON in step, findings that one click mends, and everything around versions."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from playwright.async_api import Page, expect
from sqlalchemy import select

from app.store.models import FleetRow
from tests.browser.conftest import Served, live
from tests.unit.planner.models import MODELS
from tests.unit.profiles.drafts import OURS, config

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]

INSIDE = "kv-transfer-config.kv_connector_extra_config"


async def typed(page: Page) -> dict[str, object]:
    found: dict[str, object] = json.loads(await page.input_value("#kv_transfer_config"))
    return found


async def test_fields_and_json_stay_in_step(page: Page) -> None:
    """What is typed in a field stands in the JSON at once, and the other way round."""
    await page.goto("/profiles/agents")
    size = page.locator("#field-cpu_bytes_to_use")
    await expect(size).to_have_value("64 GiB")
    for text, stored in (("5 GiB", 5368709120), ("5 GB", 5000000000)):
        await size.fill(text)
        assert (await typed(page))["kv_connector_extra_config"]["cpu_bytes_to_use"] == stored  # type: ignore[index]
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
    assert (await typed(page))["kv_connector_extra_config"] == {
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
    commented = '{"cpu_bytes_to_use": "5368709120", # 5GB\n "eviction_policy": "lru"}'
    await page.fill("#kv_transfer_config", commented)
    await expect(finding.first).to_contain_text("Line 1, column 36: JSON has no comments")
    await finding.get_by_text("Remove the comment").click()
    await expect(page.locator("#findings")).not_to_contain_text("comments")
    quoted = config({"cpu_bytes_to_use": "5368709120", "spec_name": "TieringOffloadingSpec"})
    await page.fill("#kv_transfer_config", json.dumps(quoted))
    note = page.locator(f'#findings [data-path="{INSIDE}.cpu_bytes_to_use"].note')
    await expect(note).to_contain_text("is stored as the number 5368709120")
    await note.locator("[data-fix]").click()
    assert (await typed(page))["kv_connector_extra_config"]["cpu_bytes_to_use"] == 5368709120  # type: ignore[index]
    for size, words in ((10, "was 10 GiB meant?"), (10**15, "of memory")):
        await page.fill("#kv_transfer_config", json.dumps(config({**OURS, "cpu_bytes_to_use": size})))
        await expect(page.locator("#findings .warning").first).to_contain_text(words)


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
    await expect(page.locator("#versions")).not_to_contain_text("54138")
    await page.goto("/profiles/agents")
    await live(page)
    await page.click("[data-depth='3']")
    await expect(page.locator("#versions li[aria-current]")).to_contain_text("54138 tokens in VRAM")


async def test_the_plan_beside_the_editor_follows_what_is_typed(page: Page, served: Served, tmp_path: Path) -> None:
    """Slots and sessions for each reference length, this one marked; what cannot be read keeps the last plan."""
    await page.goto("/profiles/agents")
    plan = page.locator("#profile-plan")
    await expect(plan).to_contain_text("There is no /models/qwen here.")
    (tmp_path / "config.json").write_text(json.dumps(MODELS["Qwen3.6-27B"].config))
    async with served.deck.database.begin() as session:
        (await session.scalars(select(FleetRow))).one().model = str(tmp_path)
    await page.reload()
    marked = plan.locator("tr[aria-current]")
    await expect(marked).to_contain_text("65,536")
    await expect(plan.locator("canvas")).to_be_visible()
    await page.fill("#field-prefix-cache-retention-interval", "0")
    await page.fill("#field-mamba_state_slots_reference_tokens", "16384")
    await expect(marked).to_contain_text("16,384")
    await page.fill("#session_tokens", "16384")
    before = await marked.locator("td").all_inner_texts()
    await page.fill("#flags", "{")
    await expect(plan).to_have_class("stack is-old")
    assert await marked.locator("td").all_inner_texts() == before
    await page.fill("#flags", '{"prefix-cache-retention-interval": 0}')
    await page.select_option("#field-eviction_policy", "value")
    await expect(plan).to_contain_text("One takes")
    await page.fill("#field-cpu_bytes_to_use", "")
    await expect(plan).to_contain_text("Without a host tier")


async def test_a_connector_inside_another_is_mended_at_its_place(page: Page) -> None:
    """Its typo is told with the whole path, and one click mends it there."""
    await page.goto("/new-profile")
    inner = config({**OURS, "evict_policy": "lru"})
    await page.fill("#kv_transfer_config", json.dumps(config({"connectors": [inner]}, "MultiConnector")))
    path = f"{INSIDE}.connectors.0.kv_connector_extra_config.evict_policy"
    await page.locator(f'#findings [data-path="{path}"]').get_by_text("Rename it to eviction_policy").click()
    await expect(page.locator("#findings .error")).to_have_count(0)
    children = (await typed(page))["kv_connector_extra_config"]["connectors"]  # type: ignore[index]
    assert children[0]["kv_connector_extra_config"]["eviction_policy"] == "lru"
    await expect(page.locator("#host-memory td").first).to_have_text("OffloadingConnector")
