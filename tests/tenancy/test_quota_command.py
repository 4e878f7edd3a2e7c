"""`manage.py quota`: what operators type is checked, audited and shown as people write it."""

from io import StringIO

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError

from tenants.models import AuditEntry, Quota, Tenant
from tenants.scoping import operator_scope
from tests.conftest import Database
from tests.factories import key_issue, tenant_create


@pytest.fixture
def tenant(database: Database) -> Tenant:
    return tenant_create("acme")


def quota(*words: str) -> str:
    out = StringIO()
    call_command("quota", *words, stdout=out)
    return out.getvalue()


def stored() -> list[tuple[str, str, str, int, int | None]]:
    with operator_scope():
        return [
            (q.name, q.scope, q.subject, q.limit, q.burst)
            for q in Quota.unscoped.select_related("key").order_by("updated_at")
        ]


def test_a_quota_of_each_kind_is_set_listed_replaced_and_removed(tenant: Tenant) -> None:
    # Given quotas of the tenant, of a key and of a model
    public_id = key_issue(tenant).plaintext[7:15]
    quota("set", "tokens_per_minute", "100000", "--burst", "20000", "--tenant", "acme")
    quota("set", "spend_per_day", "12.50", "--tenant", "acme", "--key", public_id)
    assert quota("set", "concurrent_requests", "8", "--tenant", "acme", "--model", "demo") == (
        "acme: 8 requests at a time\n"
    )
    assert stored() == [
        ("tokens_per_minute", "tenant", "", 100_000, 20_000),
        ("spend_per_day", "key", public_id, 12_500_000, None),
        ("concurrent_requests", "model", "demo", 8, None),
    ]
    # Then people read them as they wrote them
    lines = [line.split("  ") for line in quota("list", "--tenant", "acme").splitlines()]
    assert sorted(line[-1] for line in lines) == [
        "$12.50 US dollars a day of UTC",
        "100,000 tokens a minute, 20,000 at once",
        "8 requests at a time",
    ]
    # And may give one another figure, or end it
    quota("set", "tokens_per_minute", "5", "--tenant", "acme")
    quota("remove", "spend_per_day", "--tenant", "acme", "--key", public_id)
    assert {(name, limit) for name, _, _, limit, _ in stored()} == {
        ("tokens_per_minute", 5),
        ("concurrent_requests", 8),
    }
    with operator_scope():
        entries = AuditEntry.unscoped.filter(actor="command:quota").order_by("sequence")
        assert [entry.action for entry in entries] == ["quota.set"] * 4 + ["quota.remove"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["set", "tokens_per_minute", "5", "--tenant", "nobody"], "no tenant is called nobody"),
        (["set", "tokens_per_minute", "many", "--tenant", "acme"], "many is not a number"),
        (["set", "tokens_per_minute", "1.5", "--tenant", "acme"], "is whole"),
        (["set", "tokens_per_minute", "Infinity", "--tenant", "acme"], "not a number"),
        (["set", "tokens_per_minute", "-1", "--tenant", "acme"], "can be counted"),
        (["set", "requests_at_once", "1", "--tenant", "acme"], "invalid choice"),
        (["set", "tokens_per_minute", "5", "--tenant", "acme", "--key", "nosuchkey"], "no key with"),
        (["set", "tokens_per_minute", "5", "--tenant", "acme", "--key", "a", "--model", "b"], "not allowed"),
        (["set", "spend_per_day", "5", "--burst", "9", "--tenant", "acme"], "burst"),
        (["remove", "tokens_per_minute", "--tenant", "acme"], "has no such quota"),
    ],
)
def test_what_cannot_be_says_why_and_changes_nothing(tenant: Tenant, words: list[str], says: str) -> None:
    with pytest.raises(CommandError, match=says):
        quota(*words)
    assert stored() == []


def test_another_tenants_key_is_not_found(tenant: Tenant) -> None:
    public_id = key_issue(tenant_create("other")).plaintext[7:15]
    with pytest.raises(CommandError, match="acme has no key"):
        quota("set", "tokens_per_minute", "5", "--tenant", "acme", "--key", public_id)
    assert stored() == []
