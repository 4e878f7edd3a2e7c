"""`manage.py data_keys_rewrap`: after a new master key was put first in SLUICE_MASTER_KEY."""

from typing import Any

from django.core.management.base import BaseCommand, CommandError

from tenants.data_keys import DataKeyUnreadable
from tenants.rewrap import data_keys_rewrap
from tenants.scoping import operator_scope


class Command(BaseCommand):
    help = "Wrap every tenant's data key by the first master key. The others may be dropped afterwards."

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            with operator_scope():
                count = data_keys_rewrap(actor="command:data_keys_rewrap")
        except DataKeyUnreadable as error:
            raise CommandError(str(error)) from error
        self.stdout.write(f"{count} data keys were wrapped anew")
