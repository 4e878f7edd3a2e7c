"""The admin pages: who gets in, keys shown once, tables that only services write."""

import json
import re
from http import HTTPStatus

import pytest
from django.apps import apps
from django.contrib import admin
from django.contrib.auth.models import Group, Permission
from django.test import Client
from django.urls import reverse

from tenants import services
from tenants.models import ApiKey, AuditEntry, Tenant, User
from tenants.scoping import operator_scope, tenancy_of
from tests.conftest import Database
from tests.factories import key_issue, tenant_create

KEY = re.compile(r"sk-slc-[0-9A-Za-z]{8}-[0-9A-Za-z]{38}")


@pytest.fixture
def staff(admin_user: User) -> Client:
    client = Client()
    assert client.login(username="admin", password="admin-password")
    return client


def test_the_password_lets_in_and_the_cookie_is_strict(admin_user: User) -> None:
    client = Client()
    response = client.post(
        "/admin/login/", {"username": "admin", "password": "admin-password", "next": "/admin/"}
    )
    assert response.status_code == HTTPStatus.FOUND
    cookie = response.cookies["sessionid"]
    assert cookie["httponly"]
    assert cookie["samesite"] == "Strict"
    assert client.get("/admin/").status_code == HTTPStatus.OK


@pytest.mark.parametrize("path", ["/admin/", "/admin/tenants/apikey/", "/admin/tenants/tenant/add/"])
def test_strangers_and_plain_users_see_nothing(database: Database, path: str) -> None:
    with operator_scope():
        User.objects.create_user("ann", password="ann-password-1")
    client = Client()
    assert client.get(path).status_code == HTTPStatus.FOUND
    assert client.login(username="ann", password="ann-password-1")
    assert client.get(path).status_code == HTTPStatus.FOUND


def test_every_page_opens(staff: Client) -> None:
    """Given rows of two tenants, each list shows them, each form opens."""
    for _ in range(2):
        key_issue(tenant_create())
    for model, model_admin in admin.site._registry.items():
        name = f"{model._meta.app_label}_{model._meta.model_name}"
        listing = staff.get(reverse(f"admin:{name}_changelist"))
        assert listing.status_code == HTTPStatus.OK, model
        add = staff.get(reverse(f"admin:{name}_add"))
        may_add = model_admin.has_add_permission(listing.wsgi_request)
        assert add.status_code == (HTTPStatus.OK if may_add else HTTPStatus.FORBIDDEN), model
    with operator_scope():
        rows = [Tenant.unscoped.first(), ApiKey.unscoped.first(), AuditEntry.unscoped.first()]
    for row in rows:
        assert row is not None
        page = staff.get(reverse(f"admin:tenants_{row._meta.model_name}_change", args=[row.pk]))
        assert page.status_code == HTTPStatus.OK
        assert b'name="_save"' not in page.content


def test_a_key_is_shown_once(staff: Client) -> None:
    tenant = tenant_create("acme")
    page = staff.post(
        "/admin/tenants/apikey/add/",
        {
            "tenant": str(tenant.id),
            "name": "from the admin",
            "allowed_models": "small large",
            "expires_at_0": "",
            "expires_at_1": "",
        },
    )
    assert page.status_code == HTTPStatus.OK
    [plaintext] = KEY.findall(page.content.decode())
    assert "no-store" in page.headers["Cache-Control"]
    with operator_scope():
        key = ApiKey.unscoped.get()
        entry = AuditEntry.unscoped.get(action="key.issue")
    assert (key.public_id, key.last4, key.allowed_models) == (
        plaintext[7:15],
        plaintext[-4:],
        ["large", "small"],
    )
    assert (entry.actor, entry.target) == ("admin", key.public_id)
    assert key.created_by is not None
    for path in ("/admin/tenants/apikey/", f"/admin/tenants/apikey/{key.id}/change/", "/admin/"):
        assert plaintext[16:48] not in staff.get(path).content.decode()
    assert plaintext not in str(staff.cookies)


def test_actions_call_the_services(staff: Client) -> None:
    tenant = tenant_create("acme")
    key = key_issue(tenant).key

    def act(path: str, action: str, row: Tenant | ApiKey) -> None:
        response = staff.post(path, {"action": action, "_selected_action": str(row.pk)})
        assert response.status_code == HTTPStatus.FOUND

    act("/admin/tenants/apikey/", "revoke", key)
    act("/admin/tenants/tenant/", "suspend", tenant)
    act("/admin/tenants/tenant/", "resume", tenant)
    with operator_scope():
        assert ApiKey.unscoped.get().revoked_at is not None
        actions = list(
            AuditEntry.unscoped.filter(actor="admin").order_by("sequence").values_list("action", flat=True)
        )
    assert actions == ["key.revoke", "tenant.suspend", "tenant.resume"]


def test_actions_that_need_an_answer_ask_for_it_first(staff: Client) -> None:
    tenant = tenant_create("acme")
    key = key_issue(tenant).key
    path = "/admin/tenants/tenant/"
    close = {"action": "close", "_selected_action": str(tenant.pk)}
    settings = {"action": "settings", "_selected_action": str(tenant.pk)}
    for asked in (close, close | {"confirmed": "1", "reason": ""}, settings):
        page = staff.post(path, asked)
        assert page.status_code == HTTPStatus.OK
        assert f'value="{tenant.pk}"' in page.content.decode()
    refused = staff.post(path, settings | {"confirmed": "1", "max_output_tokens": "0"})
    assert refused.status_code == HTTPStatus.OK
    with operator_scope():
        assert not AuditEntry.unscoped.filter(actor="admin").exists()

    chosen = {"confirmed": "1", "zero_retention": "on", "max_output_tokens": "500"}
    assert staff.post(path, settings | chosen).status_code == HTTPStatus.FOUND
    limit = {"action": "limit", "_selected_action": str(key.pk), "confirmed": "1", "max_open_requests": "3"}
    assert staff.post("/admin/tenants/apikey/", limit).status_code == HTTPStatus.FOUND
    ended = staff.post(path, close | {"confirmed": "1", "reason": "left us"})
    assert ended.status_code == HTTPStatus.FOUND
    with operator_scope():
        entries = AuditEntry.unscoped.filter(actor="admin").order_by("sequence")
        assert [entry.action for entry in entries] == ["tenant.settings", "key.limit", "tenant.close"]
        assert json.loads(entries[2].diff)["reason"] == "left us"
        assert Tenant.unscoped.get().status == "closed"


def test_a_closed_tenant_is_neither_resumed_nor_given_a_key(staff: Client) -> None:
    tenant = tenant_create("acme")
    with operator_scope():
        services.tenant_close(tenant_id=tenant.id, actor="test", reason="left us")
    resume = {"action": "resume", "_selected_action": str(tenant.pk)}
    page = staff.post("/admin/tenants/tenant/", resume, follow=True)
    assert "closed for good" in page.content.decode()
    form = {"tenant": str(tenant.id), "name": "n", "expires_at_0": "", "expires_at_1": ""}
    assert "closed for good" in staff.post("/admin/tenants/apikey/add/", form).content.decode()
    with operator_scope():
        assert not ApiKey.unscoped.exists()


def test_a_tenant_and_a_member_are_added_through_services(staff: Client, admin_user: User) -> None:
    assert (
        staff.post("/admin/tenants/tenant/add/", {"slug": "acme", "name": "Acme"}).status_code
        == HTTPStatus.FOUND
    )
    with operator_scope():
        tenant = Tenant.unscoped.get()
    form = {"tenant": str(tenant.id), "user": str(admin_user.pk), "role": "owner"}
    assert staff.post("/admin/tenants/member/add/", form).status_code == HTTPStatus.FOUND
    with operator_scope():
        actions = set(AuditEntry.unscoped.filter(actor="admin").values_list("action", flat=True))
    assert actions == {"tenant.create", "member.add"}


def test_staff_without_rights_run_no_action(database: Database) -> None:
    tenant = tenant_create("acme")
    key = key_issue(tenant).key
    with operator_scope():
        User.objects.create_user("bob", password="bob-password-1", is_staff=True)
    client = Client()
    assert client.login(username="bob", password="bob-password-1")
    response = client.post("/admin/tenants/apikey/", {"action": "revoke", "_selected_action": str(key.pk)})
    assert response.status_code == HTTPStatus.FORBIDDEN
    with operator_scope():
        assert ApiKey.unscoped.get().revoked_at is None


def test_staff_cannot_give_themselves_rights(database: Database) -> None:
    """Given staff with every right that can be handed out, none of them makes a superuser."""
    with operator_scope():
        bob = User.objects.create_user("bob", password="bob-password-1", is_staff=True)
        bob.user_permissions.set(Permission.objects.all())
        root = User.objects.create_superuser("root", password="root-password-1")
        group = Group.objects.create(name="everybody")
    client = Client()
    assert client.login(username="bob", password="bob-password-1")
    new_password = {"password1": "mallory-password", "password2": "mallory-password"}
    for path, form in (
        (f"/admin/tenants/user/{bob.pk}/change/", {"username": "bob", "is_superuser": "on"}),
        (f"/admin/tenants/user/{root.pk}/password/", {**new_password, "usable_password": "true"}),
        (f"/admin/tenants/user/{root.pk}/delete/", {"post": "yes"}),
        ("/admin/tenants/user/add/", {"username": "eve", **new_password, "usable_password": "true"}),
        (f"/admin/auth/group/{group.pk}/change/", {"name": "everybody", "permissions": ["1"]}),
        ("/admin/auth/group/add/", {"name": "mine"}),
    ):
        assert client.post(path, form).status_code == HTTPStatus.FORBIDDEN, path
    with operator_scope():
        assert set(User.objects.values_list("username", "is_superuser")) == {("bob", False), ("root", True)}
        assert User.objects.get(pk=root.pk).check_password("root-password-1")
        assert list(Group.objects.values_list("name", flat=True)) == ["everybody"]
        assert not group.permissions.exists()


def test_what_superusers_do_to_accounts_is_in_the_audit_log(staff: Client) -> None:
    words = {"password1": "long-enough-words", "password2": "long-enough-words", "usable_password": "true"}
    assert (
        staff.post("/admin/tenants/user/add/", {"username": "ann", **words}).status_code == HTTPStatus.FOUND
    )
    with operator_scope():
        ann = User.objects.get(username="ann")
    path = f"/admin/tenants/user/{ann.pk}"
    form = {"username": "ann", "is_active": "on", "is_staff": "on", "date_joined_0": "2026-01-01"}
    form |= {"date_joined_1": "00:00:00", "last_login_0": "", "last_login_1": ""}
    assert staff.post(f"{path}/change/", form).status_code == HTTPStatus.FOUND
    assert staff.post(f"{path}/password/", words).status_code == HTTPStatus.FOUND
    assert staff.post(f"{path}/delete/", {"post": "yes"}).status_code == HTTPStatus.FORBIDDEN
    with operator_scope():
        entries = AuditEntry.unscoped.filter(tenant=None, actor="admin", target="ann").order_by("sequence")
        told = [(entry.action, json.loads(entry.diff)) for entry in entries]
    rights = {"is_active": True, "is_staff": False, "is_superuser": False}
    staff_rights = {**rights, "is_staff": True}
    assert told[0] == ("user.create", {**rights, "changed": []})
    assert told[1][0] == "user.change"
    assert "Staff status" in told[1][1]["changed"]
    assert {name: told[1][1][name] for name in rights} == staff_rights
    assert told[2] == ("user.change", {**staff_rights, "changed": ["password"]})
    assert "long-enough-words" not in str(told)


def test_no_tenant_row_is_edited_by_hand(staff: Client) -> None:
    request = staff.get("/admin/").wsgi_request
    for model in apps.get_models():
        if tenancy_of(model) == "tenant" and model in admin.site._registry:
            assert not admin.site._registry[model].has_change_permission(request), model
            assert not admin.site._registry[model].has_delete_permission(request), model
