"""`manage.py reconcile`: do the ledger, the usage events and the workers' counts agree? Exit 1 when not."""

import argparse
import io
from datetime import timedelta
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.utils import timezone
from rich.console import Console
from rich.table import Table

from billing.selectors import SPOOL_GRACE_S, Difference, ledger_differences, worker_differences
from tenants.scoping import operator_scope

CHECKS = ("ledger sum", "usage = ledger", "worker = usage")


class Command(BaseCommand):
    help = (
        "Check that the ledger sums to zero, that every usage event has its ledger pair, and workers agree."
    )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--hours", type=float, default=None, help="look back this far (default: all)")
        parser.add_argument(
            "--grace-s",
            type=float,
            default=SPOOL_GRACE_S,
            help="seconds a usage event may lag behind the worker's final count",
        )

    def handle(self, *args: Any, hours: float | None, grace_s: float, **options: Any) -> None:
        since = None if hours is None else timezone.now() - timedelta(hours=hours)
        with operator_scope():
            differences = ledger_differences(since=since) + worker_differences(since=since, grace_s=grace_s)
        table = io.StringIO()
        Console(file=table, width=120).print(_table(differences))
        self.stdout.write(table.getvalue())
        if differences:
            raise CommandError(f"{len(differences)} differences", returncode=1)


def _table(differences: list[Difference]) -> Table:
    table = Table("check", "subject", "expected", "found")
    for check in CHECKS:
        failed = [difference for difference in differences if difference.check == check]
        for difference in failed:
            table.add_row(check, difference.subject, difference.expected, difference.found)
        if not failed:
            table.add_row(check, "all", "equal", "equal")
    return table
