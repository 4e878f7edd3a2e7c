"""`manage.py wire_certificates`: an authority and certificates for TLS between processes of a test fleet."""

from argparse import ArgumentParser
from datetime import timedelta
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from devservices.wire_certificates import AUTHORITY_DAYS, DAYS, CertificateError, certificates_make


class Command(BaseCommand):
    help = "Make certificates for TLS between processes, and their authority when there is none yet."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("names", nargs="+", metavar="ROLE/ID", help="worker/worker-0, gateway/*, …")
        parser.add_argument("--out", type=Path, required=True, metavar="DIR")
        parser.add_argument("--days", type=int, default=DAYS)

    def handle(self, *args: Any, **options: Any) -> None:
        if not 1 <= options["days"] <= AUTHORITY_DAYS:
            raise CommandError(f"--days is between 1 and {AUTHORITY_DAYS}, as long as the authority's")
        try:
            made = certificates_make(options["out"], options["names"], valid=timedelta(days=options["days"]))
        except (CertificateError, OSError) as error:
            raise CommandError(str(error)) from None
        for path in made:
            self.stdout.write(str(path))
