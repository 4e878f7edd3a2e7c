"""Scheduled jobs: every one exists, and does what it says."""

from datetime import timedelta

from django.conf import settings
from django.contrib.sessions.models import Session
from django.utils import timezone

from config.celery import app
from tenants.tasks import sessions_clear
from tests.conftest import Database


def test_every_scheduled_task_exists() -> None:
    app.loader.import_default_modules()
    assert {entry["task"] for entry in settings.CELERY_BEAT_SCHEDULE.values()} <= set(app.tasks)


def test_expired_sessions_are_cleared(database: Database) -> None:
    """As the application role."""
    now = timezone.now()
    for name, expires in (("old", now - timedelta(days=1)), ("new", now + timedelta(days=1))):
        Session.objects.create(session_key=name, session_data="", expire_date=expires)
    sessions_clear()
    assert list(Session.objects.values_list("session_key", flat=True)) == ["new"]
