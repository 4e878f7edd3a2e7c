"""What the gateway process of these tests runs: the real application, with given limits and a first snapshot.

`python -m uvicorn --factory tests.gateway.server:make`. Without a snapshot in the environment,
PostgreSQL's is used; with one, PostgreSQL is away and the last snapshot serves, as it does in production.
"""

import json
import os
import time
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from billing.contracts import Price
from gateway.access.snapshot import Snapshot
from gateway.app import Application
from gateway.http.exchange import Receive, Scope, Send
from gateway.http.protocol import BoundedHttpProtocol
from gateway.limits import Limits
from gateway.settings import settings_from_environment
from gateway.websocket.server_protocol import BoundedWebSocketProtocol
from modelsvc.contracts import ModelRoute
from tenants.contracts import KeyGrant, QuotaLimit
from tenants.keys import key_digest, key_parse

TENANT = UUID("018f0000-0000-7000-8000-000000000001")


def snapshot_make(pepper: bytes, document: dict[str, Any]) -> Snapshot:
    grants = {}
    for index, entry in enumerate(document["keys"]):
        parsed = key_parse(entry["key"])
        assert parsed is not None
        public_id = parsed.public_id
        grants[public_id] = KeyGrant(
            key_id=UUID(int=index + 1),
            public_id=public_id,
            digest=key_digest(pepper, entry["key"]),
            tenant_id=UUID(entry["tenant"]) if "tenant" in entry else TENANT,
            tenant_name="acme",
            scopes=frozenset(entry.get("scopes", ["completions"])),
            models=frozenset(entry["models"]) if "models" in entry else None,
            expires_at=datetime.fromisoformat(entry["expires_at"]) if "expires_at" in entry else None,
            data_key=bytes(32),
            zero_retention=entry.get("zero_retention", False),
            max_output_tokens=entry.get("max_output_tokens"),
            max_open_requests=entry.get("max_open_requests"),
            quotas=tuple(QuotaLimit(**quota) for quota in entry.get("quotas", [])),
            accepts_smaller_model=entry.get("accepts_smaller_model", False),
            continues_streams=entry.get("continues_streams", False),
        )
    routes = {
        slug: ModelRoute(
            slug,
            digest,
            document["context_tokens"],
            "sluice",
            datetime(2026, 1, 1, tzinfo=UTC),
            1,
            smaller=document.get("smaller", {}).get(slug, ""),
        )
        for slug, digest in document["routes"].items()
    }
    prices = {slug: Price(1, slug, *amounts) for slug, amounts in document.get("prices", {}).items()}
    return Snapshot(grants=grants, routes=routes, prices=prices, loaded_at=time.monotonic())


class PreparedApplication(Application):
    """Puts the given snapshot in place once, right after the start."""

    def __init__(self) -> None:
        limits = Limits(**json.loads(os.environ.get("TEST_LIMITS", "{}")))
        super().__init__(lambda: replace(settings_from_environment(), limits=limits))
        self._prepared = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not self._prepared:
            self._prepared = True
            await self._prepare()
        await super().__call__(scope, receive, send)

    async def _prepare(self) -> None:
        gateway = await self.gateway()
        if document := os.environ.get("TEST_SNAPSHOT"):
            snapshot = snapshot_make(gateway.settings.key_pepper, json.loads(document))
            gateway.snapshots.current = snapshot
            gateway.tokenizers.preload({route.digest for route in snapshot.routes.values()})


class QuickSocketProtocol(BoundedWebSocketProtocol):
    limits = Limits(max_socket_message_bytes=200_000)
    close_timeout_s = 0.3


class QuickProtocol(BoundedHttpProtocol):
    limits = Limits(header_timeout_s=1.0)


def make() -> PreparedApplication:
    return PreparedApplication()
