"""A real server and a real Chromium for the console's tests."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from socket import socket

import psycopg
import pytest
import redis
from playwright.async_api import Browser, BrowserContext, Page, async_playwright
from pytest_django.plugin import DjangoDbBlocker

from devservices.postgres import PostgresServer
from devservices.valkey import ValkeyServer
from tenants.models import User
from tenants.scoping import operator_scope
from tests.conftest import TEMPLATE, _aliases_point, _with_database, aliases_close

ROOT = Path(__file__).resolve().parents[2]
SCREENSHOTS = ROOT / "artifacts" / "screenshots"
CHROMIUM = shutil.which("chromium")
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
ADMIN_PASSWORD = "admin-password"


@dataclass
class Site:
    """The web process (`config.asgi` under uvicorn), which may be stopped and started again."""

    environment: Mapping[str, str]
    port: int
    log: Path
    process: subprocess.Popen[str] | None = field(default=None)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        command = [sys.executable, "-m", "uvicorn", "config.asgi:application", "--host", "127.0.0.1"]
        self.process = subprocess.Popen(
            [*command, "--port", str(self.port), "--lifespan", "off", "--timeout-graceful-shutdown", "1"],
            cwd=ROOT,
            env={**self.environment},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stderr is not None
        said = []
        for line in self.process.stderr:
            said.append(line)
            if "Uvicorn running on" in line:
                return
        raise AssertionError("the web process did not start:\n" + "".join(said))

    def stop(self) -> None:
        if self.process is None:
            return
        self.process.kill()
        _, said = self.process.communicate()
        with self.log.open("a") as log:
            log.write(said)
        self.process = None


@pytest.fixture
def clean_valkey(valkey: ValkeyServer) -> ValkeyServer:
    """Nothing published, nobody throttled, no old group member."""
    with redis.Redis.from_url(valkey.url) as client:
        client.flushall()
    return valkey


@pytest.fixture(scope="session")
def site_database(
    postgres: PostgresServer, database_template: Mapping[str, str], django_db_blocker: DjangoDbBlocker
) -> dict[str, str]:
    """A database that the browser tests of this session share, because they share the web process."""
    name = "browser_tests"
    with psycopg.connect(postgres.url, autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {name} TEMPLATE {TEMPLATE}")
    urls = {role: _with_database(url, name) for role, url in database_template.items()}
    with django_db_blocker.unblock():
        _aliases_point(urls)
        with operator_scope():
            User.objects.create_superuser("admin", "admin@example.com", ADMIN_PASSWORD)
        aliases_close()
    return {f"SLUICE_DB_{role.upper()}": url for role, url in urls.items() if role != "owner"}


@pytest.fixture(scope="session")
def site_process(
    site_database: dict[str, str], valkey: ValkeyServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Site]:
    tmp_path = tmp_path_factory.mktemp("site")
    with socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'platform'}",
        "DJANGO_SETTINGS_MODULE": "config.settings",
        **site_database,
        "REDIS_URL": valkey.url,
        "SLUICE_SECRET_KEY": "a key for the tests of this session alone, sixty characters.",
        "SLUICE_KEY_PEPPER": os.environ["SLUICE_KEY_PEPPER"],
        "SLUICE_MASTER_KEY": os.environ["SLUICE_MASTER_KEY"],
        "SLUICE_STATE": str(tmp_path),
        "SLUICE_SPOOL": str(tmp_path / "spool"),
        "SLUICE_DISPATCH": f"unix:{tmp_path}/no.sock",
        "SLUICE_WIRE_SECRET": "wire-secret",
    }
    server = Site(environment, port, tmp_path / "site.log")
    yield server
    server.stop()


@pytest.fixture
def site(site_process: Site, clean_valkey: ValkeyServer) -> Site:
    """The running web process, whatever the test before did to it."""
    if site_process.process is None:
        site_process.start()
    return site_process


@pytest.fixture
async def browser() -> AsyncIterator[Browser]:
    if CHROMIUM is None:
        if os.environ.get("CI"):
            pytest.fail("no Chromium: the gate must install it")
        pytest.skip("no Chromium on this machine")
    async with async_playwright() as playwright:
        chromium = await playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield chromium
        await chromium.close()


@pytest.fixture
async def context(browser: Browser, site: Site) -> BrowserContext:
    """A viewer who is not logged in."""
    return await browser.new_context(base_url=site.url, viewport={"width": 1440, "height": 900})


@pytest.fixture
async def page(context: BrowserContext) -> AsyncIterator[Page]:
    """An operator's page. What the browser calls an error fails the test, unless it emptied the list."""
    page = await context.new_page()
    errors = errors_of(page)
    await log_in(page)
    yield page
    assert errors == []


_ERRORS: dict[Page, list[str]] = {}


def errors_of(page: Page) -> list[str]:
    """What this page's console and scripts have complained about so far; the same list at each call."""
    if page not in _ERRORS:
        errors = _ERRORS[page] = []
        page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: errors.append(str(error)))
    return _ERRORS[page]


async def log_in(page: Page, name: str = "admin", password: str = ADMIN_PASSWORD) -> None:
    await page.goto("/console/login/")
    await page.get_by_label("Username").fill(name)
    await page.get_by_label("Password").fill(password)
    await page.get_by_role("button", name="Log in").click()


def now_ms() -> int:
    return time.time_ns() // 1_000_000
