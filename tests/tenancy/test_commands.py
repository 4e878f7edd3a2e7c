"""`manage.py seed` and `manage.py key`."""

import json
import stat
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from billing.models import Price
from gpuworker.manifest import manifest_build, manifest_write
from modelsvc.models import ModelRoute
from tenants.contracts import QUOTA_NAMES
from tenants.models import ApiKey, AuditEntry, Quota, Tenant, User
from tenants.quotas import quota_remove
from tenants.scoping import operator_scope
from tenants.selectors import quota_list
from tests.conftest import Database
from tests.factories import tenant_create


def _weights_make(store: Path, *, layers: int = 1) -> str:
    part = store / "part"
    part.mkdir(parents=True)
    (part / "config.json").write_text(json.dumps({"max_position_embeddings": 2048, "layers": layers}))
    manifest = manifest_build(part)
    manifest_write(part, manifest)
    part.rename(store / manifest.digest)
    return manifest.digest


@pytest.fixture
def store(database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SLUICE_WEIGHTS", str(tmp_path / "weights"))
    return tmp_path / "weights"


def _seed(path: Path, **options: Any) -> dict[str, Any]:
    call_command("seed", json_out=path, **options)
    content: dict[str, Any] = json.loads(path.read_text())
    return content


def _live_keys() -> set[str]:
    with operator_scope():
        return set(ApiKey.unscoped.filter(revoked_at=None).values_list("public_id", flat=True))


def _public(content: dict[str, Any]) -> set[str]:
    return {tenant["api_key"][7:15] for tenant in content["tenants"]}


def test_seeding_makes_what_the_demo_needs(store: Path, tmp_path: Path) -> None:
    digest = _weights_make(store)
    leftover = store / ".part-killed"
    leftover.mkdir()
    (leftover / "manifest.json").write_text("{}")
    path = tmp_path / "demo.json"
    content = _seed(path)
    assert [tenant["name"] for tenant in content["tenants"]] == ["acme", "globex", "initech"]
    assert content["api_key"] == content["tenants"][0]["api_key"]
    assert _live_keys() == _public(content)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with operator_scope():
        admin = User.objects.get(username="admin")
        assert admin.is_superuser
        assert admin.check_password(content["admin"]["password"])
        assert ModelRoute.objects.get().version.digest == digest
        assert Price.objects.get().model == content["model"]
        quotas = {(quota.tenant.slug, quota.name) for quota in Quota.unscoped.select_related("tenant")}
        assert quotas == {(tenant["name"], name) for tenant in content["tenants"] for name in QUOTA_NAMES}


def test_seeding_again_changes_nothing(store: Path, tmp_path: Path) -> None:
    _weights_make(store)
    path = tmp_path / "demo.json"
    first = _seed(path)
    with operator_scope():
        entries = AuditEntry.unscoped.count()
        password = User.objects.get().password
    path.write_text(json.dumps({**first, "base_url": "http://127.0.0.1:8000/v1"}))
    assert _seed(path) == {**first, "base_url": "http://127.0.0.1:8000/v1"}
    with operator_scope():
        assert AuditEntry.unscoped.count() == entries
        assert User.objects.get().password == password


def test_a_tenants_quotas_are_left_to_its_operator(store: Path, tmp_path: Path) -> None:
    _weights_make(store)
    path = tmp_path / "demo.json"
    _seed(path)
    with operator_scope():
        tenant = Tenant.unscoped.get(slug="acme")
        quotas = quota_list(tenant_id=tenant.id)
        for quota in quotas[1:]:
            quota_remove(tenant_id=tenant.id, quota_id=quota.id, actor="operator")
    _seed(path)
    with operator_scope():
        assert [quota.id for quota in quota_list(tenant_id=tenant.id)] == [quotas[0].id]


def test_a_lost_file_replaces_the_secrets(store: Path, tmp_path: Path) -> None:
    _weights_make(store)
    path = tmp_path / "demo.json"
    first = _seed(path)
    path.unlink()
    second = _seed(path)
    assert _live_keys() == _public(second)
    assert not _public(first) & _public(second)
    with operator_scope():
        assert Tenant.unscoped.count() == 3
        assert User.objects.get().check_password(second["admin"]["password"])
        told = AuditEntry.unscoped.filter(action__startswith="user.", target="admin").order_by("sequence")
        assert [entry.action for entry in told] == ["user.create", "user.change"]
        assert Price.objects.count() == 1


def test_a_key_revoked_meanwhile_is_replaced_alone(store: Path, tmp_path: Path) -> None:
    _weights_make(store)
    path = tmp_path / "demo.json"
    first = _seed(path)
    call_command("key", "revoke", first["tenants"][1]["api_key"][7:15], stdout=StringIO())
    second = _seed(path)
    changed = [a["api_key"] != b["api_key"] for a, b in zip(first["tenants"], second["tenants"], strict=True)]
    assert changed == [False, True, False]


def test_a_route_is_left_to_its_operator(store: Path, tmp_path: Path) -> None:
    first, path = _weights_make(store), tmp_path / "demo.json"
    _seed(path)
    second = _weights_make(store, layers=2)
    _seed(path)
    with operator_scope():
        assert ModelRoute.objects.get().version.digest == first
    _seed(path, digest=second)
    with operator_scope():
        assert ModelRoute.objects.get().version.digest == second


def test_what_cannot_be_seeded_is_said(store: Path, tmp_path: Path) -> None:
    path = tmp_path / "demo.json"
    with pytest.raises(CommandError, match="model_import"):
        _seed(path)
    _weights_make(store)
    _weights_make(store, layers=2)
    with pytest.raises(CommandError, match="--digest"):
        _seed(path)
    with pytest.raises(CommandError):
        _seed(path, digest="0" * 64)
    path.write_text("{")
    with pytest.raises(CommandError, match="not JSON"):
        _seed(path)


def test_keys_from_the_command_line(database: Database) -> None:
    tenant_create("acme")

    def key(*arguments: str) -> str:
        out = StringIO()
        call_command("key", *arguments, stdout=out)
        return out.getvalue()

    plaintext = key(
        "issue", "--tenant", "acme", "--name", "ci", "--model", "small", "--expires-days", "7"
    ).strip()
    with operator_scope():
        issued = ApiKey.unscoped.get()
    assert (issued.public_id, issued.allowed_models) == (plaintext[7:15], ["small"])
    assert issued.expires_at is not None
    assert (issued.expires_at - issued.created_at).days in (6, 7)
    assert "live" in key("list", "--tenant", "acme")
    key("revoke", issued.public_id)
    assert "revoked" in key("list", "--tenant", "acme")
    assert plaintext[16:48] not in key("list", "--tenant", "acme")
    with pytest.raises(CommandError, match="at most 200 characters"):
        key("issue", "--tenant", "acme", "--name", "n" * 201)
    with pytest.raises(CommandError, match="nobody"):
        key("list", "--tenant", "nobody")
    with pytest.raises(CommandError, match="no key"):
        key("revoke", "zzzzzzzz")
