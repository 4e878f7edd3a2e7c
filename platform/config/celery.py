"""The Celery app: `celery -A config worker`, `celery -A config beat`. Tasks call a service, nothing else."""

import os
from typing import Any

from celery import Celery
from celery.signals import beat_init, celeryd_init

from config import environment

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")

app = Celery("sluice")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()


@celeryd_init.connect
@beat_init.connect
def serving_check(**kwargs: Any) -> None:
    """A worker without its secrets stops here, instead of asking a broker that does not exist for ever."""
    environment.serving_require()
