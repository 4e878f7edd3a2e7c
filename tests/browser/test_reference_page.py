"""The API reference's page: accessible in both themes, no wider than the screen, usable without a mouse."""

import pytest
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Browser, expect

from gateway.endpoints.reference import page_bytes
from gateway.openapi.site import Site
from tests.browser.conftest import SCREENSHOTS, errors_of
from tests.browser.test_look import THEMES, WIDTHS

pytestmark = pytest.mark.browser

# One of each kind of section: axe takes half a minute for all of them.
LOOKED_AT = [".bar", "nav", ".intro", "#limits", "#createMessage", "#resumeStream"]


async def test_it_is_accessible_and_fits(browser: Browser) -> None:
    page = await browser.new_page()
    errors = errors_of(page)
    await page.set_content(page_bytes(Site()).decode())
    for summary in await page.locator("#createMessage summary").all():
        await summary.click()
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    for theme in THEMES:
        await page.emulate_media(color_scheme=theme)
        for width in WIDTHS:
            await page.set_viewport_size({"width": width, "height": 900})
            await page.screenshot(path=SCREENSHOTS / f"reference-{theme}-{width}.png")
            overflow = await page.evaluate("document.documentElement.scrollWidth - innerWidth")
            assert overflow <= 0, f"at {width} px it is {overflow} px too wide"
        results = await Axe().run(page, context={"include": [[part] for part in LOOKED_AT]})
        assert results.violations_count == 0, f"{theme}: {results.generate_report()}"
    assert errors == []
    await page.close()


async def test_the_first_tab_skips_the_contents(browser: Browser) -> None:
    page = await browser.new_page()
    await page.set_content(page_bytes(Site()).decode())
    await page.keyboard.press("Tab")
    await expect(page.locator(".skip")).to_be_focused()
    await expect(page.locator(".skip")).to_be_in_viewport()
    await page.close()
