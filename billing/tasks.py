"""Celery tasks of this app. Each calls one function, nothing else but saying what it found."""

import logging
from datetime import timedelta

from celery import shared_task
from django.utils import timezone

from billing import services
from billing.selectors import ledger_differences, worker_differences
from tenants.scoping import operator_scope

LOOK_BACK = timedelta(hours=3)  # the task runs hourly; `manage.py reconcile` looks at everything

logger = logging.getLogger(__name__)


@shared_task(name="billing.tasks.idempotency_expire")
def idempotency_expire() -> int:
    """How many records were deleted."""
    with operator_scope():
        return services.idempotency_expire()


@shared_task(name="billing.tasks.ledger_verify")
def ledger_verify() -> list[str]:
    """The differences among recent usage, ledger and worker counts, each also logged as an error."""
    since = timezone.now() - LOOK_BACK
    with operator_scope():
        differences = ledger_differences(since=since) + worker_differences(since=since)
    for difference in differences:
        logger.error("ledger: %s", difference)
    return [str(difference) for difference in differences]
