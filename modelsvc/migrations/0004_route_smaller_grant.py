"""Operators say which model stands in for another."""

from django.db import migrations

from tenants.rls import grant_update


class Migration(migrations.Migration):
    dependencies = [("modelsvc", "0003_route_smaller"), ("tenants", "0004_quota_row_security")]

    operations = [grant_update("modelsvc_modelroute", "smaller_id")]
