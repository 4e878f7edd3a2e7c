"""What the output must match, from OpenAI's `response_format` or the names that vLLM's clients send."""

from typing import Any

import msgspec

from gateway.dialects.checks import MAX_GRAMMAR_CHARACTERS
from gateway.dialects.openai.refusals import invalid
from gateway.dialects.openai.schema import GenerationBody, JsonSchema, StructuredOutputs
from gpuworker.wire.messages import Grammar


def grammar_validate(body: GenerationBody) -> tuple[str, Grammar | None]:
    """The parameter that asks for it, and the grammar. Raises ApiError. Whether a schema or an expression can
    be followed, the worker says."""
    asked = {param: grammar for param, grammar in _asked(body) if grammar is not None}
    if len(asked) > 1:
        raise invalid(list(asked)[1], f"must not be given together with {next(iter(asked))}")
    for param, grammar in asked.items():
        if len(grammar.text) > MAX_GRAMMAR_CHARACTERS:
            raise invalid(param, f"must have at most {MAX_GRAMMAR_CHARACTERS} characters")
        if body.min_tokens:
            raise invalid(
                "min_tokens", f"must not be given together with {param}, which decides where the text ends"
            )
        return param, grammar
    return "", None


def _asked(body: GenerationBody) -> list[tuple[str, Grammar | None]]:
    outputs = body.structured_outputs or StructuredOutputs()
    return [
        ("response_format", _response_format(body)),
        ("guided_json", _schema(body.guided_json)),
        ("guided_regex", _regex(body.guided_regex)),
        ("guided_choice", _choice(body.guided_choice)),
        ("structured_outputs.json", _schema(outputs.json)),
        ("structured_outputs.regex", _regex(outputs.regex)),
        ("structured_outputs.choice", _choice(outputs.choice)),
        ("structured_outputs.json_object", Grammar(kind="json_object") if outputs.json_object else None),
    ]


def _response_format(body: GenerationBody) -> Grammar | None:
    wanted = body.response_format
    if wanted is None or wanted.type == "text":
        return None
    if wanted.type == "json_object":
        return Grammar(kind="json_object")
    if wanted.type != "json_schema":
        raise invalid("response_format.type", "must be text, json_object or json_schema")
    named: JsonSchema | None = wanted.json_schema
    if named is None or named.schema is None:
        raise invalid("response_format.json_schema.schema", "is missing")
    return _schema(named.schema)


def _schema(schema: dict[str, Any] | str | None) -> Grammar | None:
    if schema is None:
        return None
    if isinstance(schema, str):
        return Grammar(kind="json_schema", text=schema)
    return Grammar(kind="json_schema", text=msgspec.json.encode(schema).decode())


def _regex(expression: str | None) -> Grammar | None:
    return None if expression is None else Grammar(kind="regex", text=expression)


def _choice(choices: list[str] | None) -> Grammar | None:
    if choices is None:
        return None
    return Grammar(kind="choice", text=msgspec.json.encode(choices).decode())
