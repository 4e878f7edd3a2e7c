"""Django app: tenants, their members, API keys and audit log."""

from django.apps import AppConfig


class TenantsConfig(AppConfig):
    name = "tenants"
    verbose_name = "Tenants"
