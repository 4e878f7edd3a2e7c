"""Who may do what with quotas, and with what was added to tenants."""

from django.db import migrations

from tenants.rls import enable_rls, grant_update, notify_snapshot

READ = ("SELECT",)


class Migration(migrations.Migration):
    dependencies = [("tenants", "0003_quotas_weight_consents")]

    operations = [
        grant_update("tenants_tenant", "weight, accepts_smaller_model, accepts_batch"),
        # A tenant sees what bounds it. What a quota is of never changes; that it was, the audit log keeps.
        enable_rls(
            "tenants_quota",
            app=READ,
            operator=("SELECT", "INSERT", 'UPDATE ("limit", burst, updated_at)', "DELETE"),
            gateway=READ,
            gateway_sees="all",
        ),
        notify_snapshot("tenants_quota"),
    ]
