"""Gateways hold the current prices: they are told of a new one."""

from django.db import migrations

from tenants.rls import notify_snapshot


class Migration(migrations.Migration):
    dependencies = [("billing", "0002_row_security")]

    operations = [notify_snapshot("billing_price")]
