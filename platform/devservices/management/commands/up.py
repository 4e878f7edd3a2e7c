"""`manage.py up`: the whole of Sluice on this machine, until Ctrl-C."""

import sys
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from devservices.up import up


class Command(BaseCommand):
    help = "Start PostgreSQL, Valkey and every Sluice process, and print how to use them."
    requires_system_checks = []

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--once", action="store_true", help="check that a request works, then stop")

    def handle(self, *args: Any, **options: Any) -> None:
        sys.exit(up(once=options["once"]))
