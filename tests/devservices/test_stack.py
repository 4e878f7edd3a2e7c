"""What each process is told: what the operator chose reaches it, other people's secrets do not."""

import subprocess
from pathlib import Path

import pytest

from devservices.processes import processes_working_in
from devservices.stack import Stack, stop_stages
from devservices.state import UpSettings, database_name

SECRETS = {"wire_secret": "wire", "secret_key": "django", "key_pepper": "00", "master_key": "11"}
ROLES = {role: f"postgresql://{role}" for role in ("owner", "app", "operator", "gateway")}


@pytest.fixture
def stack(tmp_path: Path) -> Stack:
    settings = UpSettings(
        state=tmp_path, weights=tmp_path / "weights", port=1, workers=1, database_url=None, redis_url=None
    )
    return Stack(settings, SECRETS, ROLES, "redis://x")


def test_what_the_operator_chose_reaches_every_django_process(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = {"SLUICE_DB_ROLE_PREFIX": "acme", "SLUICE_HTTPS": "1", "SLUICE_ALLOWED_HOSTS": "sluice.example"}
    for name, value in chosen.items():
        monkeypatch.setenv(name, value)
    for spec in (stack.gateway(), stack.migrate(), stack.controller(), stack.celery(), stack.beat()):
        assert chosen.items() <= spec.environment.items(), spec.name


def test_the_gateway_knows_the_names_that_clients_send_for_no_model(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("SLUICE_DEFAULT_MODEL", "SLUICE_DEFAULT_MODEL_ALIASES", "SLUICE_ALLOWED_ORIGINS")
    for name in names:
        monkeypatch.delenv(name, raising=False)
    told = stack.gateway().environment
    assert [told.get(name) for name in names] == [None, "tgi,dummy", None]


@pytest.mark.parametrize("aliases", ["gpt-4o", ""])
def test_what_the_user_chose_of_them_wins(
    stack: Stack, monkeypatch: pytest.MonkeyPatch, aliases: str
) -> None:
    chosen = {
        "SLUICE_DEFAULT_MODEL": "demo",
        "SLUICE_DEFAULT_MODEL_ALIASES": aliases,
        "SLUICE_ALLOWED_ORIGINS": "https://app.example",
    }
    for name, value in chosen.items():
        monkeypatch.setenv(name, value)
    assert chosen.items() <= stack.gateway().environment.items()
    assert not chosen.keys() & stack.worker(0, "demo", "d").environment.keys()


def test_only_those_who_need_a_secret_have_it(
    stack: Stack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", "postgresql://admin:secret@x/y")
    monkeypatch.setenv("PIP_INDEX_URL", "https://token@index.example")
    monkeypatch.setenv("https_proxy", "https://user:secret@proxy.example")
    secrets = {"SLUICE_KEY_PEPPER", "SLUICE_SECRET_KEY", "SLUICE_DB_APP", "SLUICE_DB_OPERATOR"}
    secrets |= {"SLUICE_MASTER_KEY"}
    for spec in (stack.worker(0, "demo", "d"), stack.dispatchers()[0]):
        assert not secrets & spec.environment.keys(), spec.name
    for spec in (stack.gateway(), stack.controller(), stack.celery(), stack.seed(tmp_path / "seed.json")):
        assert secrets <= spec.environment.keys(), spec.name
    everybody = [stack.gateway(), stack.dispatchers()[0], stack.controller(), stack.celery(), stack.migrate()]
    for spec in (*everybody, stack.worker(0, "demo", "d")):
        assert not {"DATABASE_URL", "PIP_INDEX_URL", "https_proxy"} & spec.environment.keys(), spec.name
    importing = stack.model_import().environment
    assert {"PIP_INDEX_URL", "https_proxy"} <= importing.keys()
    assert "DATABASE_URL" not in importing


def test_the_worker_of_an_upstream_is_one_that_stops_with_the_others(stack: Stack) -> None:
    spec, worker = stack.upstream_worker("far"), stack.worker(0, "demo", "d")
    assert spec.name == "upstream-far"
    for words in (spec.command, worker.command):
        assert words[words.index("--gateway") + 1] == "gateway-0"
    (stage,) = [stage for stage in stop_stages(["far"]) if worker.name in stage]
    assert spec.name in stage


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("postgresql://a:b@h:5432/sluice", "sluice"),
        ("postgresql://admin:s3cret@db.example:5432", ""),
        ("postgresql://a@h/sluice?sslmode=verify-full&sslrootcert=/etc/ca.pem", "sluice"),
        ("postgresql://admin@/?host=/var/run/postgresql", ""),
        ("postgresql://a@h/our%20data", "our data"),
    ],
)
def test_the_database_of_a_url(url: str, name: str) -> None:
    assert database_name(url) == name


def test_a_shell_in_a_data_folder_is_not_taken_for_a_server(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "60"], cwd=tmp_path) as bystander:
        try:
            assert processes_working_in(tmp_path, "sleep") == [bystander.pid]
            assert processes_working_in(tmp_path, "postgres") == []
        finally:
            bystander.kill()
