"""The Django site around the pages: headers, paths, what happens without configuration."""

import logging
import os
import subprocess
import sys
from http import HTTPStatus
from pathlib import Path

import pytest
from django.contrib.auth.models import AnonymousUser
from django.http import HttpRequest, HttpResponse
from django.test import Client, RequestFactory

from config import environment
from config.databases import database_settings
from config.log_format import OneLineFormatter
from config.middleware import OperatorScopeMiddleware
from tenants.models import User
from tenants.scoping import alias_current
from tests.conftest import Database

ROOT = Path(__file__).parents[2]


def _manage(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """A management command as a process of its own, with only these variables set."""
    return subprocess.run(
        [sys.executable, "manage.py", *arguments],
        cwd=ROOT,
        env={"PATH": os.environ["PATH"], **variables},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def _python(code: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={"PATH": os.environ["PATH"], **variables},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_headers_of_our_pages_forbid_inline_script(database: Database) -> None:
    response = Client().get("/console/", follow=True)
    policy = response.headers["Content-Security-Policy"]
    assert "unsafe" not in policy
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert response.headers["X-Frame-Options"] == "DENY"
    assert response.headers["X-Content-Type-Options"] == "nosniff"
    assert response.headers["Referrer-Policy"] == "same-origin"


def test_only_the_admin_has_the_looser_policy(database: Database) -> None:
    admin, missing = Client().get("/admin/login/"), Client().get("/administration")
    assert "'unsafe-eval'" in admin.headers["Content-Security-Policy"]
    assert "default-src 'none'" in admin.headers["Content-Security-Policy"]
    assert missing.status_code == HTTPStatus.NOT_FOUND
    assert "unsafe" not in missing.headers["Content-Security-Policy"]


@pytest.mark.parametrize(
    ("path", "user", "alias"),
    [
        ("/admin/", User(is_staff=True), "operator"),
        ("/console/", User(is_staff=True), "operator"),
        ("/console/", User(is_staff=False), "default"),
        ("/console/", AnonymousUser(), "default"),
        ("/", User(is_staff=True), "default"),
        ("/administration", User(is_staff=True), "default"),
    ],
)
def test_only_staff_on_staff_pages_are_operators(path: str, user: User | AnonymousUser, alias: str) -> None:
    seen = []

    def view(request: HttpRequest) -> HttpResponse:
        seen.append(alias_current())
        return HttpResponse()

    request = RequestFactory().get(path)
    request.user = user
    OperatorScopeMiddleware(view)(request)
    assert seen == [alias]
    assert alias_current() == "default"


def test_the_root_leads_to_the_console() -> None:
    assert Client().get("/").headers["Location"] == "/console/"


def test_a_foreign_host_name_is_refused() -> None:
    assert Client(HTTP_HOST="evil.example").get("/").status_code == HTTPStatus.BAD_REQUEST


def test_commands_that_need_no_database_work_without_any_setting() -> None:
    assert _manage("check").returncode == 0
    changes = _manage("makemigrations", "--check", "--dry-run")
    assert (changes.returncode, changes.stdout.strip()) == (0, "No changes detected")


def test_a_command_that_needs_one_says_what_is_missing(tmp_path: Path) -> None:
    """And finds no server that happens to run on this machine."""
    result = _manage("key", "list", "--tenant", "acme", SLUICE_STATE=str(tmp_path))
    assert result.returncode == 1
    assert result.stderr.startswith(f"no running stack found under {tmp_path}")
    assert "SLUICE_DB_" in result.stderr


def test_serving_without_secrets_fails_closed() -> None:
    complete = {
        "SLUICE_SECRET_KEY": "x" * 50,
        "SLUICE_DB_APP": "postgresql://a@127.0.0.1:1/none",
        "SLUICE_DB_OPERATOR": "postgresql://a@127.0.0.1:1/none",
        "REDIS_URL": "redis://127.0.0.1:1",
        "SLUICE_KEY_PEPPER": "00" * 32,
        "SLUICE_MASTER_KEY": "00" * 32,
    }
    probe = "from config.environment import serving_require; serving_require()"
    assert _python(probe, **complete).returncode == 0
    for name in complete:
        result = _python(probe, **{key: value for key, value in complete.items() if key != name})
        assert result.returncode == 1
        assert f"{name} is not set" in result.stderr
    for module in ("config.asgi", "config.celery"):
        code = (
            f"import {module}" if module == "config.asgi" else "import config.celery as c; c.serving_check()"
        )
        assert "SLUICE_SECRET_KEY is not set" in _python(code).stderr


def test_database_urls_are_taken_apart() -> None:
    settings = database_settings(
        "postgresql://us%40er:p%2Fw@db.example:6432/name?sslmode=require", variable="V"
    )
    assert (settings["USER"], settings["PASSWORD"]) == ("us@er", "p/w")
    assert (settings["HOST"], settings["PORT"], settings["NAME"]) == ("db.example", "6432", "name")
    assert settings["OPTIONS"]["sslmode"] == "require"
    assert settings["CONN_MAX_AGE"] == 0
    socket = database_settings("postgresql:///name?host=/run/pg&port=5433", variable="V", pooled=False)
    assert (socket["HOST"], socket["PORT"], socket["OPTIONS"]) == ("/run/pg", "5433", {})
    with pytest.raises(ValueError, match="V must be"):
        database_settings("mysql://x/y", variable="V")


@pytest.mark.parametrize(("text", "expected"), [("1", True), ("on", True), ("0", False), ("", False)])
def test_flags(monkeypatch: pytest.MonkeyPatch, text: str, expected: bool) -> None:
    monkeypatch.setenv("SLUICE_DEBUG", text)
    assert environment.debug() is expected


def test_a_flag_that_is_neither_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLUICE_DEBUG", "flase")
    with pytest.raises(ValueError, match="SLUICE_DEBUG"):
        environment.debug()


def test_a_role_prefix_cannot_carry_sql(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLUICE_DB_ROLE_PREFIX", "x; DROP")
    with pytest.raises(ValueError, match="PREFIX"):
        environment.role_prefix()


def test_a_log_record_is_one_line() -> None:
    record = logging.LogRecord("n", logging.INFO, "p", 1, "user %s", ("a\nINFO forged",), None)
    assert OneLineFormatter("%(message)s").format(record) == "user a\\nINFO forged"
