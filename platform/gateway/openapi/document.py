"""Puts the OpenAPI document together: operations, and the schemas of the structs that they name."""

import copy
from collections.abc import Iterable
from typing import Any

from gateway.openapi import errors, examples, parameters, response_headers
from gateway.openapi.operations import OPERATIONS, TAGS, Operation
from gateway.openapi.schemas import Schemas
from gateway.openapi.snippets import snippets_make

INFO = {
    "title": "Sluice API",
    "version": "1",
    "summary": "Text generation for clients of OpenAI, Anthropic and text-generation-inference.",
    "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
}
_SECURITY: list[dict[str, list[str]]] = [{"bearer": []}, {"apiKey": []}]
_SCHEMES = {
    "bearer": {"type": "http", "scheme": "bearer", "description": "`Authorization: Bearer sk-slc-…`"},
    "apiKey": {
        "type": "apiKey",
        "in": "header",
        "name": "x-api-key",
        "description": "The same key, as Anthropic's clients send it.",
    },
}
_LINKS = {"getUsage": "request_id", "resumeStream": "stream_id", "cancelStream": "stream_id"}
_RETRIED = (429, 503, 529)


def document_make() -> dict[str, Any]:
    schemas = Schemas(_types())
    paths: dict[str, dict[str, Any]] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method] = _operation(operation, schemas)
    return {
        "openapi": "3.1.0",
        "info": INFO,
        "servers": [{"url": "/"}],
        "security": _SECURITY,
        "tags": [{"name": name, "description": text} for name, text in TAGS.items()],
        "paths": paths,
        "components": {"schemas": schemas.components, "securitySchemes": _SCHEMES},
    }


def _types() -> Iterable[Any]:
    for family in (errors.OPENAI, errors.ANTHROPIC, errors.TGI):
        yield family.envelope
    for operation in OPERATIONS:
        yield from (
            kind for kind in (operation.request, operation.answer, operation.event) if kind is not None
        )
        yield from (kind for _, kind in operation.other.values() if kind is not None)


def _operation(operation: Operation, schemas: Schemas) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "operationId": operation.id,
        "tags": [operation.tag],
        "summary": operation.summary,
    }
    if operation.description:
        shown["description"] = operation.description
    if operation.is_public:
        shown["security"] = []
    if operation.parameters:
        shown["parameters"] = [parameter.document() for parameter in operation.parameters]
    if operation.request is not None:
        content = {"schema": schemas.of(operation.request), "example": operation.example}
        shown["requestBody"] = {"required": True, "content": {"application/json": content}}
    shown["responses"] = _responses(operation, schemas)
    shown["x-codeSamples"] = snippets_make(operation)
    return shown


def _responses(operation: Operation, schemas: Schemas) -> dict[str, Any]:
    responses: dict[str, Any] = {}
    has_success = operation.answer is not None or operation.event is not None or not operation.codes
    if has_success:
        responses[str(operation.success)] = _success(operation, schemas)
    for status, (description, kind) in operation.other.items():
        other: dict[str, Any] = {"description": description, "headers": _headers()}
        if kind is not None:
            other["content"] = {"application/json": {"schema": schemas.of(kind)}}
        responses[str(status)] = other
    codes = [*operation.codes, *errors.ALWAYS]
    for status, found in operation.family.by_status(codes).items():
        responses[str(status)] = _failure(operation.family, status, found)
    for status, found in errors.OPENAI.by_status(errors.PROTOCOL).items():
        responses[str(status)] = _failure(errors.OPENAI, status, found)
    return dict(sorted(responses.items()))


def _success(operation: Operation, schemas: Schemas) -> dict[str, Any]:
    content: dict[str, Any] = {}
    dialect, example = operation.dialect, operation.example
    if operation.answer is not None:
        content["application/json"] = {"schema": schemas.of(operation.answer)}
        shown = operation.answer_example
        if dialect is not None and example is not None:
            shown = examples.answer_make(dialect, example)
        if shown is not None:
            content["application/json"]["example"] = shown
    elif operation.media and operation.event is None:
        content[operation.media] = {"schema": {"type": "string"}}
    if operation.event is not None:
        content["text/event-stream"] = {"schema": _event(operation, schemas)}
        if dialect is not None and example is not None:
            content["text/event-stream"]["example"] = examples.stream_make(dialect, example)
    headers = _headers()
    if parameters.IDEMPOTENCY_KEY in operation.parameters:
        headers = _headers(response_headers.REPLAYED | response_headers.QUOTA | response_headers.DEGRADED)
    response: dict[str, Any] = {"description": _success_description(operation), "headers": headers}
    if content:
        response["content"] = content
    if dialect is not None:
        response["links"] = {
            name: {"operationId": name, "parameters": {parameter: "$response.header.X-Request-Id"}}
            for name, parameter in _LINKS.items()
        }
    return response


def _event(operation: Operation, schemas: Schemas) -> dict[str, Any]:
    """Of one server-sent event, as OpenAPI reads the schema of an event stream."""
    kinds = [schemas.of(operation.event), {"$ref": schemas.of(operation.family.envelope)["$ref"]}]
    data: dict[str, Any] = {
        "type": "string",
        "contentMediaType": "application/json",
        "contentSchema": {"anyOf": kinds},
    }
    if operation.ends_in:
        data = {"anyOf": [{"const": operation.ends_in}, data]}
    return {
        "type": "object",
        "required": ["data"],
        "properties": {"event": {"type": "string"}, "id": {"type": "string"}, "data": data},
    }


def _success_description(operation: Operation) -> str:
    if operation.answer is not None and operation.event is not None:
        return "The answer, whole; or its events, where it is streamed."
    return "The events of the answer." if operation.event is not None else "The answer."


def _failure(family: errors.ErrorFamily, status: int, codes: list[str]) -> dict[str, Any]:
    more: response_headers.Headers = {}
    if status in _RETRIED:
        more = response_headers.RETRY
    elif status == 401:
        more = response_headers.CHALLENGE
    elif status == 426:
        more = response_headers.UPGRADE
    lines = [f"- `{code}`: {errors.MEANINGS[code]}" for code in codes]
    return {
        "description": "\n".join(lines),
        "headers": _headers(more),
        "content": {"application/json": {"schema": family.narrowed(codes)}},
        "x-error-codes": codes,
    }


def _headers(more: response_headers.Headers | None = None) -> response_headers.Headers:
    return copy.deepcopy(response_headers.EVERY | (more or {}))
