"""The console's pages as the server writes them: first paint, access, log-in. No browser."""

import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest
import redis
from django.conf import settings
from django.test import Client, override_settings

from console.throttle import login_admitted
from devservices.valkey import ValkeyServer
from gpuworker.wire.messages import FleetState
from modelsvc.controller.publisher import state_document
from modelsvc.fleet_contracts import FLEET_KEY
from tenants.models import User
from tenants.scoping import operator_scope
from tests.browser.conftest import ADMIN_PASSWORD, now_ms
from tests.browser.fleet import fleet, worker
from tests.conftest import Database

LOGIN = "/console/login/"


@pytest.fixture(autouse=True)
def quick_passwords() -> Iterator[None]:
    """Production's password hash takes a third of a second by design."""
    with override_settings(PASSWORD_HASHERS=["django.contrib.auth.hashers.MD5PasswordHasher"]):
        yield


@pytest.fixture
def operator(
    quick_passwords: None, database: Database, admin_user: User, clean_valkey: ValkeyServer
) -> Client:
    client = Client()
    client.force_login(admin_user)
    return client


@pytest.fixture
def tenant_user(database: Database) -> User:
    with operator_scope():
        return User.objects.create_user("member", "member@example.com", "member-password")


def publish(valkey: ValkeyServer, state: FleetState) -> None:
    with redis.Redis.from_url(valkey.url) as client:
        client.set(FLEET_KEY, msgspec.json.encode(state_document(state)))


def text_of(html: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", html))


# -- first paint ------------------------------------------------------------------------------------------


def test_first_paint_shows_the_published_state(operator: Client, valkey: ValkeyServer) -> None:
    publish(valkey, fleet([worker(0), worker(1, state="suspect")], at_ms=now_ms()))
    html = operator.get("/console/").content.decode()
    text = text_of(html)
    for part in ("Replicas ready 1 of 2", "worker-1 suspect", "18,204 submitted, 12 refused", "gateway-0"):
        assert part in text
    assert 'class="stack"' in html


def test_an_old_state_is_painted_as_stale(operator: Client, valkey: ValkeyServer) -> None:
    publish(valkey, fleet([worker(0)], at_ms=now_ms() - 10_000))
    assert 'class="stack is-stale"' in operator.get("/console/").content.decode()


def test_without_a_state_the_page_says_what_to_check(operator: Client) -> None:
    response = operator.get("/console/")
    assert "Waiting for the first state" in text_of(response.content.decode())


def test_without_valkey_the_page_says_so(operator: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDIS_URL", "redis://127.0.0.1:1/0")
    response = operator.get("/console/")
    assert response.status_code == 200
    assert "Valkey) cannot be reached" in response.content.decode()


def test_a_state_of_another_version_is_an_error_not_a_crash(operator: Client, valkey: ValkeyServer) -> None:
    with redis.Redis.from_url(valkey.url) as client:
        client.set(FLEET_KEY, b'{"seq": "one"}')
    assert "cannot be read" in operator.get("/console/").content.decode()


def test_names_from_the_fleet_are_escaped(operator: Client, valkey: ValkeyServer) -> None:
    publish(valkey, fleet([worker(0, id="<script>alert(1)</script>", model="a&b<i>")], at_ms=now_ms()))
    html = operator.get("/console/").content.decode()
    assert "<script>alert" not in html
    assert "a&amp;b&lt;i&gt;" in html


def test_pages_forbid_inline_script_and_caching(operator: Client) -> None:
    for path in ("/console/", "/console/components/", LOGIN):
        headers = operator.get(path).headers
        assert "script-src 'self'" in headers["Content-Security-Policy"]
        assert "unsafe-inline" not in headers["Content-Security-Policy"]
        assert "no-store" in headers["Cache-Control"]


# -- access -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/console/", "/console/components/"])
def test_only_staff_see_the_console(path: str, operator: Client, tenant_user: User) -> None:
    anonymous, member = Client(), Client()
    member.force_login(tenant_user)
    for client in (anonymous, member):
        response = client.get(path)
        assert (response.status_code, response.headers["Location"]) == (302, f"{LOGIN}?next={path}")
        assert client.get("/console/session/").json() == {"staff": False}
    assert operator.get(path).status_code == 200
    assert operator.get("/console/session/").json() == {"staff": True}


def test_a_member_is_told_which_account_is_logged_in(operator: Client, tenant_user: User) -> None:
    member = Client()
    member.force_login(tenant_user)
    assert "logged in as member" in text_of(member.get(LOGIN).content.decode())


def test_log_out_ends_the_session(operator: Client) -> None:
    assert operator.get("/console/logout/").status_code == 405
    assert operator.post("/console/logout/").headers["Location"] == LOGIN
    assert operator.get("/console/").status_code == 302


# -- log-in -----------------------------------------------------------------------------------------------


def attempt(
    client: Client, password: str, *, name: str = "admin", address: str = "10.0.0.1", to: str = ""
) -> int:
    data = {"username": name, "password": password, "next": to}
    response = client.post(LOGIN, data, REMOTE_ADDR=address)
    if response.status_code == 302:
        client.cookies.clear()
    return response.status_code


@pytest.mark.usefixtures("operator")
def test_log_in_leads_to_the_page_that_was_asked_for() -> None:
    def target(to: str) -> str:
        data = {"username": "admin", "password": ADMIN_PASSWORD, "next": to}
        return Client().post(LOGIN, data).headers["Location"]

    assert target("") == "/console/"
    assert target("/console/components/") == "/console/components/"
    assert target("https://elsewhere.example/") == "/console/"


@pytest.mark.usefixtures("operator")
def test_a_member_gets_the_same_answer_as_a_wrong_password(tenant_user: User) -> None:
    answers = [
        Client().post(LOGIN, {"username": name, "password": password})
        for name, password in (("member", "member-password"), ("member", "wrong"), ("nobody", "wrong"))
    ]
    said = [re.search(r'role="alert".*?</div>', answer.content.decode(), re.DOTALL) for answer in answers]
    assert {answer.status_code for answer in answers} == {200}
    assert len({match.group() for match in said if match}) == 1


@pytest.mark.usefixtures("operator")
def test_five_failures_pause_that_name_from_that_address() -> None:
    client = Client()
    assert [attempt(client, "wrong") for _ in range(6)] == [200] * 5 + [429]
    assert attempt(client, ADMIN_PASSWORD) == 429
    assert attempt(client, ADMIN_PASSWORD, name=" ADMIN ") == 429
    assert attempt(client, ADMIN_PASSWORD, address="10.0.0.2") == 302


@pytest.mark.usefixtures("operator")
def test_guesses_sent_at_once_get_no_more_tries_than_one_after_the_other() -> None:
    """Given twenty guesses that all arrive before the first was answered, five passwords are looked at."""
    arrived = threading.Barrier(20, timeout=10)

    def guess(_: int) -> bool:
        arrived.wait()
        return login_admitted("admin", "10.0.0.3")

    with ThreadPoolExecutor(20) as pool:
        assert sum(pool.map(guess, range(20))) == 5


@pytest.mark.usefixtures("operator")
@pytest.mark.parametrize("path", [LOGIN, "/admin/login/"])
def test_a_password_hashed_by_older_rules_lets_in_and_is_hashed_anew(path: str, admin_user: User) -> None:
    newer = ["django.contrib.auth.hashers.PBKDF2PasswordHasher", *settings.PASSWORD_HASHERS]
    with override_settings(PASSWORD_HASHERS=newer):
        response = Client().post(path, {"username": "admin", "password": ADMIN_PASSWORD, "next": "/console/"})
        assert response.status_code == 302
        with operator_scope():
            user = User.objects.get()
        assert user.password.startswith("pbkdf2_sha256$")
        assert user.check_password(ADMIN_PASSWORD)


@pytest.mark.usefixtures("operator")
def test_the_administrations_log_in_shares_the_count() -> None:
    client = Client()
    assert [attempt(client, "wrong") for _ in range(5)] == [200] * 5
    data = {"username": "admin", "password": ADMIN_PASSWORD, "next": "/admin/"}
    blocked = client.post("/admin/login/", data, REMOTE_ADDR="10.0.0.1")
    assert (blocked.status_code, "Too many failed attempts" in blocked.content.decode()) == (200, True)
    assert client.post("/admin/login/", data, REMOTE_ADDR="10.0.0.2").status_code == 302


@pytest.mark.usefixtures("operator")
def test_a_success_forgets_the_failures() -> None:
    client = Client()
    assert [attempt(client, "wrong") for _ in range(4)] == [200] * 4
    assert attempt(client, ADMIN_PASSWORD) == 302
    assert [attempt(client, "wrong") for _ in range(5)] == [200] * 5


@pytest.mark.usefixtures("operator")
def test_log_in_works_while_valkey_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDIS_URL", "redis://127.0.0.1:1/0")
    assert attempt(Client(), "wrong") == 200
    assert attempt(Client(), ADMIN_PASSWORD) == 302
