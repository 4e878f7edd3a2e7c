"""Documents of TGI's `GET /info` and `GET /health`. What they say comes from the caller."""

import msgspec

from gateway.dialects.tgi.schema import MAX_BEST_OF, MAX_STOP_SEQUENCES

UNHEALTHY = b'{"error":"unhealthy","error_type":"healthcheck"}'  # with 503; healthy is 200 without a body


class Info(msgspec.Struct, kw_only=True):
    model_id: str
    model_sha: str | None
    model_pipeline_tag: str | None
    max_concurrent_requests: int
    max_best_of: int
    max_stop_sequences: int
    max_input_tokens: int
    max_total_tokens: int
    validation_workers: int
    max_client_batch_size: int
    router: str
    version: str
    sha: str | None
    docker_label: str | None


def info_body(
    *,
    model: str,
    digest: str,
    max_context_tokens: int,
    max_concurrent_requests: int,
    validation_workers: int,
    version: str,
) -> bytes:
    """Of the default model. `max_context_tokens`: prompt and output together."""
    info = Info(
        model_id=model,
        model_sha=digest,
        model_pipeline_tag="text-generation",
        max_concurrent_requests=max_concurrent_requests,
        max_best_of=MAX_BEST_OF,
        max_stop_sequences=MAX_STOP_SEQUENCES,
        max_input_tokens=max_context_tokens - 1,
        max_total_tokens=max_context_tokens,
        validation_workers=validation_workers,
        max_client_batch_size=1,
        router="sluice",
        version=version,
        sha=None,
        docker_label=None,
    )
    return msgspec.json.encode(info)
