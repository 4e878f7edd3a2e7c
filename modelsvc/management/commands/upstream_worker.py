"""`manage.py upstream_worker NAME`: becomes the worker of an upstream. Its environment has the server's key
and none of Django's secrets."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import connections

from config.environment import dispatch_address, weights_dir
from devservices.guardian import MARK_VARIABLE
from gpuworker.upstream_terms import KEY_VARIABLE
from modelsvc.services import RegistryError
from modelsvc.upstream_keys import UpstreamKeyUnreadable
from modelsvc.upstreams import UpstreamLaunch, upstream_launch
from tenants.scoping import operator_scope

_PASSED_ON = ("PATH", "HOME", "USER", "LANG", "LC_ALL", "TZ", "TMPDIR", MARK_VARIABLE)
_PASSED_PREFIXES = ("PYTHON", "SSL_", "SLUICE_WIRE_")  # the wire's secret and certificates


class Command(BaseCommand):
    help = "Run the worker of an upstream server in this process."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("name", help="as `manage.py upstream list` shows it")
        parser.add_argument(
            "--listen", required=True, help="where gateways connect: unix:/path, tcp://host:port"
        )
        parser.add_argument("--spool", type=Path, required=True, help="usage waits there for the controller")
        parser.add_argument("--gateway", action="append", default=[], help="one that may connect; none: any")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            with operator_scope():
                launch = upstream_launch(name=options["name"])
        except (RegistryError, UpstreamKeyUnreadable) as error:
            raise CommandError(str(error)) from error
        connections.close_all()
        told = worker_arguments(launch, options["listen"], options["spool"], options["gateway"])
        arguments = [sys.executable, *told]
        os.execve(sys.executable, arguments, worker_environment(launch, dict(os.environ)))  # noqa: S606


def worker_arguments(
    launch: UpstreamLaunch, listen: str, spool: Path, gateways: Sequence[str] = ()
) -> list[str]:
    arguments = ["-m", "gpuworker", "--id", f"upstream-{launch.name}", "--listen", listen]
    arguments += ["--dispatch", dispatch_address(), "--weights", str(weights_dir() / launch.digest)]
    arguments += ["--model", launch.slug, "--spool", str(spool), "--backend", launch.kind]
    arguments += ["--max-rows", str(launch.max_rows), "--upstream-url", launch.url]
    arguments += ["--upstream-model", launch.model_name, "--upstream-revision", launch.revision]
    arguments += ["--upstream-flavour", launch.flavour] if launch.flavour else []
    for gateway in gateways:
        arguments += ["--gateway", gateway]
    for name, seconds in launch.options.items():
        arguments += [f"--upstream-{name.replace('_', '-')}", str(seconds)]
    return arguments


def worker_environment(launch: UpstreamLaunch, environment: dict[str, str]) -> dict[str, str]:
    passed = {n: v for n, v in environment.items() if n in _PASSED_ON or n.startswith(_PASSED_PREFIXES)}
    return passed | {KEY_VARIABLE: launch.key}
