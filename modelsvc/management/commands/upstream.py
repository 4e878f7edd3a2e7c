"""`manage.py upstream …`: servers of somebody else's that answer for a model, through workers of ours."""

import os
import sys
from pathlib import Path
from typing import Any

from django.core.exceptions import ValidationError
from django.core.management.base import BaseCommand, CommandError, CommandParser

from config.environment import weights_dir
from gpuworker.upstream_terms import FLAVOURS, KEY_VARIABLE, KINDS, PATIENCE
from modelsvc.import_errors import ModelImportError
from modelsvc.models import Upstream
from modelsvc.services import RegistryError, route_switch, version_publish
from modelsvc.upstream_folder import upstream_folder_import
from modelsvc.upstream_keys import UpstreamKeyUnreadable
from modelsvc.upstreams import (
    upstream_add,
    upstream_enable,
    upstream_key_set,
    upstream_keys_rewrap,
    upstream_remove,
)
from tenants.scoping import operator_scope

ACTOR = "command:upstream"
KEY_HELP = (
    f"read the server's key from standard input; otherwise it is taken from {KEY_VARIABLE}, if that is set"
)


class Command(BaseCommand):
    help = "Add, list and remove upstream servers. Keys are stored sealed, and never shown."

    def add_arguments(self, parser: CommandParser) -> None:
        verbs = parser.add_subparsers(dest="verb", required=True)
        declaring = verbs.add_parser(
            "declare", help="publish and route a model whose weights only a server has"
        )
        declaring.add_argument(
            "--folder", type=Path, required=True, help="with config.json and tokenizer.json"
        )
        declaring.add_argument("--slug", required=True, help="the name requests use for the model")
        declaring.add_argument("--owned-by", default="unknown", help="who made the model")
        adding = verbs.add_parser("add", help="let a server answer for a model")
        adding.add_argument("name", help="small letters, digits and -: the worker is called upstream-NAME")
        adding.add_argument("--kind", choices=KINDS, default="openai")
        adding.add_argument("--flavour", choices=FLAVOURS, default="generic", help="which server it is")
        adding.add_argument("--url", required=True, help="http://host:8000 or https://host")
        adding.add_argument("--slug", required=True, help="the model it answers for")
        adding.add_argument("--digest", default="", help="the version; default: the routed one")
        adding.add_argument("--max-rows", type=int, default=64, help="requests at a time, at most")
        adding.add_argument("--key-stdin", action="store_true", help=KEY_HELP)
        for option in PATIENCE:
            adding.add_argument(f"--{option.replace('_', '-')}", type=float, help="seconds of patience")
        for verb in (declaring, adding):
            verb.add_argument("--model", required=True, help="what the server calls the model")
            verb.add_argument("--revision", default="", help="where the server tells one, it must agree")
        listing = verbs.add_parser("list", help="every upstream, one a line")
        listing.add_argument("--enabled", action="store_true", help="only names of those that are enabled")
        keying = verbs.add_parser("key", help="give it another key, or none")
        keying.add_argument("--key-stdin", action="store_true", help=KEY_HELP)
        for name in ("remove", "enable", "disable"):
            verbs.add_parser(name).add_argument("name")
        keying.add_argument("name")
        verbs.add_parser("rewrap", help="seal all keys by the first master key")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            with operator_scope():
                getattr(self, f"_{options['verb']}")(options)
        except (RegistryError, ModelImportError, UpstreamKeyUnreadable) as error:
            raise CommandError(str(error)) from error
        except ValidationError as error:
            raise CommandError(" ".join(error.messages)) from error

    def _declare(self, options: dict[str, Any]) -> None:
        manifest = upstream_folder_import(
            options["folder"], weights_dir(), model=options["model"], revision=options["revision"]
        )
        slug = options["slug"]
        version_publish(slug=slug, name=slug, owned_by=options["owned_by"], manifest=manifest, actor=ACTOR)
        route_switch(slug=slug, digest=manifest.digest, actor=ACTOR)
        self.stdout.write(f"{slug} {manifest.digest}")

    def _add(self, options: dict[str, Any]) -> None:
        upstream = upstream_add(
            name=options["name"],
            kind=options["kind"],
            flavour=options["flavour"],
            url=options["url"],
            slug=options["slug"],
            digest=options["digest"],
            model_name=options["model"],
            revision=options["revision"],
            max_rows=options["max_rows"],
            options={option: options[option] for option in PATIENCE if options[option] is not None},
            key=_key(options),
            actor=ACTOR,
        )
        self.stdout.write(f"{upstream.name}: added; its worker starts with the next `manage.py up`")

    def _list(self, options: dict[str, Any]) -> None:
        for upstream in Upstream.objects.select_related("version__model"):
            if options["enabled"]:
                if upstream.is_enabled:
                    self.stdout.write(upstream.name)
                continue
            state = "enabled" if upstream.is_enabled else "disabled"
            key = "with a key" if upstream.sealed_key is not None else "without a key"
            of = f"{upstream.version.model.slug} {upstream.version.digest[:12]}"
            self.stdout.write(
                f"{upstream.name:16}  {upstream.kind} {upstream.flavour:10} {upstream.url}  "
                f"{upstream.model_name} for {of}  {state}, {key}"
            )

    def _key(self, options: dict[str, Any]) -> None:
        key = _key(options)
        upstream_key_set(name=options["name"], key=key, actor=ACTOR)
        self.stdout.write(f"{options['name']}: {'another key' if key else 'no key'}")

    def _remove(self, options: dict[str, Any]) -> None:
        upstream_remove(name=options["name"], actor=ACTOR)
        self.stdout.write(f"{options['name']}: removed")

    def _enable(self, options: dict[str, Any]) -> None:
        is_enabled = options["verb"] == "enable"
        upstream_enable(name=options["name"], is_enabled=is_enabled, actor=ACTOR)
        self.stdout.write(f"{options['name']}: {options['verb']}d")

    _disable = _enable

    def _rewrap(self, options: dict[str, Any]) -> None:
        self.stdout.write(f"{upstream_keys_rewrap(actor=ACTOR)} keys were sealed anew")


def _key(options: dict[str, Any]) -> str:
    """Never an argument: others can read those."""
    return sys.stdin.readline().strip() if options["key_stdin"] else os.environ.get(KEY_VARIABLE, "")
