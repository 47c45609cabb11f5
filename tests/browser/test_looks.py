"""What holds on every page: no sideways scroll, both themes, two languages, order of headings, labels."""

from __future__ import annotations

import itertools

import pytest
from playwright.async_api import Page, expect

from tests.browser.conftest import Served, drawn

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]

ADDRESSES = (
    "/",
    "/engines/main-1",
    "/fleets",
    "/requests",
    "/profiles",
    "/profiles/agents?version=2&compare=3",
    "/new-profile",
    "/planner",
    "/alerts",
)

CONTRAST = """() => {
  const parse = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const channel = (value) => (value /= 255) <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
  const luminance = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
  const backgroundOf = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const colour = parse(getComputedStyle(at).backgroundColor);
      if (colour.length === 3 || colour[3] === 1) return colour;
    }
    return [255, 255, 255];
  };
  const poor = [];
  for (const element of document.querySelectorAll("body *")) {
    const hasText = [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
    const isOff = element.closest(":disabled, [aria-disabled=true], .visually-hidden, script, option");
    if (!hasText || isOff || !element.checkVisibility({ opacityProperty: true })) continue;
    const [a, b] = [luminance(parse(getComputedStyle(element).color)), luminance(backgroundOf(element))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    const text = element.textContent.trim().slice(0, 30);
    if (ratio < 4.5) poor.push(`${element.tagName}.${element.className} ${ratio.toFixed(2)} ${text}`);
  }
  return poor;
}"""

UNLABELLED = """() => [...document.querySelectorAll("input, select, textarea, button, a")]
  .filter((element) => element.type !== "hidden" && !element.labels?.length)
  .filter((element) => !element.getAttribute("aria-label") && !element.textContent.trim())
  .map((element) => element.outerHTML)"""

HEADINGS = """() => [...document.querySelectorAll("main h1, main h2, main h3")]
  .filter((element) => !element.closest("dialog")).map((element) => Number(element.tagName[1]))"""


@pytest.mark.parametrize("viewport", [(390, 844)])
@pytest.mark.parametrize("scenario", ["pressed"])
async def test_nothing_scrolls_sideways_on_a_phone(page: Page, viewport: tuple[int, int], scenario: str) -> None:
    """Wide tables scroll inside their own box; the bar is at the bottom."""
    for address in ADDRESSES:
        await page.goto(address)
        if address == "/":
            await drawn(page)
        assert await page.evaluate("document.documentElement.scrollWidth") <= 390, address
        bar = await page.locator(".rail").bounding_box()
        assert bar is not None
        assert bar["y"] > 700


@pytest.mark.parametrize("scenario", ["pressed"])
@pytest.mark.parametrize("theme", ["light", "dark"])
async def test_text_is_readable_in_both_themes(page: Page, scenario: str, theme: str) -> None:
    """Contrast AA for every text of every page."""
    await page.emulate_media(color_scheme=theme, reduced_motion="reduce")  # type: ignore[arg-type]
    for address in ADDRESSES:
        await page.goto(address)
        if address == "/":
            await drawn(page)
        assert await page.evaluate(CONTRAST) == [], address


async def test_everything_that_can_be_used_has_a_name(page: Page) -> None:
    """Fields have labels, buttons and links have words, headings come in order."""
    for address in ADDRESSES:
        await page.goto(address)
        assert await page.evaluate(UNLABELLED) == [], address
        levels = await page.evaluate(HEADINGS)
        assert levels[0] == 1, address
        assert all(after - before <= 1 for before, after in itertools.pairwise(levels)), address
        identifiers = await page.evaluate("[...document.querySelectorAll('[id]')].map((element) => element.id)")
        assert len(identifiers) == len(set(identifiers)), address


async def test_keyboard_reaches_the_content_at_once(page: Page) -> None:
    """The first Tab offers to skip the navigation; focus is visible."""
    await page.goto("/alerts")
    await page.keyboard.press("Tab")
    await expect(page.locator(".skip")).to_be_focused()
    assert await page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none"
    await page.keyboard.press("Enter")
    await expect(page.locator("main")).to_be_focused()


async def test_language_and_theme_are_switched_and_kept(page: Page) -> None:
    """On the same page, for later visits too."""
    await page.goto("/alerts?x=1")
    await page.click(".rail summary")
    await page.select_option("#language", "zh")
    await expect(page.locator("h1")).to_have_text("告警")
    assert page.url.endswith("/alerts?x=1")
    await page.click(".rail summary")
    await page.select_option("#theme", "dark")
    await expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    await page.goto("/")
    await drawn(page)
    await expect(page.locator("[data-chart=slots] .legend")).to_contain_text("状态槽位占用")


async def test_meanings_stay_apart_for_colour_blind_readers(page: Page, served: Served) -> None:
    """Neighbours in a chart differ under each kind of colour blindness, in both themes."""
    pairs = [
        ("vram", "host"),
        ("host", "avoidable"),
        ("avoidable", "recomputed"),
        ("token-slots", "state-slots"),
        ("vram", "recomputed"),
    ]
    script = """(names) => names.map((name) => {
        const probe = document.createElement("span");
        probe.style.color = `var(--${name})`;
        document.body.append(probe);
        const found = getComputedStyle(probe).color.match(/[\\d.]+/g).map(Number);
        probe.remove();
        return found;
    })"""
    for theme in ("light", "dark"):
        await page.emulate_media(color_scheme=theme)  # type: ignore[arg-type]
        for pair in pairs:
            first, second = await page.evaluate(script, list(pair))
            for kind, matrix in DEFICIENCIES.items():
                assert distance(seen(first, matrix), seen(second, matrix)) > 40, (theme, pair, kind)


#: What a dichromat sees, in linear light (Machado, Oliveira and Fernandes 2009, severity 1).
DEFICIENCIES = {
    "protanopia": ((0.152, 1.053, -0.205), (0.115, 0.786, 0.099), (-0.004, -0.048, 1.052)),
    "deuteranopia": ((0.367, 0.861, -0.228), (0.280, 0.673, 0.047), (-0.012, 0.043, 0.969)),
    "tritanopia": ((1.256, -0.077, -0.179), (-0.078, 0.931, 0.148), (0.005, 0.691, 0.304)),
}


def seen(colour: list[float], matrix: tuple[tuple[float, ...], ...]) -> list[float]:
    """`colour` (0-255) through other eyes."""
    linear = [(value / 255) ** 2.2 for value in colour[:3]]
    mixed = [sum(weight * value for weight, value in zip(row, linear, strict=True)) for row in matrix]
    return [255 * max(0.0, min(1.0, value)) ** (1 / 2.2) for value in mixed]


def distance(first: list[float], second: list[float]) -> float:
    """How far two colours are apart, weighted roughly as eyes do."""
    weights = (2, 4, 3)
    return sum(w * (a - b) ** 2 for w, a, b in zip(weights, first, second, strict=True)) ** 0.5 / 3
