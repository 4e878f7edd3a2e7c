"""An external backend out of a worker's options and the folder that stands for its model."""

import json

from tokenizers import Tokenizer

from gpuworker.backends.base import BackendError
from gpuworker.backends.external.answer import Dialect
from gpuworker.backends.external.backend import ExternalBackend
from gpuworker.backends.external.flavours import FLAVOURS
from gpuworker.backends.external.intake import Intake
from gpuworker.backends.external.openai import OpenAIDialect
from gpuworker.backends.external.settings import UpstreamSettings
from gpuworker.backends.external.tgi import TGIDialect
from gpuworker.backends.model_folder import eos_ids_load, tokenizer_check
from gpuworker.manifest import Manifest
from gpuworker.options import Options
from gpuworker.upstream_terms import DECLARATION, endpoint_parse, key_problem


def backend_build(options: Options, manifest: Manifest, secret: bytes, key: str) -> ExternalBackend:
    """Raises BackendError."""
    folder = options.weights
    try:
        endpoint_parse(options.upstream_url)
    except ValueError as error:
        raise BackendError(str(error)) from error
    if problem := key_problem(key):
        raise BackendError(problem)
    settings = UpstreamSettings(
        url=options.upstream_url,
        model=options.upstream_model,
        flavour=options.upstream_flavour,
        revision=options.upstream_revision,
        key=key,
        connect_s=options.upstream_connect_s,
        first_token_s=options.upstream_first_token_s,
        silence_s=options.upstream_silence_s,
        check_s=options.upstream_check_s,
    )
    if any(file.name == DECLARATION for file in manifest.files):
        declared = json.loads((folder / DECLARATION).read_bytes())  # its digest was verified
        stated = {"model": settings.model, "revision": settings.revision}
        if declared != stated:
            raise BackendError(f"{folder} stands for {declared}, not {stated}")
    eos_ids = eos_ids_load(folder, manifest)
    try:
        vocab_size = int(manifest.config["vocab_size"])
        if manifest.max_context_tokens < 1:
            raise ValueError("max_position_embeddings is below 1")
    except (KeyError, TypeError, ValueError) as error:
        raise BackendError(f"{folder / 'config.json'} cannot be used: {error!r}") from error
    tokenizer_check(folder, vocab_size, eos_ids)
    dialect: Dialect = TGIDialect()
    if options.backend == "openai":
        dialect = OpenAIDialect(FLAVOURS[settings.flavour], settings.model)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    intake = Intake(tokenizer, manifest, eos_ids, secret)
    return ExternalBackend(settings, dialect, intake, max_rows=options.max_rows)
