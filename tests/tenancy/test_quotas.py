"""Quotas, weights and consents: what is written is checked, audited, and known to the gateway."""

import asyncio
import json
import threading
from collections.abc import Callable
from decimal import Decimal
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from django.core.exceptions import ValidationError
from django.db import IntegrityError, ProgrammingError, connections, transaction

from config.environment import master_keys
from tenants import quotas, services
from tenants.audit import audit_verify
from tenants.contracts import QUOTA_NAMES, KeyGrant, QuotaLimit
from tenants.grants import grants_load
from tenants.models import MAX_QUOTA, AuditEntry, Quota, Tenant
from tenants.scoping import operator_scope, tenant_scope
from tenants.selectors import quota_list
from tests.conftest import Database
from tests.factories import ACTOR, key_issue, tenant_create


@pytest.fixture
def tenant(database: Database) -> Tenant:
    return tenant_create("acme", name="Acme Inc.")


def quota_set(tenant: Tenant, name: str = "tokens_per_minute", limit: int = 1000, **more: Any) -> Quota:
    with operator_scope():
        return quotas.quota_set(tenant_id=tenant.id, name=name, limit=limit, actor=ACTOR, **more)


def quota_remove(quota: Quota) -> None:
    with operator_scope():
        quotas.quota_remove(tenant_id=quota.tenant_id, quota_id=quota.id, actor=ACTOR)


def audited(tenant: Tenant, prefix: str = "quota.") -> list[tuple[str, str, dict[str, Any]]]:
    with operator_scope():
        assert audit_verify(tenant_id=tenant.id) is None
        entries = AuditEntry.unscoped.filter(tenant=tenant, action__startswith=prefix).order_by("sequence")
        return [(entry.action, entry.target, json.loads(entry.diff)) for entry in entries]


def grants(database: Database) -> dict[UUID, KeyGrant]:
    async def load() -> list[KeyGrant]:
        async with await psycopg.AsyncConnection.connect(database.gateway_url) as conn:
            return await grants_load(conn, master_keys())

    return {grant.key_id: grant for grant in asyncio.run(load())}


def test_a_quota_is_set_changed_and_removed_and_each_is_audited_once(tenant: Tenant) -> None:
    first = quota_set(tenant, limit=1000, burst=200)
    same = quota_set(tenant, limit=1000, burst=200)
    changed = quota_set(tenant, limit=3000)
    assert first.id == same.id == changed.id
    with operator_scope():
        assert [(quota.limit, quota.burst) for quota in quota_list(tenant_id=tenant.id)] == [(3000, None)]
    quota_remove(changed)
    with pytest.raises(quotas.QuotaUnknown):
        quota_remove(changed)
    of_all = {"scope": "tenant", "subject": ""}
    assert audited(tenant) == [
        (
            "quota.set",
            "tokens_per_minute",
            {
                **of_all,
                **dict.fromkeys(("limit_before", "burst_before")),
                "limit_after": 1000,
                "burst_after": 200,
            },
        ),
        (
            "quota.set",
            "tokens_per_minute",
            {**of_all, "limit_before": 1000, "burst_before": 200, "limit_after": 3000, "burst_after": None},
        ),
        (
            "quota.remove",
            "tokens_per_minute",
            {
                **of_all,
                **dict.fromkeys(("limit_after", "burst_after")),
                "limit_before": 3000,
                "burst_before": None,
            },
        ),
    ]


def test_every_name_may_bound_the_tenant_a_key_and_a_model_at_once(tenant: Tenant) -> None:
    key = key_issue(tenant).key
    subjects: tuple[dict[str, Any], ...] = ({}, {"key_id": key.id}, {"model": "m"}, {"model": "n"})
    for name in QUOTA_NAMES:
        for subject in subjects:
            quota_set(tenant, name, **subject)
    with operator_scope():
        found = [(quota.scope, quota.subject) for quota in quota_list(tenant_id=tenant.id)]
    assert sorted(found) == sorted(
        [("tenant", ""), ("key", key.public_id), ("model", "m"), ("model", "n")] * len(QUOTA_NAMES)
    )
    told = {(diff["scope"], diff["subject"]) for _, _, diff in audited(tenant)}
    assert told == set(found)


@pytest.mark.parametrize(
    "wrong",
    [
        {"limit": 0},
        {"limit": -1},
        {"limit": MAX_QUOTA + 1},
        {"burst": 0},
        {"burst": MAX_QUOTA + 1},
        {"name": "concurrent_requests", "burst": 5},
        {"name": "spend_per_day", "burst": 5},
        {"name": "tokens_per_hour"},
        {"model": "m" * 201},
    ],
)
def test_a_quota_that_cannot_be_is_refused(tenant: Tenant, wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        quota_set(tenant, **wrong)
    assert audited(tenant) == []


def test_the_database_refuses_it_too(tenant: Tenant) -> None:
    key = key_issue(tenant).key
    fit = {
        "scope": "tenant",
        "key": None,
        "model": "",
        "name": "tokens_per_minute",
        "limit": 5,
        "burst": None,
    }
    for wrong in (
        {"limit": 0},
        {"limit": MAX_QUOTA + 1},
        {"burst": 0},
        {"name": "concurrent_requests", "burst": 5},
        {"name": "tokens_per_hour"},
        {"scope": "planet"},
        {"scope": "key"},
        {"scope": "model"},
        {"key": key},
        {"model": "m"},
        {"scope": "key", "key": key, "model": "m"},
    ):
        with operator_scope(), pytest.raises(IntegrityError), transaction.atomic(using="operator"):
            Quota.unscoped.create(tenant=tenant, **(fit | wrong))
    with operator_scope():
        Quota.unscoped.create(tenant=tenant, **fit)
        with pytest.raises(IntegrityError, match="quota_once"), transaction.atomic(using="operator"):
            Quota.unscoped.create(tenant=tenant, **fit)


def test_a_key_of_another_tenant_is_not_bounded(tenant: Tenant) -> None:
    theirs = key_issue(tenant_create()).key
    with pytest.raises(services.KeyUnknown):
        quota_set(tenant, key_id=theirs.id)
    with operator_scope(), pytest.raises(services.TenantUnknown):
        quotas.quota_set(tenant_id=uuid4(), name="tokens_per_minute", limit=1, actor=ACTOR)


def test_operators_who_change_a_tenant_at_once_do_not_block_each_other(tenant: Tenant) -> None:
    """Each holds a row and asks for the audit log: nobody waits in a circle."""
    key = key_issue(tenant).key
    failures: list[Exception] = []

    def again(change: Callable[[int], object]) -> None:
        try:
            with operator_scope():
                for number in range(1, 16):
                    change(number)
        except Exception as error:  # whatever it is, the test says it
            failures.append(error)
        finally:
            connections.close_all()

    bounded: dict[str, Any] = {"tenant_id": tenant.id, "actor": ACTOR}
    changes: list[Callable[[int], object]] = [
        lambda n: quotas.quota_set(name="tokens_per_minute", limit=n, key_id=key.id, **bounded),
        lambda n: quotas.quota_set(name="tokens_per_minute", limit=n, **bounded),
        lambda n: quotas.tenant_weight_set(weight=Decimal(n), **bounded),
        lambda n: services.key_limit_set(key_id=key.id, max_open_requests=n, **bounded),
    ]
    threads = [threading.Thread(target=again, args=(change,)) for change in changes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert failures == []


def test_a_quota_of_another_tenant_is_not_removed(tenant: Tenant) -> None:
    theirs = quota_set(tenant_create())
    with operator_scope(), pytest.raises(quotas.QuotaUnknown):
        quotas.quota_remove(tenant_id=tenant.id, quota_id=theirs.id, actor=ACTOR)
    with operator_scope():
        assert Quota.unscoped.get() == theirs


def test_a_tenant_reads_its_quotas_and_changes_none(tenant: Tenant) -> None:
    """As the application role."""
    mine = quota_set(tenant)
    quota_set(tenant_create())
    assert quota_list(tenant_id=tenant.id) == [mine]
    with pytest.raises(ProgrammingError, match="permission denied"):
        quotas.quota_set(tenant_id=tenant.id, name="tokens_per_minute", limit=10**9, actor="mallory")
    with pytest.raises(ProgrammingError, match="permission denied"), tenant_scope(tenant.id):
        Quota.objects.all()._raw_delete("default")
    with pytest.raises(ProgrammingError, match="permission denied"), tenant_scope(tenant.id):
        Tenant.objects.update(weight=100)


def test_a_closed_tenant_gets_no_quota(tenant: Tenant) -> None:
    with operator_scope():
        services.tenant_close(tenant_id=tenant.id, actor=ACTOR, reason="left us")
    with pytest.raises(services.TenantClosed):
        quota_set(tenant)


def test_the_gateway_is_told_of_all_that_bounds_a_key(database: Database, tenant: Tenant) -> None:
    one, other = key_issue(tenant).key, key_issue(tenant).key
    stranger = key_issue(tenant_create("globex")).key
    quota_set(tenant, "tokens_per_minute", 1000, burst=50)
    quota_set(tenant, "spend_per_day", 5_000_000, model="m")
    quota_set(tenant, "concurrent_requests", 3, key_id=one.id)
    of_all = (
        QuotaLimit("tokens_per_minute", "tenant", "Acme Inc.", 1000, burst=50),
        QuotaLimit("spend_per_day", "model", "m", 5_000_000, model="m"),
    )
    of_one = QuotaLimit("concurrent_requests", "key", one.public_id, 3, key_id=one.id)
    assert {key: grant.quotas for key, grant in grants(database).items()} == {
        one.id: (*of_all, of_one),
        other.id: of_all,
        stranger.id: (),
    }
    with operator_scope():
        services.key_revoke(tenant_id=tenant.id, key_id=one.id, actor=ACTOR)
    assert {key: grant.quotas for key, grant in grants(database).items()} == {
        other.id: of_all,
        stranger.id: (),
    }


def test_weight_and_consents_reach_the_gateway(database: Database, tenant: Tenant) -> None:
    key = key_issue(tenant).key
    as_made = grants(database)[key.id]
    assert (as_made.weight, as_made.accepts_smaller_model, as_made.accepts_batch) == (1.0, False, False)
    with operator_scope():
        for _ in range(2):  # the second time changes nothing
            quotas.tenant_weight_set(tenant_id=tenant.id, weight=Decimal("2.5"), actor=ACTOR)
            quotas.tenant_consents_set(
                tenant_id=tenant.id, accepts_smaller_model=True, accepts_batch=False, actor=ACTOR
            )
    grant = grants(database)[key.id]
    assert (grant.weight, grant.accepts_smaller_model, grant.accepts_batch) == (2.5, True, False)
    assert audited(tenant, "tenant.")[1:] == [
        ("tenant.weight", "acme", {"before": "1.00", "after": "2.50"}),
        (
            "tenant.consents",
            "acme",
            {
                "accepts_smaller_model_before": False,
                "accepts_smaller_model_after": True,
                "accepts_batch_before": False,
                "accepts_batch_after": False,
            },
        ),
    ]


@pytest.mark.parametrize("weight", ["0", "0.009", "-1", "100.01", "1.005", "NaN", "1000"])
def test_a_weight_out_of_range_is_refused(tenant: Tenant, weight: str) -> None:
    with operator_scope(), pytest.raises(ValidationError):
        quotas.tenant_weight_set(tenant_id=tenant.id, weight=Decimal(weight), actor=ACTOR)
    with operator_scope():
        assert Tenant.unscoped.get().weight == 1
        with pytest.raises(IntegrityError), transaction.atomic(using="operator"):
            Tenant.unscoped.update(weight=Decimal("0.001"))


def test_many_quotas_of_many_keys_are_loaded_with_as_many_queries_as_one(
    database: Database, tenant: Tenant
) -> None:
    class Counting(psycopg.AsyncCursor[Any]):
        asked = 0

        async def execute(self, *args: Any, **more: Any) -> Any:
            type(self).asked += 1
            return await super().execute(*args, **more)

    async def load() -> tuple[int, int]:
        Counting.asked = 0
        async with await psycopg.AsyncConnection.connect(
            database.gateway_url, cursor_factory=Counting
        ) as conn:
            return len(await grants_load(conn, master_keys())), Counting.asked

    quota_set(tenant, key_id=key_issue(tenant).key.id)
    one = asyncio.run(load())
    for _ in range(9):
        quota_set(tenant, key_id=key_issue(tenant).key.id)
    assert one == (1, 3)
    assert asyncio.run(load()) == (10, 3)
