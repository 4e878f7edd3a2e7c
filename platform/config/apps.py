"""Loads the Celery app and the system checks in every Django process."""

from django.apps import AppConfig


class PlatformConfig(AppConfig):
    name = "config"
    label = "config"
    verbose_name = "Sluice"

    def ready(self) -> None:
        import config.celery
        import config.checks  # noqa: F401
