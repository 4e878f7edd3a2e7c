"""One server for everything: which part answers which path, and staff pages as operators under ASGI."""

import json
import os
import re
import secrets
import socket
import subprocess
import sys
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path

import httpx
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect
from websockets.typing import Origin

from devservices.valkey import ValkeyServer
from tenants.models import User
from tests.conftest import Database
from tests.factories import key_issue, tenant_create

ROOT = Path(__file__).parents[2]
SOCKETS = "gateway.websocket.server_protocol:BoundedWebSocketProtocol"


@pytest.fixture
def issued() -> list[str]:
    """API keys of the server's tenant."""
    return []


@pytest.fixture
def server(
    database: Database, valkey: ValkeyServer, admin_user: User, tmp_path: Path, issued: list[str]
) -> Iterator[httpx.Client]:
    """A client of a real server whose dispatcher is away."""
    issued.append(key_issue(tenant_create("acme")).plaintext)
    environment = {
        **os.environ,
        **database.environment(),
        "REDIS_URL": valkey.url,
        "SLUICE_SECRET_KEY": secrets.token_urlsafe(64),
        "SLUICE_WIRE_SECRET": secrets.token_hex(16),
        "SLUICE_DISPATCH": f"unix:{tmp_path}/away.sock",
        "SLUICE_SPOOL": str(tmp_path / "spool"),
        "SLUICE_WEIGHTS": str(tmp_path / "weights"),
    }
    with socket.create_server(("127.0.0.1", 0)) as listener, (tmp_path / "server.log").open("wb") as log:
        fd = listener.fileno()
        process = subprocess.Popen(
            [sys.executable, "-m", "uvicorn", "config.asgi:application", "--fd", str(fd), "--ws", SOCKETS],
            cwd=ROOT,
            env=environment,
            pass_fds=[fd],
            stdout=log,
            stderr=log,
        )
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        try:
            # The listener is already open: the first request simply waits for the server.
            with httpx.Client(base_url=url, timeout=60) as client:
                yield client
        finally:
            process.terminate()
            process.wait(30)


def _log_in(client: httpx.Client) -> None:
    page = client.get("/admin/login/")
    token = re.search(r'name="csrfmiddlewaretoken" value="([^"]+)"', page.text)
    assert token is not None
    form = {"username": "admin", "password": "admin-password", "csrfmiddlewaretoken": token[1]}
    assert client.post("/admin/login/?next=/admin/", data=form).status_code == HTTPStatus.FOUND


def _websocket_status(
    client: httpx.Client, origin: str, cookies: str = "", path: str = "/ws/console/fleet/"
) -> int:
    url = str(client.base_url.copy_with(scheme="ws", path=path))
    try:
        with connect(url, origin=Origin(origin), additional_headers={"Cookie": cookies}, proxy=None):
            return HTTPStatus.SWITCHING_PROTOCOLS
    except InvalidStatus as refused:
        return refused.response.status_code


def test_each_part_answers_its_paths(server: httpx.Client, tmp_path: Path, issued: list[str]) -> None:
    # the gateway
    assert server.get("/healthz").json() == {"status": "ok"}
    assert "error" in server.get("/v1/models").json()
    assert server.get("/v1/nothing").headers["content-type"] == "application/json"
    # Django, also for paths that only begin like the gateway's
    assert server.get("/").headers["location"] == "/console/"
    assert server.get("/v1x").headers["content-type"].startswith("text/html")
    css = server.get("/static/admin/css/base.css")
    assert css.headers["content-type"].startswith("text/css")
    assert len(css.content) == int(css.headers["content-length"]) > 1000
    unchanged = server.get(
        "/static/admin/css/base.css", headers={"If-Modified-Since": css.headers["last-modified"]}
    )
    assert (unchanged.status_code, unchanged.content) == (HTTPStatus.NOT_MODIFIED, b"")
    part = server.get("/static/admin/css/base.css", headers={"Range": "bytes=0-9"})
    assert (part.status_code, part.content) == (HTTPStatus.PARTIAL_CONTENT, css.content[:10])

    # the console's socket: strangers and other sites are refused, staff are let in
    own, foreign = str(server.base_url).rstrip("/"), "https://evil.example"
    assert _websocket_status(server, own) == HTTPStatus.FORBIDDEN
    assert _websocket_status(server, own, path="/ws/nothing/") == HTTPStatus.FORBIDDEN
    _log_in(server)
    cookies = f"sessionid={server.cookies['sessionid']}"
    assert _websocket_status(server, foreign, cookies) == HTTPStatus.FORBIDDEN
    assert _websocket_status(server, own, cookies) == HTTPStatus.SWITCHING_PROTOCOLS

    # the API's socket: sessions do not count there, keys do; what a page says of its origin is judged
    assert _websocket_status(server, own, cookies, "/v1/stream") == HTTPStatus.UNAUTHORIZED
    assert _websocket_status(server, foreign, cookies, "/v1/stream") == HTTPStatus.FORBIDDEN
    assert _websocket_status(server, own, cookies, "/v1/streams") == HTTPStatus.FORBIDDEN
    url = str(server.base_url.copy_with(scheme="ws", path="/v1/stream"))
    with connect(url, additional_headers={"Authorization": f"Bearer {issued[0]}"}, proxy=None) as socket:
        socket.send('{"type":"request.create","id":"a","body":{"model":"none","messages":[]}}')
        refused = json.loads(socket.recv(timeout=10))
    assert (refused["id"], refused["status"]) == ("a", HTTPStatus.SERVICE_UNAVAILABLE)

    # staff pages run as the operators' role also through the server's threads
    page = server.get("/admin/tenants/tenant/")
    assert page.status_code == HTTPStatus.OK
    assert "acme" in page.text

    log = (tmp_path / "server.log").read_text()
    assert "Warning" not in log
    assert "No route found" not in log
