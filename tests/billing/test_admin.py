"""Admin pages of billing: history is looked at, never touched; a price is published by a form."""

import asyncio
from datetime import UTC, datetime, timedelta

import psycopg
import pytest
from django.test import Client

from billing.ledger import usage_record
from billing.models import LedgerEntry, Price, UsageConflict, UsageEvent
from tenants.models import AuditEntry, User
from tenants.scoping import operator_scope
from tests.billing.shop import Shop


@pytest.fixture
def staff(shop: Shop, admin_user: User) -> Client:
    async def run() -> None:
        async with await psycopg.AsyncConnection.connect(shop.database.gateway_url, autocommit=True) as conn:
            await usage_record(conn, [shop.usage(1)])
            await usage_record(conn, [shop.usage(1, output_tokens=6)])

    asyncio.run(run())
    client = Client()
    assert client.login(username="admin", password="admin-password")
    return client


@pytest.mark.parametrize("model", [UsageEvent, LedgerEntry, UsageConflict])
def test_history_is_read_only(staff: Client, model: type[UsageEvent | LedgerEntry | UsageConflict]) -> None:
    base = f"/admin/billing/{model._meta.model_name}/"
    with operator_scope():
        row = model.unscoped.first()
    assert row is not None
    listed = staff.get(base)
    assert listed.status_code == 200
    assert str(row.request_id) in listed.content.decode()
    assert staff.get(f"{base}{row.pk}/change/").status_code == 200
    assert staff.get(f"{base}add/").status_code == 403
    assert staff.post(f"{base}{row.pk}/change/", {"attempt": 2}).status_code == 403
    assert staff.post(f"{base}{row.pk}/delete/", {"post": "yes"}).status_code == 403
    staff.post(base, {"action": "delete_selected", "_selected_action": [row.pk], "post": "yes"})
    with operator_scope():
        assert model.unscoped.filter(pk=row.pk).exists()


def test_any_search_text_is_answered(staff: Client) -> None:
    for page in ("usageevent", "ledgerentry", "usageconflict", "workerusage"):
        for search in ("not-an-id", "0199d0a0-0000-7000-8000-000000000001", "ünïcode"):
            assert staff.get(f"/admin/billing/{page}/", {"q": search}).status_code == 200


def price_form(moment: datetime) -> dict[str, object]:
    return {
        "model": "m",
        "prompt_micro_usd_per_mtok": 3_000_000,
        "cached_micro_usd_per_mtok": 1,
        "output_micro_usd_per_mtok": 2,
        "effective_from_0": moment.date().isoformat(),
        "effective_from_1": moment.time().isoformat(timespec="seconds"),
    }


def test_price_is_published_with_an_audit_entry(staff: Client) -> None:
    moment = datetime.now(UTC) + timedelta(hours=1)
    assert staff.post("/admin/billing/price/add/", price_form(moment)).status_code == 302
    with operator_scope():
        newest = Price.objects.get(version=2)
        entry = AuditEntry.unscoped.get(action="price.publish", target="m v2")
    assert (newest.model, newest.prompt_micro_usd_per_mtok) == ("m", 3_000_000)
    assert entry.actor == "admin"
    assert staff.get("/admin/billing/price/").status_code == 200
    assert staff.post(f"/admin/billing/price/{newest.pk}/change/", price_form(moment)).status_code == 403


def test_price_without_a_moment_holds_from_now_on(staff: Client) -> None:
    before = datetime.now(UTC)
    form = price_form(before) | {"effective_from_0": "", "effective_from_1": ""}
    assert staff.post("/admin/billing/price/add/", form).status_code == 302
    with operator_scope():
        assert before <= Price.objects.get(version=2).effective_from <= datetime.now(UTC)


def test_backdated_price_is_refused_beside_its_field(staff: Client) -> None:
    refused = staff.post("/admin/billing/price/add/", price_form(datetime(2025, 6, 1, tzinfo=UTC)))
    assert refused.status_code == 200
    assert "must start after now" in refused.content.decode()
    with operator_scope():
        assert Price.objects.count() == 1
