"""What the client's tests share: no variables of the caller's, and waits that are short."""

import signal
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


@pytest.fixture
def ctrl_c_is_not_ignored() -> Iterator[None]:
    """A process whose parent ignores SIGINT ignores it too, as this one's may."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@contextmanager
def client_of(script: Script, policy: ResumePolicy = QUICK) -> Iterator[tuple[Sluice, ScriptedServer]]:
    with serving(script) as server, Sluice(server.base_url, "sk-slc-test", resume=policy) as client:
        yield client, server
