"""The API reference's page: accessible in both themes, no wider than the screen, usable without a mouse."""

from typing import Literal

import pytest
from playwright.async_api import Browser, expect

from gateway.reference import page_bytes
from tests.browser.conftest import errors_of
from tests.browser.test_look import THEMES, look

pytestmark = pytest.mark.browser


@pytest.mark.parametrize("theme", THEMES)
async def test_it_is_accessible_and_fits(browser: Browser, theme: Literal["light", "dark"]) -> None:
    context = await browser.new_context(color_scheme=theme)
    page = await context.new_page()
    errors = errors_of(page)
    await page.set_content(page_bytes().decode())
    await look(page, "reference", theme)
    for summary in await page.locator("#createChatCompletion summary").all():
        await summary.click()
    await look(page, "reference-open", theme)
    assert errors == []
    await context.close()


async def test_the_first_tab_skips_the_contents(browser: Browser) -> None:
    context = await browser.new_context()
    page = await context.new_page()
    await page.set_content(page_bytes().decode())
    await page.keyboard.press("Tab")
    await expect(page.locator(".skip")).to_be_focused()
    await expect(page.locator(".skip")).to_be_in_viewport()
    await context.close()
