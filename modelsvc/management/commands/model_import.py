"""`manage.py model_import`: bring a model into the weight store, publish it and route its requests to it."""

from pathlib import Path
from typing import Any

from django.core.exceptions import ValidationError
from django.core.management.base import BaseCommand, CommandError, CommandParser

from config.environment import weights_dir
from gpuworker.manifest import Manifest
from modelsvc.import_errors import ModelImportError
from modelsvc.importer import (
    DEMO_NAME,
    DEMO_OWNED_BY,
    DEMO_SLUG,
    model_import_demo,
    model_import_folder,
    model_import_gguf,
)
from modelsvc.models import Model
from modelsvc.services import RegistryError, route_switch, version_publish
from tenants.scoping import operator_scope

ACTOR = "manage.py model_import"


class Command(BaseCommand):
    help = "Import a model, publish it, and route its requests to it."

    def add_arguments(self, parser: CommandParser) -> None:
        source = parser.add_mutually_exclusive_group()
        source.add_argument("--demo", action="store_true", help=f"{DEMO_NAME} (the default)")
        source.add_argument("--folder", type=Path, help="a Hugging Face llama with safetensors")
        source.add_argument("--gguf", type=Path, help="a GGUF llama")
        parser.add_argument("--slug", help="the name requests use; default: the demo's, or the file's name")
        parser.add_argument("--name", help="the name people read; default: the slug")
        parser.add_argument("--owned-by", help="who made the model; default: unknown")
        parser.add_argument("--stage", action="store_true", help="publish only; leave the route as it is")

    def handle(self, *args: Any, **options: Any) -> None:
        model = self._model(options)
        try:
            model.clean_fields()  # before gigabytes are copied for a name that cannot be
            manifest = self._import(options)
            with operator_scope():
                version_publish(
                    slug=model.slug, name=model.name, owned_by=model.owned_by, manifest=manifest, actor=ACTOR
                )
                if not options["stage"]:
                    route_switch(slug=model.slug, digest=manifest.digest, actor=ACTOR)
        except (ModelImportError, RegistryError) as error:
            raise CommandError(str(error)) from error
        except ValidationError as error:
            raise CommandError(" ".join(error.messages)) from error
        self.stdout.write(f"{model.slug} {manifest.digest}")

    def _model(self, options: dict[str, Any]) -> Model:
        """What requests will name; not saved here."""
        slug, name, owned_by = options["slug"], options["name"], options["owned_by"]
        if options["folder"]:
            slug = slug or options["folder"].resolve().name
        elif options["gguf"]:
            slug = slug or options["gguf"].stem
        else:
            slug, name, owned_by = slug or DEMO_SLUG, name or DEMO_NAME, owned_by or DEMO_OWNED_BY
        return Model(slug=slug, name=name or slug, owned_by=owned_by or "unknown")

    def _import(self, options: dict[str, Any]) -> Manifest:
        weights, progress = weights_dir(), options["verbosity"] > 0
        if options["folder"]:
            return model_import_folder(options["folder"], weights, progress=progress)
        if options["gguf"]:
            return model_import_gguf(options["gguf"], weights, progress=progress)
        return model_import_demo(weights, progress=progress)
