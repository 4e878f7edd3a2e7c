"""Who may do what with which table: row security on tenant tables, grants on the platform's own."""

from django.db import migrations

from tenants.rls import append_only, enable_rls, functions_create, grant_global, notify_snapshot

READ = ("SELECT",)
ADD = ("SELECT", "INSERT")
LINK = ("SELECT", "INSERT", "DELETE")
CRUD = ("SELECT", "INSERT", "UPDATE", "DELETE")


class Migration(migrations.Migration):
    dependencies = [
        ("tenants", "0001_initial"),
        ("admin", "0003_logentry_add_action_flag_choices"),
        ("auth", "0012_alter_user_first_name_max_length"),
        ("contenttypes", "0002_remove_content_type_name"),
        ("sessions", "0001_initial"),
    ]

    operations = [
        functions_create(),
        # Nobody deletes a tenant or a key: both are ended by a state, and their ledger and audit rows stay.
        enable_rls(
            "tenants_tenant",
            tenant_column="id",
            app=READ,
            operator=(*ADD, "UPDATE (status, zero_retention, max_output_tokens)"),
            gateway=READ,
            gateway_sees="all",
        ),
        # The one thing that is destroyed with a tenant: without it nothing that was sealed can be read.
        enable_rls(
            "tenants_tenantdatakey",
            app=READ,
            operator=(*ADD, "UPDATE (master_key_id, wrapped)", "DELETE"),
            gateway=READ,
            gateway_sees="all",
        ),
        enable_rls("tenants_member", app=ADD, operator=ADD),
        # What a key is and what it may use never change: a digest that could be replaced would be another's key.
        enable_rls(
            "tenants_apikey",
            app=(*ADD, "UPDATE (revoked_at)"),
            operator=(*ADD, "UPDATE (revoked_at, max_open_requests)"),
            gateway=READ,
            gateway_sees="all",
        ),
        enable_rls("tenants_auditentry", app=ADD, operator=ADD),
        append_only("tenants_auditentry"),
        notify_snapshot("tenants_tenant"),
        notify_snapshot("tenants_apikey"),
        # A session begins before anybody is known to be staff, so as the application role. Passwords are not
        # its to write: whoever could, would set an operator's.
        grant_global("tenants_user", app=("SELECT", "UPDATE (last_login)"), operator=(*ADD, "UPDATE")),
        grant_global("django_session", app=CRUD, operator=CRUD),
        grant_global("tenants_user_groups", app=READ, operator=LINK),
        grant_global("tenants_user_user_permissions", app=READ, operator=LINK),
        grant_global("auth_group", app=READ, operator=(*ADD, "UPDATE")),
        grant_global("auth_group_permissions", app=READ, operator=LINK),
        grant_global("auth_permission", app=READ, operator=READ),
        grant_global("django_content_type", app=READ, operator=READ),
        grant_global("django_admin_log", operator=ADD),
    ]
