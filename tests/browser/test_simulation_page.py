"""The simulator's page in a real browser: its policy refuses nothing of it, axe finds nothing, it fits."""

from pathlib import Path
from typing import Literal

import pytest
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Browser, Page, expect

from fleetsim.report.page import page_of
from tests.browser.conftest import SCREENSHOTS, errors_of
from tests.fleetsim.results import sample_result

pytestmark = pytest.mark.browser


async def opened(browser: Browser, tmp_path: Path, theme: Literal["light", "dark"], width: int) -> Page:
    path = tmp_path / "page.html"
    path.write_text(page_of(sample_result()), encoding="utf-8")
    context = await browser.new_context(color_scheme=theme, viewport={"width": width, "height": 900})
    page = await context.new_page()
    errors_of(page)
    await page.goto(path.as_uri())
    return page


@pytest.mark.parametrize(("theme", "width"), [("light", 1440), ("dark", 1440), ("light", 360), ("dark", 768)])
async def test_the_page_is_accessible_and_fits(
    theme: Literal["light", "dark"], width: int, browser: Browser, tmp_path: Path
) -> None:
    page = await opened(browser, tmp_path, theme, width)
    for details in await page.locator("details").all():
        await details.locator("summary").click()
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    await page.screenshot(path=SCREENSHOTS / f"simulation-{theme}-{width}.png", full_page=True)
    assert await page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    results = await Axe().run(page)
    assert results.violations_count == 0, results.generate_report()
    assert errors_of(page) == []


async def test_values_under_the_pointer_are_read_out_without_a_script(
    browser: Browser, tmp_path: Path
) -> None:
    page = await opened(browser, tmp_path, "light", 1440)
    plot = page.locator("figure", has_text="Requests that wait for a replica").locator("svg.plot")
    value = plot.locator(".columns g").nth(3).locator("text").first
    await expect(value).to_be_hidden()
    await plot.locator(".columns rect").nth(3).hover()
    await expect(value).to_be_visible()
    await expect(value).to_contain_text("interactive")
