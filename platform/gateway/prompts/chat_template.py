"""The operator's chat template, in a sandbox. It comes from the weight store, never from a request."""

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, NoReturn

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment

from gateway.errors import ApiError
from gateway.generation import Message

MAX_OUTPUT_FACTOR = 4  # of the content's length; a template that multiplies its input is a defect
_MAX_FIXED_CHARACTERS = 1 << 20
_REMOVED_FILTERS = ("attr", "format")  # ways out of the sandbox in past Jinja releases


class TemplateRefused(Exception):
    """Raised inside a template by `raise_exception`: the conversation does not fit this model's format."""


class ChatTemplate:
    """Raises jinja2.TemplateError when the source does not compile."""

    def __init__(self, source: str, tokens: dict[str, str]) -> None:
        """`tokens`: bos_token, eos_token and the like, as the template names them."""
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"], autoescape=False
        )
        for name in _REMOVED_FILTERS:
            del environment.filters[name]
        environment.filters["tojson"] = _tojson
        environment.globals.update(raise_exception=_raise_exception, strftime_now=_strftime_now)
        self._template = environment.from_string(source)
        self._constants = {**self._template.globals, **tokens}

    def render(self, messages: Sequence[Message]) -> str:
        """Raises ApiError when the template refuses the conversation."""
        turns = [{"role": message.role, "content": message.content} for message in messages]
        try:
            # `Template.render` in the same steps, without copying and wrapping the globals each time.
            variables = {**self._constants, "messages": turns, "add_generation_prompt": True}
            context = self._template.new_context(variables, shared=True)
            text = "".join(self._template.root_render_func(context))
        except TemplateRefused as error:
            raise ApiError("invalid_value", f"the model's chat template: {error}", param="messages") from None
        except (jinja2.TemplateError, TypeError, ValueError, ArithmeticError, LookupError) as error:
            raise ApiError(
                "invalid_value", f"the model's chat template cannot render this: {error}", param="messages"
            ) from error
        size = sum(len(message.content) for message in messages)
        if len(text) > _MAX_FIXED_CHARACTERS + MAX_OUTPUT_FACTOR * size:
            raise ApiError("invalid_value", "the rendered chat template is too large", param="messages")
        return text


def _raise_exception(message: str) -> NoReturn:
    raise TemplateRefused(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now(UTC).strftime(pattern)


def _tojson(value: Any, indent: int | None = None) -> str:
    """As transformers renders it. Jinja's own escapes for HTML, which is not what models were trained on."""
    return json.dumps(value, ensure_ascii=False, indent=indent)
