"""Who may do what with which table: row security on tenant tables, grants on the platform's own."""

from django.db import migrations

from tenants.rls import CRUD, append_only, enable_rls, functions_create, grant_global, notify_snapshot

READ = ("SELECT",)
READ_WRITE = ("SELECT", "INSERT", "UPDATE")


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
            "tenants_tenant", tenant_column="id", app=READ, operator=READ_WRITE, gateway=READ, gateway_sees="all"
        ),
        enable_rls("tenants_member", app=CRUD, operator=CRUD),
        enable_rls("tenants_apikey", app=READ_WRITE, operator=READ_WRITE, gateway=READ, gateway_sees="all"),
        enable_rls("tenants_auditentry", app=("SELECT", "INSERT"), operator=("SELECT", "INSERT")),
        append_only("tenants_auditentry"),
        notify_snapshot("tenants_tenant"),
        notify_snapshot("tenants_apikey"),
        # Signing in happens before anybody is known to be staff, so as the application role.
        grant_global("tenants_user", app=("SELECT", "UPDATE (last_login, password)")),
        grant_global("django_session", app=CRUD),
        grant_global("tenants_user_groups", app=READ),
        grant_global("tenants_user_user_permissions", app=READ),
        grant_global("auth_group", app=READ),
        grant_global("auth_group_permissions", app=READ),
        grant_global("auth_permission", app=READ, operator=READ),
        grant_global("django_content_type", app=READ, operator=READ),
        grant_global("django_admin_log", operator=("SELECT", "INSERT")),
    ]
