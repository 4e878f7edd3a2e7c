"""From a body of the Responses API to what may be run: nothing that would change the answer is dropped."""

import secrets

import msgspec
from msgspec import UNSET

from gateway.dialects.base import Ask
from gateway.dialects.openai.neutral import is_one_of, neutral_require
from gateway.dialects.openai.refusals import invalid, unsupported
from gateway.dialects.openai.sampling_ranges import MAX_SEED, MIN_SEED
from gateway.dialects.openai.schema import TIERS
from gateway.dialects.responses.renderer import ResponsesOptions
from gateway.dialects.responses.schema import (
    MAX_GRAMMAR_CHARACTERS,
    MESSAGE_PARTS,
    ROLES,
    ResponsesBody,
    ResponsesContentPart,
    ResponsesInputItem,
    ResponsesTextFormat,
)
from gateway.errors import ApiError
from gateway.generation import Generation, Message, Names, Prompt
from gpuworker.wire.messages import Grammar, Sampling

_TEXT_FORMAT = ResponsesTextFormat(type="text")
_LOGPROBS = "message.output_text.logprobs"
_SEED_MASK = (1 << 64) - 1


def ask_translate(body: ResponsesBody) -> Ask:
    """Raises ApiError."""
    neutral_require(body)
    if body.text is not None:
        neutral_require(body.text, "text.")
    if body.reasoning is not None:
        neutral_require(body.reasoning, "reasoning.")
    if body.tools and not _forbids_tools(body):
        raise unsupported("tools", 'are not supported: leave them out, or send tool_choice "none"')
    if body.stream_options is not None and not body.stream:
        raise invalid("stream_options", "is only allowed when stream is true")
    wanted = (body.text.format if body.text is not None else None) or _TEXT_FORMAT
    generation = Generation(
        model=body.model,
        prompts=(Prompt(messages=_messages(body)),),
        stream=bool(body.stream),
        sampling=_sampling(body),
        max_tokens=body.max_output_tokens,
        grammar=_grammar(wanted),
        ignore_eos=bool(body.ignore_eos),
        klass=TIERS[body.service_tier or "auto"],
        cache_salt=body.cache_salt or "",
        resumable=bool(body.resumable),
        names=Names(prompt="input", max_tokens="max_output_tokens", grammar="text.format"),
    )
    return Ask(generation, _options(body, wanted))


def _options(body: ResponsesBody, wanted: ResponsesTextFormat) -> ResponsesOptions:
    format_ = {name: value for name, value in msgspec.structs.asdict(wanted).items() if value is not None}
    if wanted.type == "json_schema":
        format_.setdefault("name", "response")  # clients insist on one
    return ResponsesOptions(
        temperature=1.0 if body.temperature is None else body.temperature,
        top_p=1.0 if body.top_p is None else body.top_p,
        max_output_tokens=body.max_output_tokens,
        top_logprobs=body.top_logprobs or 0,
        format=msgspec.json.encode(format_).decode(),
        metadata=body.metadata or {},
        parallel_tool_calls=body.parallel_tool_calls is not False,
        tool_choice="none" if _forbids_tools(body) else "auto",
        user=body.user,
        safety_identifier=body.safety_identifier,
        prompt_cache_key=body.prompt_cache_key,
    )


def _sampling(body: ResponsesBody) -> Sampling:
    if body.seed is not None and not MIN_SEED <= body.seed <= MAX_SEED:
        raise invalid("seed", "must fit into 64 bits")
    top_p = 1.0 if body.top_p is None else body.top_p
    top_k = max(body.top_k or 0, 0)
    if top_p == 0:  # the limit of a shrinking nucleus: the likeliest token
        top_p, top_k = 1.0, 1
    has_logprobs = bool(body.top_logprobs) or _LOGPROBS in (body.include or ())
    return Sampling(
        temperature=1.0 if body.temperature is None else body.temperature,
        top_p=top_p,
        top_k=top_k,
        seed=secrets.randbits(64) if body.seed is None else body.seed & _SEED_MASK,
        min_p=body.min_p or 0.0,
        repetition_penalty=1.0 if body.repetition_penalty is None else body.repetition_penalty,
        presence_penalty=body.presence_penalty or 0.0,
        frequency_penalty=body.frequency_penalty or 0.0,
        logprobs=(body.top_logprobs or 0) if has_logprobs else -1,
    )


def _grammar(wanted: ResponsesTextFormat) -> Grammar | None:
    if wanted.type == "text":
        return None
    if wanted.type == "json_object":
        return Grammar(kind="json_object")
    if wanted.schema is None:
        raise _missing("text.format.schema")
    text = msgspec.json.encode(wanted.schema).decode()
    if len(text) > MAX_GRAMMAR_CHARACTERS:
        raise invalid("text.format.schema", f"must have at most {MAX_GRAMMAR_CHARACTERS} characters")
    return Grammar(kind="json_schema", text=text)


def _messages(body: ResponsesBody) -> tuple[Message, ...]:
    messages = [] if not body.instructions else [Message("system", body.instructions)]
    if isinstance(body.input, str):
        messages.append(Message("user", body.input))
    else:
        messages += [_message(item, f"input[{index}]") for index, item in enumerate(body.input)]
    return tuple(messages)


def _message(item: ResponsesInputItem, param: str) -> Message:
    if item.type == "item_reference":
        raise unsupported(f"{param}.type", "item_reference: nothing is stored here, send the item itself")
    if item.type not in (None, "message"):
        raise unsupported(f"{param}.type", f"{item.type[:40]!r} is not supported")
    if not item.role:
        raise _missing(f"{param}.role")
    role = ROLES.get(item.role)
    if role is None:
        raise invalid(f"{param}.role", f"must be one of {', '.join(ROLES)}")
    if item.content is None:
        raise _missing(f"{param}.content")
    if isinstance(item.content, str):
        return Message(role, item.content)
    texts = [_text(part, f"{param}.content[{index}]") for index, part in enumerate(item.content)]
    return Message(role, "".join(texts))


def _text(part: ResponsesContentPart, param: str) -> str:
    if part.type not in MESSAGE_PARTS:
        raise unsupported(f"{param}.type", f"{part.type[:40]!r} is not supported")
    field = "refusal" if part.type == "refusal" else "text"
    text: str | None = getattr(part, field)
    if text is None:
        raise _missing(f"{param}.{field}")
    return text


def _forbids_tools(body: ResponsesBody) -> bool:
    return body.tool_choice is not UNSET and is_one_of(body.tool_choice, ["none"])


def _missing(param: str) -> ApiError:
    return ApiError("missing_required_parameter", f"missing required parameter: {param!r}", param=param)
