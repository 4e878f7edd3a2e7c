"""Upstream servers in the registry: keys that nobody can read, what is refused, how a worker is started."""

import asyncio
import io
import json
import os
import sys
from http import HTTPStatus
from io import StringIO
from pathlib import Path

import psycopg
import pytest
from django.core.exceptions import ValidationError
from django.core.management import call_command
from django.core.management.base import CommandError
from django.test import Client

from gpuworker.manifest import manifest_verify
from gpuworker.options import options_parse
from gpuworker.upstream_terms import KEY_VARIABLE
from modelsvc.management.commands.upstream_worker import worker_arguments, worker_environment
from modelsvc.models import Upstream
from modelsvc.services import version_publish
from modelsvc.upstream_keys import UpstreamKeyUnreadable
from modelsvc.upstreams import (
    UpstreamExists,
    UpstreamUnknown,
    upstream_add,
    upstream_key_set,
    upstream_keys_rewrap,
    upstream_launch,
    upstream_remove,
)
from tenants.models import AuditEntry, User
from tenants.scoping import operator_scope
from tests.conftest import Database
from tests.engine.support import byte_tokenizer
from tests.factories import model_create
from tests.worker.support import ROOT, weights_make

KEY = "sk-upstream-0123456789"


@pytest.fixture
def model(database: Database) -> str:
    return model_create("tiny").digest


def add(name: str = "one", **fields: object) -> Upstream:
    given: dict[str, object] = {
        "kind": "openai",
        "flavour": "vllm",
        "url": "http://10.0.0.1:8000",
        "slug": "tiny",
        "model_name": "org/tiny",
        "key": KEY,
    }
    with operator_scope():
        return upstream_add(name=name, actor="operator", **(given | fields))  # type: ignore[arg-type]


def upstream(*words: str, stdin: str | None = None, monkeypatch: pytest.MonkeyPatch | None = None) -> str:
    if stdin is not None:
        assert monkeypatch is not None
        monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
    out = StringIO()
    call_command("upstream", *words, stdout=out)
    return out.getvalue()


def test_a_key_is_sealed_and_only_a_launch_has_it(database: Database, model: str) -> None:
    add()
    with operator_scope():
        launch = upstream_launch(name="one")
    assert launch.key == KEY
    assert KEY not in repr(launch)
    # Then it is in no row of the database, the audit log included
    with psycopg.connect(database.admin_url) as conn:
        for table in ("modelsvc_upstream", "tenants_auditentry"):
            for row in conn.execute(f"SELECT {table}::text FROM {table}").fetchall():
                assert KEY not in row[0]
                assert KEY.encode().hex() not in row[0]


@pytest.mark.parametrize("role", ["app", "gateway"])
def test_only_operators_read_the_sealed_key(database: Database, model: str, role: str) -> None:
    add()
    with (
        psycopg.connect(getattr(database, f"{role}_url")) as conn,
        pytest.raises(psycopg.errors.InsufficientPrivilege),
    ):
        conn.execute("SELECT name FROM modelsvc_upstream")


def test_a_sealed_key_opens_for_its_own_upstream_only(database: Database, model: str) -> None:
    add("one")
    add("two", key="another")
    with operator_scope():
        first, second = Upstream.objects.order_by("name")
        second.sealed_key, second.master_key_id = first.sealed_key, first.master_key_id
        second.save(update_fields=("sealed_key", "master_key_id"))
        with pytest.raises(UpstreamKeyUnreadable):
            upstream_launch(name="two")


def test_keys_follow_a_new_master_key(
    model: str, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    add()
    old, new = os.environ["SLUICE_MASTER_KEY"], "7" * 64
    monkeypatch.setenv("SLUICE_MASTER_KEY", f"{new},{old}")
    with operator_scope():
        assert upstream_keys_rewrap(actor="operator") == 1
        assert upstream_keys_rewrap(actor="operator") == 0
        monkeypatch.setenv("SLUICE_MASTER_KEY", new)
        assert upstream_launch(name="one").key == KEY
        monkeypatch.setenv("SLUICE_MASTER_KEY", old)
        with pytest.raises(UpstreamKeyUnreadable):
            upstream_launch(name="one")


@pytest.mark.parametrize(
    "fields",
    [
        {"name": "Not Plain"},
        {"url": "ftp://host"},
        {"url": "http://user:secret@host"},
        {"url": "http://host/?key=1"},
        {"flavour": "other"},
        {"kind": "other"},
        {"options": {"silence_s": 0}},
        {"options": {"unknown": 1}},
        {"key": "two\nlines"},
        {"max_rows": 0},
    ],
)
def test_what_no_worker_could_be_started_with_is_refused(
    database: Database, model: str, fields: dict[str, object]
) -> None:
    with pytest.raises(ValidationError) as caught:
        add(**fields)  # type: ignore[arg-type]
    assert KEY not in str(caught.value)
    with operator_scope():
        assert not Upstream.objects.exists()


def test_names_are_unique_and_must_be_known(database: Database, model: str) -> None:
    add()
    with pytest.raises(UpstreamExists):
        add()
    with operator_scope():
        upstream_remove(name="one", actor="operator")
        for change in (
            lambda: upstream_remove(name="one", actor="operator"),
            lambda: upstream_key_set(name="one", key="", actor="operator"),
            lambda: upstream_launch(name="one"),
        ):
            with pytest.raises(UpstreamUnknown):
                change()
        actions = list(AuditEntry.unscoped.order_by("sequence").values_list("action", flat=True))
    assert actions[-2:] == ["upstream.add", "upstream.remove"]


def test_the_command_takes_keys_from_stdin_or_the_environment_and_shows_none(
    database: Database, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("--url", "http://10.0.0.1:8000", "--slug", "tiny", "--model", "org/tiny")
    said = upstream("add", "one", *words, "--key-stdin", stdin=f"{KEY}\n", monkeypatch=monkeypatch)
    monkeypatch.setenv(KEY_VARIABLE, "from-the-environment")
    said += upstream("add", "two", *words, "--silence-s", "5")
    said += upstream("list")
    assert "with a key" in said
    assert KEY not in said
    assert "from-the-environment" not in said
    with operator_scope():
        assert upstream_launch(name="one").key == KEY
        assert upstream_launch(name="two").key == "from-the-environment"
        assert upstream_launch(name="two").options == {"silence_s": 5.0}
    upstream("disable", "one")
    assert upstream("list", "--enabled").split() == ["two"]
    with pytest.raises(CommandError):
        upstream("remove", "three")


def test_a_worker_gets_the_key_in_its_environment_and_nothing_of_djangos(
    database: Database, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLUICE_DISPATCH", "unix:/run/dispatch.sock")
    add(options={"first_token_s": 7.5})
    with operator_scope():
        launch = upstream_launch(name="one")
    arguments = worker_arguments(launch, "unix:/run/one.sock", Path("/spool"), ["gateway-0"])
    options = options_parse(arguments[2:])
    assert (options.backend, options.upstream_flavour, options.upstream_first_token_s) == (
        "openai",
        "vllm",
        7.5,
    )
    assert options.gateways == ("gateway-0",)
    assert not any(KEY in argument for argument in arguments)
    secrets = {
        "SLUICE_MASTER_KEY": "m",
        "SLUICE_DB_OPERATOR": "d",
        "SLUICE_SECRET_KEY": "s",
        "REDIS_URL": "r",
    }
    told = worker_environment(launch, secrets | {"PATH": "/bin", "SLUICE_WIRE_SECRET": "w"})
    assert told == {"PATH": "/bin", "SLUICE_WIRE_SECRET": "w", KEY_VARIABLE: KEY}


def test_the_admin_shows_that_there_is_a_key_and_not_the_key(
    database: Database, model: str, admin_user: User
) -> None:
    made = add()
    staff = Client()
    staff.force_login(admin_user)
    for path in ("/admin/modelsvc/upstream/", f"/admin/modelsvc/upstream/{made.id}/change/"):
        page = staff.get(path)
        assert page.status_code == HTTPStatus.OK
        assert b"10.0.0.1" in page.content
        assert KEY.encode() not in page.content
        assert b"sealed" not in page.content.lower().replace(b"sealed by", b"")


def test_a_model_that_only_a_server_has_is_declared(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, weights = tmp_path / "folder", tmp_path / "weights"
    folder.mkdir()
    monkeypatch.setenv("SLUICE_WEIGHTS", str(weights))
    words = ("declare", "--folder", str(folder), "--slug", "far", "--model", "org/far")
    with pytest.raises(CommandError, match=r"lacks config\.json"):
        upstream(*words)
    (folder / "config.json").write_text(json.dumps({"vocab_size": 257, "max_position_embeddings": 4096}))
    byte_tokenizer().save(str(folder / "tokenizer.json"))
    first = upstream(*words).split()[1]
    # Its digest stands for tokenizer, settings, and what is declared of the server
    assert manifest_verify(weights / first).max_context_tokens == 4096
    assert upstream(*words).split()[1] == first
    assert upstream(*words, "--revision", "abc").split()[1] != first


def seen_from_outside(pid: int) -> tuple[set[str], bytes]:
    """Names in its environment, and its arguments."""
    environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    names = {entry.partition(b"=")[0].decode() for entry in environment}
    return names, Path(f"/proc/{pid}/cmdline").read_bytes()


async def test_the_command_becomes_a_worker_that_knows_nothing_of_django(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given an upstream that answers for a version in the store
    def prepare() -> None:
        digest = weights_make(tmp_path / "made")
        (tmp_path / "made").rename(tmp_path / digest)
        with operator_scope():
            manifest = manifest_verify(tmp_path / digest)
            version_publish(slug="tiny", name="tiny", owned_by="me", manifest=manifest, actor="operator")
        add(digest=digest, flavour="generic")

    await asyncio.to_thread(prepare)
    # When its command is run
    environment = {**os.environ, "SLUICE_WEIGHTS": str(tmp_path), "SLUICE_WIRE_SECRET": "s"}
    environment |= {"SLUICE_DISPATCH": f"unix:{tmp_path}/d", "PYTHONPATH": f"{ROOT}:{ROOT / 'platform'}"}
    listen = ("--listen", f"unix:{tmp_path}/w", "--spool", str(tmp_path / "spool"))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "manage.py", "upstream_worker", "one", *listen),
        cwd=ROOT,
        env=environment,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stderr is not None
        async with asyncio.timeout(20):
            while b"serving digest" not in (line := await process.stderr.readline()):
                assert line, "it ended"
        # Then the same process is a worker, and holds no secret but the wire's and that server's
        names, arguments = await asyncio.to_thread(seen_from_outside, process.pid)
        assert {name for name in names if name.startswith("SLUICE_")} == {"SLUICE_WIRE_SECRET", KEY_VARIABLE}
        assert KEY.encode() not in arguments
    finally:
        process.terminate()
        await process.communicate()
    assert process.returncode == 0
