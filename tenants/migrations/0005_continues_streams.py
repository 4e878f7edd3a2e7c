"""Whether another replica goes on with a tenant's streams, and who may say so."""

from django.db import migrations, models

from tenants.rls import grant_update


class Migration(migrations.Migration):
    dependencies = [("tenants", "0004_quota_row_security")]

    operations = [
        migrations.AddField(
            model_name="tenant",
            name="continues_streams",
            field=models.BooleanField(
                default=False,
                help_text="Where a replica is lost, another one goes on with its streams instead of an error.",
            ),
        ),
        grant_update("tenants_tenant", "continues_streams"),
    ]
