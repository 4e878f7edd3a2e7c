"""Every page in both themes and three widths: axe finds nothing, nothing overflows, screenshots are kept."""

import asyncio
import json
from collections.abc import AsyncIterator
from math import sin
from typing import Literal

import pytest
import redis.asyncio
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Browser, Page, expect

from devservices.valkey import ValkeyServer
from modelsvc.controller.publisher import FleetPublisher
from modelsvc.fleet_contracts import FLEET_HISTORY_KEY, HISTORY_POINTS
from tests.browser.conftest import SCREENSHOTS, Site, errors_of, log_in, now_ms
from tests.browser.fleet import controller, fleet, worker

pytestmark = pytest.mark.browser

WIDTHS = (1440, 768, 360)
PAGES = {"fleet": "/console/", "components": "/console/components/"}
THEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")


async def publish_until_cancelled(publisher: FleetPublisher) -> None:
    workers = [
        worker(0),
        worker(1, free_blocks=40, running=31, batch_rows=31, tokens_per_s=301.0, step_ms=96.0),
        worker(2, state="suspect", age_ms=910),
        worker(3, model="smollm2-360m-instruct", digest="41d2aa60" + "0" * 56, free_blocks=140),
    ]
    while True:
        publisher.offer(fleet(workers, at_ms=now_ms()))
        await asyncio.sleep(0.5)


@pytest.fixture
async def busy_fleet(site: Site, valkey: ValkeyServer) -> AsyncIterator[None]:
    """Four replicas, and five minutes of history."""
    async with redis.asyncio.Redis.from_url(valkey.url) as client:
        points = []
        for age in range(HISTORY_POINTS):
            load = 1 + sin(age / 70)
            points.append(
                {
                    "at_ms": now_ms() - 500 * age,
                    "tokens_per_s": 620 + 200 * load,
                    "running": round(30 + 12 * load),
                    "queued": {"interactive": round(4 * load), "batch": round(20 + 6 * load)},
                }
            )
        await client.rpush(FLEET_HISTORY_KEY, *map(json.dumps, points))
    async with controller(valkey.url) as publisher:
        publishing = asyncio.create_task(publish_until_cancelled(publisher))
        yield
        publishing.cancel()


async def look(page: Page, name: str, theme: str) -> None:
    """Screenshots at each width, then axe at the widest and the narrowest."""
    for width in WIDTHS:
        await page.set_viewport_size({"width": width, "height": 900})
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        await page.screenshot(path=SCREENSHOTS / f"{name}-{theme}-{width}.png", full_page=True)
        overflow = await page.evaluate("document.documentElement.scrollWidth - innerWidth")
        assert overflow <= 0, f"{name} at {width} px is {overflow} px too wide"
        if width != 768:
            results = await Axe().run(page)
            assert results.violations_count == 0, f"{name} {theme} {width}: {results.generate_report()}"


@pytest.mark.parametrize("theme", THEMES)
async def test_pages_are_accessible_and_fit(
    theme: Literal["light", "dark"], browser: Browser, site: Site, busy_fleet: None
) -> None:
    context = await browser.new_context(base_url=site.url, color_scheme=theme, reduced_motion="reduce")
    page = await context.new_page()
    errors = errors_of(page)
    await page.goto("/console/login/")
    await look(page, "login", theme)
    await log_in(page, password="wrong")
    await expect(page.get_by_role("alert")).to_be_visible()
    await look(page, "login-refused", theme)
    await log_in(page)
    for name, path in PAGES.items():
        await page.goto(path)
        if name == "fleet":
            await expect(page.locator("[data-connection-text]")).to_have_text("Live")
            await expect(page.locator('[data-chart="rate"] [data-chart-value]')).to_have_text("746")
        await look(page, name, theme)
    await page.get_by_role("button", name="Menu").click()
    await expect(page.get_by_role("link", name="Fleet now")).to_be_visible()
    await page.screenshot(path=SCREENSHOTS / f"menu-{theme}-360.png")
    await page.set_viewport_size({"width": 1440, "height": 900})
    await page.goto("/admin/")
    await expect(page).to_have_title("Site administration | Sluice")
    await page.screenshot(path=SCREENSHOTS / f"admin-{theme}-1440.png")
    assert errors == []


@pytest.mark.parametrize("theme", THEMES)
async def test_an_empty_fleet_is_accessible_too(
    theme: Literal["light", "dark"], browser: Browser, site: Site, valkey: ValkeyServer
) -> None:
    context = await browser.new_context(base_url=site.url, color_scheme=theme)
    page = await context.new_page()
    await log_in(page)
    await expect(page.locator("[data-connection-text]")).to_have_text("Connected, waiting for data")
    await look(page, "fleet-unpublished", theme)
    async with controller(valkey.url) as publisher:
        publisher.offer(fleet([], at_ms=now_ms()))
        await expect(page.get_by_text("No replica is connected")).to_be_visible()
        await look(page, "fleet-empty", theme)
