"""The admin pages of quotas, weights and consents: money in dollars, every write a service's."""

import json
from decimal import Decimal
from http import HTTPStatus
from typing import Any

import pytest
from django.test import Client

from tenants.models import AuditEntry, Quota, Tenant, User
from tenants.quota_amounts import amount_shown
from tenants.scoping import operator_scope
from tests.factories import key_issue, tenant_create

ADD = "/admin/tenants/quota/add/"
LIST = "/admin/tenants/quota/"


@pytest.fixture
def staff(admin_user: User) -> Client:
    client = Client()
    assert client.login(username="admin", password="admin-password")
    return client


@pytest.fixture
def tenant(admin_user: User) -> Tenant:
    return tenant_create("acme")


def filled(tenant: Tenant, **more: Any) -> dict[str, Any]:
    blank = {"name": "tokens_per_minute", "key": "", "model": "", "amount": "1000", "burst": ""}
    return blank | {"tenant": str(tenant.id)} | more


def quotas() -> list[tuple[str, str, int, int | None]]:
    with operator_scope():
        return [(quota.name, quota.subject, quota.limit, quota.burst) for quota in Quota.unscoped.all()]


def actions() -> list[str]:
    with operator_scope():
        return [entry.action for entry in AuditEntry.unscoped.filter(actor="admin").order_by("sequence")]


def test_spend_is_entered_and_shown_in_dollars_and_stored_in_millionths(
    staff: Client, tenant: Tenant
) -> None:
    form = filled(tenant, name="spend_per_day", amount="12.50")
    assert staff.post(ADD, form).status_code == HTTPStatus.FOUND
    assert quotas() == [("spend_per_day", "", 12_500_000, None)]
    assert "$12.50" in staff.get(LIST).content.decode()
    with operator_scope():
        quota = Quota.unscoped.get()
    page = staff.get(f"{LIST}{quota.id}/change/").content.decode()
    assert "$12.50" in page
    assert "US dollars a day of UTC" in page
    assert 'name="_save"' not in page


@pytest.mark.parametrize(
    ("name", "limit", "shown"),
    [
        ("spend_per_day", 1, "$0.000001"),
        ("spend_per_month", 1_234_567_890_000, "$1,234,567.89"),
        ("spend_per_day", 1_500_000, "$1.50"),
        ("tokens_per_minute", 150_000, "150,000"),
        ("concurrent_requests", 10, "10"),
    ],
)
def test_an_amount_is_shown_as_people_write_it(name: str, limit: int, shown: str) -> None:
    assert amount_shown(Quota(name=name, limit=limit)) == shown


def test_setting_it_again_replaces_the_figures(staff: Client, tenant: Tenant) -> None:
    key = key_issue(tenant).key
    staff.post(ADD, filled(tenant, key=str(key.id), burst="50"))
    with operator_scope():
        quota = Quota.unscoped.get()
    # when: an operator asks to change it, the form comes filled in
    asked = staff.post(LIST, {"action": "change", "_selected_action": str(quota.id)})
    form = staff.get(asked["Location"]).context["adminform"].form
    assert {name: form[name].value() for name in ("name", "amount", "burst")} == {
        "name": "tokens_per_minute",
        "amount": "1000",
        "burst": "50",
    }
    assert (form["tenant"].value(), form["key"].value()) == (str(tenant.id), str(key.id))
    staff.post(ADD, filled(tenant, key=str(key.id), amount="2000"))
    assert quotas() == [("tokens_per_minute", key.public_id, 2000, None)]
    staff.post(LIST, {"action": "remove", "_selected_action": str(quota.id)})
    assert quotas() == []
    assert actions() == ["quota.set", "quota.set", "quota.remove"]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"amount": "0"}, "greater than or equal to"),
        ({"amount": "10.5"}, "whole"),
        ({"name": "spend_per_day", "amount": "0.0000001"}, "6 decimal places"),
        ({"name": "spend_per_day", "amount": "9007199254740991"}, "can be counted"),
        ({"name": "concurrent_requests", "burst": "5"}, "Only a quota per minute"),
        ({"burst": "0"}, "greater than or equal to"),
        ({"amount": "NaN"}, "Enter a number"),
        ({"model": "m" * 201}, "at most 200 characters"),
    ],
)
def test_what_cannot_be_is_said_beside_the_field(
    staff: Client, tenant: Tenant, wrong: dict[str, str], said: str
) -> None:
    page = staff.post(ADD, filled(tenant, **wrong))
    assert page.status_code == HTTPStatus.OK
    assert said in page.content.decode()
    assert quotas() == []


def test_a_quota_is_of_one_subject_of_its_own_tenant(staff: Client, tenant: Tenant) -> None:
    mine, theirs = key_issue(tenant).key, key_issue(tenant_create()).key
    for wrong, said in (
        ({"key": str(mine.id), "model": "m"}, "not of both"),
        ({"key": str(theirs.id)}, "another tenant"),
    ):
        page = staff.post(ADD, filled(tenant, **wrong))
        assert page.status_code == HTTPStatus.OK
        assert said in page.content.decode()
    assert quotas() == []


def test_weight_and_consents_are_set_by_actions_that_ask(staff: Client, tenant: Tenant) -> None:
    path, chosen = "/admin/tenants/tenant/", {"_selected_action": str(tenant.id), "confirmed": "1"}
    refused = staff.post(path, {"action": "weight", "weight": "1000", **chosen})
    assert refused.status_code == HTTPStatus.OK
    assert staff.post(path, {"action": "weight", "weight": "2.5", **chosen}).status_code == HTTPStatus.FOUND
    consents = {"action": "consents", "accepts_batch": "on", **chosen}
    assert staff.post(path, consents).status_code == HTTPStatus.FOUND
    with operator_scope():
        set_ = Tenant.unscoped.get()
        weighed = json.loads(AuditEntry.unscoped.get(action="tenant.weight").diff)
    assert (set_.weight, set_.accepts_smaller_model, set_.accepts_batch) == (Decimal("2.50"), False, True)
    assert weighed == {"before": "1.00", "after": "2.50"}
    assert actions() == ["tenant.weight", "tenant.consents"]


def test_staff_without_rights_set_no_quota(tenant: Tenant) -> None:
    with operator_scope():
        User.objects.create_user("bob", password="bob-password-1", is_staff=True)
    client = Client()
    assert client.login(username="bob", password="bob-password-1")
    assert client.post(ADD, filled(tenant)).status_code == HTTPStatus.FORBIDDEN
    assert quotas() == []
