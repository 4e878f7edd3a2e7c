"""What the client's tests share: no variables of the caller's, and waits that are short."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from sluice_client import ResumePolicy, Sluice
from tests.client.server import Script, ScriptedServer, serving

QUICK = ResumePolicy(first_wait_s=0.001, max_wait_s=0.01)


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SLUICE_BASE_URL", "SLUICE_API_KEY", "SLUICE_MODEL", "OPENAI_ADMIN_KEY", "OPENAI_ORG_ID"):
        monkeypatch.delenv(name, raising=False)


@contextmanager
def client_of(script: Script, policy: ResumePolicy = QUICK) -> Iterator[tuple[Sluice, ScriptedServer]]:
    with serving(script) as server, Sluice(server.base_url, "sk-slc-test", resume=policy) as client:
        yield client, server
