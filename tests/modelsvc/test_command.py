"""`manage.py model_import`, as an operator runs it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from django.test import Client

from gpuworker.manifest import manifest_verify
from modelsvc.models import ModelVersion
from modelsvc.selectors import route_of
from tenants.models import User
from tenants.scoping import operator_scope
from tests.conftest import Database
from tests.modelsvc.tiny_models import tiny_gguf

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SLUICE_WEIGHTS", str(tmp_path / "weights"))
    return tmp_path / "weights"


def model_import(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "manage.py"), "model_import", *map(str, arguments)]
    return subprocess.run(command, check=False, capture_output=True, text=True, env=dict(os.environ))


def test_folder_is_imported_published_and_routed(
    database: Database, weights: Path, tiny_folder: Path
) -> None:
    answer = model_import("--folder", tiny_folder, "--slug", "acme/tiny", "--owned-by", "acme")
    assert answer.returncode == 0, answer.stderr
    slug, digest = answer.stdout.split()
    assert slug == "acme/tiny"
    manifest_verify(weights / digest)
    with operator_scope():
        route = route_of("acme/tiny")
        assert route is not None
        assert (route.version.digest, route.revision) == (digest, 1)
        assert (route.model.owned_by, route.model.name) == ("acme", "acme/tiny")
        assert route.version.manifest["digest"] == digest


def test_new_version_is_routed_unless_it_is_only_staged(
    database: Database, weights: Path, tmp_path: Path
) -> None:
    for seed, stage, revision in ((0, [], 1), (1, ["--stage"], 1), (1, [], 2), (1, [], 2)):
        gguf = tiny_gguf(tmp_path / f"{seed}.gguf", seed=seed)
        answer = model_import("--gguf", gguf, "--slug", "tiny", *stage)
        assert answer.returncode == 0, answer.stderr
        with operator_scope():
            route = route_of("tiny")
            assert route is not None
            assert route.revision == revision


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--folder", "/nonexistent"], "CommandError: /nonexistent is not a folder"),
        (["--gguf", os.devnull], "CommandError: /dev/null is not a file"),
    ],
)
def test_refused_import_is_one_line(
    database: Database, weights: Path, arguments: list[str], message: str
) -> None:
    answer = model_import(*arguments)
    assert answer.returncode == 1
    assert answer.stderr.strip() == message


def test_bad_slug_is_one_line(database: Database, weights: Path, tiny_folder: Path) -> None:
    answer = model_import("--folder", tiny_folder, "--slug", "two words")
    assert answer.returncode == 1
    assert answer.stderr.startswith("CommandError: A model's slug consists of letters")
    assert len(answer.stderr.strip().splitlines()) == 1
    assert not weights.exists()


@pytest.fixture
def admin(admin_user: User) -> Client:
    client = Client()
    client.force_login(admin_user)
    return client


def test_admin_lists_the_registry_and_its_actions_switch_and_retire(
    database: Database, weights: Path, tmp_path: Path, admin: Client
) -> None:
    for seed in (0, 1):
        model_import("--gguf", tiny_gguf(tmp_path / f"{seed}.gguf", seed=seed), "--slug", "tiny")
    with operator_scope():
        new, old = ModelVersion.objects.order_by("-created_at")
    url = "/admin/modelsvc/modelversion/"
    for page in ("model/", f"model/{new.model_id}/change/", "modelroute/", "modelversion/"):
        assert admin.get(f"/admin/modelsvc/{page}").status_code == 200
    assert admin.get(f"{url}{new.pk}/change/").status_code == 200
    assert admin.get(f"{url}add/").status_code == 403
    assert admin.post(f"{url}{new.pk}/change/", {"state": "retired"}).status_code == 403

    answer = admin.post(url, {"action": "route_here", "_selected_action": [str(old.pk)]}, follow=True)
    assert f"tiny now runs on {old.digest[:12]} (revision 3)" in answer.content.decode()
    answer = admin.post(url, {"action": "retire", "_selected_action": [str(old.pk)]}, follow=True)
    assert "switch its route first" in answer.content.decode()
    answer = admin.post(url, {"action": "retire", "_selected_action": [str(new.pk)]}, follow=True)
    assert f"{new.digest[:12]} is retired" in answer.content.decode()
