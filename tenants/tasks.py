"""Celery tasks of this app. Each calls one function, nothing else."""

from importlib import import_module

from celery import shared_task
from django.conf import settings


@shared_task(name="tenants.tasks.sessions_clear")
def sessions_clear() -> None:
    """Delete expired sessions of signed-in users."""
    import_module(settings.SESSION_ENGINE).SessionStore.clear_expired()
