"""`manage.py deployment …`: how many replicas of a model's versions are to run, and how many do."""

from typing import Any

import msgspec
from django.core.exceptions import ValidationError
from django.core.management.base import BaseCommand, CommandError, CommandParser
from redis import Redis
from redis.exceptions import RedisError

from config import environment
from modelsvc.deployments import deployment_set, deployments_wanted
from modelsvc.fleet_contracts import FLEET_KEY, FleetSnapshot
from modelsvc.models import Deployment
from modelsvc.services import RegistryError
from tenants.scoping import operator_scope

ACTOR = "command:deployment"
ANSWER_S = 2.0


class Command(BaseCommand):
    help = (
        "Say how many replicas are to run. Your supervisor starts them; here and in metrics it is compared."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        verbs = parser.add_subparsers(dest="verb", required=True)
        setting = verbs.add_parser("set", help="so many replicas from now on; 0: none")
        setting.add_argument("slug", help="the model")
        setting.add_argument("replicas", type=int)
        setting.add_argument("--digest", default="", help="the version; default: the routed one")
        setting.add_argument("--role", choices=Deployment.Role.values, default=Deployment.Role.BOTH)
        verbs.add_parser("list", help="what is to run and what does, one deployment a line")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            with operator_scope():
                getattr(self, f"_{options['verb']}")(options)
        except RegistryError as error:
            raise CommandError(f"{error.code}: {error}") from error
        except ValidationError as error:
            raise CommandError(" ".join(error.messages)) from error

    def _set(self, options: dict[str, Any]) -> None:
        chosen = {name: options[name] for name in ("slug", "replicas", "digest", "role")}
        deployment = deployment_set(**chosen, actor=ACTOR)
        self.stdout.write(f"{deployment} (revision {deployment.revision})")

    def _list(self, options: dict[str, Any]) -> None:
        snapshot = _fleet()
        views = {} if snapshot is None else {(view.digest, view.role): view for view in snapshot.deployments}
        for wanted in deployments_wanted():
            view = views.get((wanted.digest, wanted.role))
            ready = "?" if view is None else view.ready
            columns = (wanted.model, wanted.digest[:12], wanted.role, f"{ready} of {wanted.replicas} ready")
            self.stdout.write("\t".join(columns))
        if snapshot is None:
            self.stderr.write("Nobody tells what runs: no controller runs, or Valkey cannot be reached.")


def _fleet() -> FleetSnapshot | None:
    try:
        with Redis.from_url(
            environment.redis_url(), socket_timeout=ANSWER_S, socket_connect_timeout=ANSWER_S
        ) as valkey:
            kept = valkey.get(FLEET_KEY)
    except RedisError:
        return None
    return msgspec.json.decode(kept, type=FleetSnapshot) if isinstance(kept, bytes) else None
