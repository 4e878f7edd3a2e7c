"""Grants, change notices, and the foreign key that keeps a route on versions of its own model."""

from django.db import migrations

from tenants.rls import grant_global, notify_snapshot

READ = ("SELECT",)
# Nobody deletes: bills name models and digests. What a digest stands for never changes either.
UPDATABLE = {
    "modelsvc_model": "name, owned_by",
    "modelsvc_modelversion": "state",
    "modelsvc_modelroute": "version_id, max_output_tokens, revision, updated_at",
}


class Migration(migrations.Migration):
    dependencies = [("modelsvc", "0001_initial"), ("tenants", "0002_row_security")]

    operations = [
        migrations.RunSQL(
            "ALTER TABLE modelsvc_modelroute ADD CONSTRAINT route_version_of_model "
            "FOREIGN KEY (version_id, model_id) REFERENCES modelsvc_modelversion (id, model_id)",
            "ALTER TABLE modelsvc_modelroute DROP CONSTRAINT route_version_of_model",
        ),
        *(
            operation
            for table, columns in UPDATABLE.items()
            for operation in (
                grant_global(
                    table, app=READ, operator=("SELECT", "INSERT", f"UPDATE ({columns})"), gateway=READ
                ),
                notify_snapshot(table),
            )
        ),
    ]
