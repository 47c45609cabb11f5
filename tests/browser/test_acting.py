"""Pages that do something: engines, profiles, webhooks."""

from __future__ import annotations

import pytest
from playwright.async_api import Page, expect

from app.supervisor.states import EngineState
from tests.browser.conftest import Served, live

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]


async def test_restart_asks_for_the_name_and_is_followed(page: Page, served: Served) -> None:
    """What will happen is said first; then the page shows it happening, without a reload."""
    await page.goto("/engines/main-1")
    await live(page)
    await page.click("#do-restart")
    dialog = page.locator("dialog[open]")
    await expect(dialog).to_contain_text("those in host memory stay for its next start")
    submit = dialog.locator("[type=submit]")
    await expect(submit).to_be_disabled()
    await dialog.locator("[data-confirm-name]").fill("main-2")
    await expect(submit).to_be_disabled()
    await dialog.locator("[data-confirm-name]").fill("main-1")
    served.deck.engines.hold_at(EngineState.STARTING)
    await submit.click()
    state = page.locator("#engine-state .now")
    await expect(state).to_contain_text("starting")
    await expect(page.locator("#engine-state progress")).to_be_visible()
    served.deck.engines.go_on()
    await expect(state).to_contain_text("ready")
    await expect(page.locator("#engine-moves li").first).to_contain_text("ready")


async def test_escape_calls_it_off(page: Page, served: Served) -> None:
    """Nothing is sent, and the name is asked for again."""
    await page.goto("/engines/main-1")
    await page.click("#do-stop")
    await page.fill("dialog[open] [data-confirm-name]", "main-1")
    await page.keyboard.press("Escape")
    await expect(page.locator("dialog[open]")).to_have_count(0)
    assert served.deck.engines.status("main-1").serves
    await page.click("#do-stop")
    await expect(page.locator("dialog[open] [data-confirm-name]")).to_have_value("")


async def test_buttons_that_make_no_sense_are_off(page: Page) -> None:
    """A running engine cannot be started; once drained it can be given requests again."""
    await page.goto("/engines/main-1")
    await live(page)
    await expect(page.locator("#do-start")).to_be_disabled()
    await page.click("#do-drain")
    await page.click("dialog[open] [type=submit]")
    await expect(page.locator("#do-start")).to_have_text("Take requests again")
    await expect(page.locator("#do-start")).to_be_enabled()
    await expect(page.locator("#do-drain")).to_be_disabled()


async def test_an_action_is_sent_once(page: Page) -> None:
    """However often the button is pressed while the deck has not answered."""
    await page.goto("/engines/main-1")
    sent = []

    async def hold(route: object) -> None:
        sent.append(route)

    await page.route("**/api/v1/engines/main-1/drain", hold)
    await page.click("#do-drain")
    submit = page.locator("dialog[open] [type=submit]")
    await submit.dblclick()
    await submit.click(force=True)
    await page.wait_for_timeout(200)
    assert len(sent) == 1


async def test_log_is_text_and_follows(page: Page, served: Served) -> None:
    """Markup in a log line is shown, not run; new lines come by themselves; pausing holds them back."""
    await page.goto("/engines/main-1")
    lines = page.locator("[data-lines]")
    await expect(lines).to_contain_text("<script>alert('not run')</script> in a log line is text")
    served.deck.engines.write("a line that came later")
    await expect(lines).to_contain_text("a line that came later")
    await page.click("[data-pause]")
    served.deck.engines.write("while paused")
    await expect(page.locator(".log-foot [role=status]")).to_have_text("paused, 1 new lines")
    await expect(lines).not_to_contain_text("while paused")
    await page.click("[data-pause]")
    await expect(lines).to_contain_text("while paused")
    await page.fill("[name=search]", "KV cache size")
    await expect(lines.locator("li")).to_have_count(1)
    await expect(lines.locator("mark")).to_have_text("KV cache size")


async def test_bad_json_is_told_at_the_field_and_nothing_is_lost(page: Page) -> None:
    """Line and column under the field; the text stays as typed, also after a save that was refused."""
    await page.goto("/profiles/agents")
    broken = '{"max-model-len": 32768,}'
    await page.fill("#flags", broken)
    finding = page.locator("#findings .finding.error")
    await expect(finding).to_contain_text("Line 1, column 25")
    await expect(page.locator("#flags")).to_have_attribute("aria-invalid", "true")
    await page.fill("#comment", "A try.")
    await page.click("#editor [type=submit]")
    await expect(page.locator("#editor .form-answer")).to_have_text("Not saved: correct what is marked above.")
    await expect(page.locator("#flags")).to_have_value(broken)
    await expect(page.locator("#comment")).to_have_value("A try.")
    await finding.locator("[data-goto]").click()
    assert await page.evaluate("document.getElementById('flags').selectionStart") == 24


async def test_nothing_typed_is_lost_when_the_deck_is_away(page: Page, served: Served) -> None:
    """A save without an answer keeps the text and says that it can be tried again."""
    await page.goto("/profiles/agents")
    await page.fill("#flags", '{"max-model-len": 4096}')
    await page.route("**/api/v1/profiles/**", lambda route: route.abort())
    await page.click("#editor [type=submit]")
    await expect(page.locator("#editor .form-answer").last).to_contain_text("The deck does not answer")
    await expect(page.locator("#flags")).to_have_value('{"max-model-len": 4096}')
    served.complaints.clear()  # the browser notes the refused request


async def test_saved_version_is_compared_applied_and_followed(page: Page, served: Served) -> None:
    """Save, see what changes, apply, and watch the engines restart, all without a reload after the save."""
    await page.goto("/profiles/agents")
    await page.fill("#flags", '{"max-model-len": 4096}')
    await page.click("text=Save as version 4")
    await page.wait_for_url("**/profiles/agents?version=4#apply")
    await live(page)
    await page.click("#apply-to-main")
    dialog = page.locator("dialog[open]")
    await expect(dialog.locator("table")).to_contain_text("max-model-len")
    await expect(dialog.locator(".preview-engines li")).to_have_count(2)
    await dialog.get_by_label("In place").check()
    await expect(dialog).to_contain_text("Requests wait at the door")
    await expect(dialog.get_by_label("In place")).to_be_focused()
    await dialog.locator("text=Roll out version 4 to main (2 engines)").click()
    rollout = page.locator("#rollouts article").first
    await expect(rollout).to_contain_text("running")
    await expect(rollout).to_contain_text("done", timeout=15_000)
    await expect(page.locator("#apply")).to_contain_text("Runs this version.")
    await expect(page.locator("#versions li", has=page.locator("#version-4"))).to_contain_text("main-1, main-2")


async def test_comparison_shows_only_what_differs(page: Page) -> None:
    """Field by field, before and after."""
    await page.goto("/profiles/agents")
    await page.click("#compare-2")
    rows = page.locator("#compare tbody tr")
    await expect(rows).to_have_count(1)
    await expect(rows).to_contain_text("mamba_state_slots_reference_tokens")
    await expect(rows.locator("del")).to_have_text("262144")
    await expect(rows.locator("ins")).to_have_text("65536")


async def test_webhook_is_added_changed_tested_and_removed(page: Page) -> None:
    """An error stands at its field; a failed test says why; removing asks first."""
    await page.goto("/alerts")
    await live(page)
    await page.click("#add-webhook")
    await page.fill("#webhook-name", "ops room")
    await page.fill("#webhook-url", "ftp://example.org")
    await page.click("dialog[open] [type=submit]")
    await expect(page.locator("#webhook-url-error")).to_contain_text("http")
    await expect(page.locator("#webhook-name")).to_have_value("ops room")
    await page.fill("#webhook-url", "http://127.0.0.1:9/hook")
    await page.click("dialog[open] [type=submit]")
    row = page.locator("#webhooks tr", has_text="ops room")
    await expect(row).to_be_visible()
    await row.locator("text=Send test").click()
    await expect(row.locator(".form-answer")).to_contain_text("Failed:")
    await expect(page.locator("#deliveries")).to_contain_text("failed")
    await row.locator("text=Change").click()
    await page.fill("#webhook-name", "night watch")
    await page.click("dialog[open] [type=submit]")
    row = page.locator("#webhooks tr", has_text="night watch")
    await row.locator("text=Remove").click()
    await expect(page.locator("dialog[open]")).to_contain_text("Remove night watch?")
    await page.click("dialog[open] [type=submit]")
    await expect(row).to_have_count(0)


async def test_thresholds_are_shown_in_percent_and_saved(page: Page, served: Served) -> None:
    """2 % on the page is 0.02 in the rule; nonsense is told at its field."""
    await page.goto("/alerts")
    await page.click("#edit-rule-1")
    share = page.locator("#rule-1-host_share_below")
    await expect(share).to_have_value("2")
    await share.fill("lots")
    await page.click("dialog[open] [type=submit]")
    await expect(page.locator("#rule-1-host_share_below-error")).to_contain_text("must be a number")
    await share.fill("3.5")
    await page.click("dialog[open] [type=submit]")
    await expect(page.locator("dialog[open]")).to_have_count(0)
    rule, _ = await served.deck.alerts.rules()
    assert rule.parameters["host_share_below"] == 0.035
