"""The page "Fleet now" in a real browser, over the real web process, channel layer and Valkey."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from playwright.async_api import BrowserContext, Locator, Page, expect

from devservices.valkey import ValkeyServer
from gpuworker.wire.messages import FleetState
from modelsvc.controller.publisher import FleetPublisher, state_document
from tests.browser.conftest import Site, errors_of, log_in, now_ms
from tests.browser.fleet import controller, fleet, worker
from tests.browser.test_fleet_figures import page_of

pytestmark = pytest.mark.browser

LIVE_MS = 1_000  # a figure is on the page at most this long after it was published


@pytest.fixture
async def publisher(site: Site, valkey: ValkeyServer) -> AsyncIterator[FleetPublisher]:
    async with controller(valkey.url) as publisher:
        yield publisher


async def keep_publishing(publisher: FleetPublisher, workers: int) -> None:
    """As a live controller does, until cancelled."""
    while True:
        publisher.offer(fleet([worker(number) for number in range(workers)], at_ms=now_ms()))
        await asyncio.sleep(0.25)


def value(page: Page, tile: str) -> Locator:
    return page.locator(f'[data-tile="{tile}"] [data-field="value"]')


def connection(page: Page) -> Locator:
    return page.locator("[data-connection-text]")


async def test_figures_change_within_a_second_and_rows_stay(page: Page, publisher: FleetPublisher) -> None:
    await expect(page.get_by_text("Waiting for the first state")).to_be_visible()
    await expect(connection(page)).to_have_text("Connected, waiting for data")

    publisher.offer(fleet([worker(2), worker(10)], at_ms=now_ms()))
    await expect(value(page, "ready")).to_have_text("2", timeout=LIVE_MS)
    await expect(connection(page)).to_have_text("Live")
    await expect(page.get_by_text("Waiting for the first state")).to_be_hidden()
    first = page.locator('[data-rows="replicas"] tr').first
    await expect(first).to_contain_text("worker-2")
    await first.evaluate("row => row.marked = true")

    publisher.offer(fleet([worker(2, running=40, free_blocks=0), worker(1)], at_ms=now_ms(), queued=0))
    await expect(value(page, "running")).to_have_text("52", timeout=LIVE_MS)
    await expect(value(page, "queued")).to_have_text("0")
    rows = page.locator('[data-rows="replicas"] tr')
    await expect(rows).to_have_count(2)
    await expect(rows.nth(0)).to_contain_text("worker-1")
    await expect(rows.nth(1)).to_contain_text("100 %")
    assert await rows.nth(1).evaluate("row => row.marked")  # the same element, so that focus would survive

    publisher.offer(fleet([], at_ms=now_ms()))
    await expect(page.get_by_text("No replica is connected")).to_be_visible(timeout=LIVE_MS)


async def test_names_from_the_fleet_never_become_markup(page: Page, publisher: FleetPublisher) -> None:
    name = '<img src=x onerror="window.broken=1">'
    publisher.offer(fleet([worker(0, id=name, model=name, state=name)], at_ms=now_ms()))
    row = page.locator('[data-rows="replicas"] tr')
    await expect(row.locator("th")).to_contain_text(name, timeout=LIVE_MS)
    assert await row.locator("img").count() == 0
    assert await page.evaluate("window.broken === undefined")


async def test_a_silent_controller_shows_as_stale(page: Page, publisher: FleetPublisher) -> None:
    publisher.offer(fleet([worker(0)], at_ms=now_ms()))
    await expect(connection(page)).to_have_text("Live")
    await expect(connection(page)).to_have_text("No update for 4.0 s", timeout=8_000)
    await expect(page.locator('[data-view="fleet"]')).to_contain_class("is-stale")
    await expect(page.locator("[data-updated]")).to_contain_text("ago")
    publisher.offer(fleet([worker(0)], at_ms=now_ms()))
    await expect(connection(page)).to_have_text("Live", timeout=LIVE_MS)
    await expect(page.locator('[data-view="fleet"]')).not_to_contain_class("is-stale")


async def test_a_browsers_wrong_clock_does_not_make_figures_stale(
    context: BrowserContext, publisher: FleetPublisher
) -> None:
    page = await context.new_page()
    await page.clock.install(time=(now_ms() + 3_600_000) / 1_000)
    await log_in(page)
    publisher.offer(fleet([worker(0)], at_ms=now_ms()))
    await expect(connection(page)).to_have_text("Live")


async def test_charts_go_on_when_the_dispatchers_clock_is_set_back(
    page: Page, publisher: FleetPublisher
) -> None:
    publisher.offer(fleet([worker(0, running=7)], at_ms=now_ms() + 3_600_000))
    await expect(value(page, "running")).to_have_text("7")
    publisher.offer(fleet([worker(0, running=9)], at_ms=now_ms()))
    await expect(value(page, "running")).to_have_text("9")
    chart = page.locator('[data-chart="running"]')
    await chart.get_by_role("button").click()
    await expect(chart.locator("td")).to_have_text(["9"])


async def test_the_page_comes_back_after_the_server_restarts(
    page: Page, site: Site, publisher: FleetPublisher
) -> None:
    publishing = asyncio.create_task(keep_publishing(publisher, workers=1))
    await expect(connection(page)).to_have_text("Live")
    await asyncio.to_thread(site.stop)
    await expect(connection(page)).to_contain_text("Reconnecting in")
    await expect(page.locator('[data-view="fleet"]')).to_contain_class("is-stale")
    await expect(page.get_by_role("button", name="Reconnect now")).to_be_visible()
    publishing.cancel()

    await asyncio.to_thread(site.start)
    publishing = asyncio.create_task(keep_publishing(publisher, workers=3))
    await expect(connection(page)).to_have_text("Live", timeout=25_000)
    await expect(value(page, "ready")).to_have_text("3")
    publishing.cancel()
    errors = errors_of(page)  # the failed tries are the browser's to report, and nothing else
    assert all("ERR_CONNECTION_" in error or "WebSocket" in error for error in errors), errors
    errors.clear()


async def test_a_viewer_who_logged_out_elsewhere_is_told(
    page: Page, context: BrowserContext, site: Site, publisher: FleetPublisher
) -> None:
    publisher.offer(fleet([worker(0)], at_ms=now_ms()))
    await expect(connection(page)).to_have_text("Live")
    other = await context.new_page()
    await other.goto("/console/")
    await other.get_by_role("button", name="Log out").click()
    await expect(other.get_by_role("heading", name="Log in")).to_be_visible()
    await asyncio.to_thread(site.stop)
    await asyncio.to_thread(site.start)
    await expect(connection(page)).to_have_text("Logged out", timeout=25_000)
    await expect(page.get_by_role("link", name="Log in again")).to_be_visible()
    errors_of(page).clear()


async def test_every_chart_has_a_table_reached_by_keyboard(page: Page, publisher: FleetPublisher) -> None:
    publisher.offer(fleet([worker(0)], at_ms=now_ms()))
    plot = page.locator('[data-chart="queued"] [data-chart-plot]')
    await expect(plot).to_have_accessible_name(
        "Queued requests, the last five minutes. Interactive now 3, lowest 3, highest 3; "
        "Batch now 21, lowest 21, highest 21."
    )
    toggle = page.get_by_role("button", name="Show queued requests as a table")
    await toggle.focus()
    await page.keyboard.press("Enter")
    await expect(toggle).to_have_attribute("aria-pressed", "true")
    table = page.get_by_role("region", name="Queued requests as a table")
    assert [cell.strip() for cell in await table.locator("td").all_inner_texts()] == ["3", "21"]
    await expect(plot).to_be_hidden()
    assert await page.get_by_role("button", name="as a table").count() == 3


async def test_the_theme_is_kept_and_shared_with_the_administration(page: Page) -> None:
    body, background = page.locator("body"), "body => getComputedStyle(body).backgroundColor"
    light = await body.evaluate(background)
    await page.get_by_role("button", name="Dark theme").click()
    dark = await body.evaluate(background)
    assert light != dark
    await page.reload()
    assert await body.evaluate(background) == dark
    await page.goto("/admin/")
    await expect(page.locator("html")).to_contain_class("dark")


async def test_without_javascript_the_figures_are_there(
    site: Site, page: Page, publisher: FleetPublisher
) -> None:
    publisher.offer(fleet([worker(0), worker(1)], at_ms=now_ms()))
    await expect(value(page, "ready")).to_have_text("2")
    assert page.context.browser is not None
    plain = await page.context.browser.new_context(base_url=site.url, java_script_enabled=False)
    snapshot = await plain.new_page()
    await log_in(snapshot)
    await expect(value(snapshot, "ready")).to_have_text("2")
    await expect(snapshot.get_by_text("This is a snapshot.")).to_be_visible()
    await expect(snapshot.get_by_role("button", name="Table")).to_have_count(0)


def _states() -> list[FleetState]:
    busy = {
        "running": 1_234,
        "waiting": 0,
        "pending_prefill_tokens": 98_765,
        "step_ms": 1_234.5,
        "preemptions_per_min": 0.4,
    }
    return [
        fleet([]),
        fleet([worker(10), worker(9, state="draining"), worker(1, state="suspect")], queued=0),
        fleet([worker(0, **busy, tokens_per_s=7.25, free_blocks=3, age_ms=61_000)], queued=12_000),
        fleet([worker(0, blocks=0, free_blocks=0, tokens_per_s=0.0, step_ms=0.5, digest="", state="odd")]),
    ]


async def test_first_paint_and_live_updates_say_the_same(page: Page) -> None:
    """`fleet.py` and `fleet_figures.js` are twins: each state in `_states` reads the same from both."""
    script = """async state => {
        const figures = await import("/static/js/fleet_figures.js");
        return [figures.tileFigures(state), figures.replicaRows(state), figures.queueRows(state),
                figures.gatewayRows(state)];
    }"""
    for state in _states():
        tiles, replicas, queues, gateways = await page.evaluate(script, state_document(state))
        painted = page_of(state)
        assert {key: (t["value"], t["unit"], t["note"]) for key, t in tiles.items()} == {
            t.key: (t.value, t.unit, t.note) for t in painted.tiles
        }
        for row, expected in zip(replicas, painted.replicas, strict=True):
            assert row["fields"] == {name: getattr(expected, name) for name in row["fields"]}
            assert (row["tones"]["state"], row["share"]) == (expected.tone, expected.kv_share)
            assert row["titles"] == {"digest": expected.digest_full, "kv_line": expected.kv_blocks}
        for rows, wanted in ((queues, painted.queues), (gateways, painted.gateways)):
            for row, expected_row in zip(rows, wanted, strict=True):
                assert row["fields"] == {name: getattr(expected_row, name) for name in row["fields"]}
