"""The JSON bodies of chat completions and completions as msgspec structs.

A parameter is a field here or an error: nothing that changes the output is ignored. Plain ranges are part of
the types, so that a schema made from these structs says what is accepted; `validation` has the other rules.
Ranges are OpenAI's where it has the parameter, else vLLM's; names are those that their clients send.
"""

from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta

from gateway.dialects.openai.neutral import (
    Ignored,
    OnlyEmptyList,
    OnlyEmptyObject,
    OnlyEmptyString,
    OnlyFalse,
    OnlyLeft,
    OnlyMedium,
    OnlyNone,
    OnlyNoneOrAuto,
    OnlyNull,
    OnlyOne,
    OnlyText,
    OnlyTrue,
)
from gateway.dialects.openai.sampling_ranges import (
    MAX_TOKEN_ID,
    Bias,
    MinP,
    MinTokens,
    OutputPenalty,
    RepetitionPenalty,
    Seed,
    StopTokenIds,
    Temperature,
    TokenId,
    TopK,
    TopP,
)

MAX_CHOICES = 128  # OpenAI's bound of `n`, and the engine's; here also of all prompts' choices together
MAX_PROMPTS = 128
MAX_MESSAGES = 32_768  # looking at each takes a microsecond of everybody's time
MAX_LOGPROBS = 20
MAX_STOP_STRINGS = 4
MAX_STOP_CHARACTERS = 256
TIERS = {
    "auto": "interactive",
    "default": "interactive",
    "fast": "interactive",
    "priority": "interactive",
    "scale": "interactive",
    "flex": "batch",
}

Model = Annotated[str, Meta(min_length=1, max_length=256)]
StopString = Annotated[str, Meta(min_length=1, max_length=MAX_STOP_CHARACTERS)]
StopStrings = Annotated[list[StopString], Meta(max_length=MAX_STOP_STRINGS)]
Choices = Annotated[int, Meta(ge=1, le=MAX_CHOICES)]
Logprobs = Annotated[int, Meta(ge=0, le=MAX_LOGPROBS)]
Tier = Annotated[str, Meta(extra_json_schema={"enum": list(TIERS)})]
Priority = Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
CacheSalt = Annotated[str, Meta(min_length=1, max_length=1024)]
TruncatedTokens = Annotated[int, Meta(ge=1, le=MAX_TOKEN_ID)]
FormatType = Annotated[str, Meta(extra_json_schema={"enum": ["text", "json_object", "json_schema"]})]


class StreamOptions(msgspec.Struct, forbid_unknown_fields=True):
    include_usage: bool | None = None
    include_obfuscation: bool | None = None  # accepted without effect: padding hides nothing behind TLS here
    continuous_usage_stats: OnlyFalse = UNSET


class JsonSchema(msgspec.Struct):
    """`strict` and `description` change nothing here: the schema is always followed."""

    name: str | None = None
    schema: dict[str, Any] | None = None


class ResponseFormat(msgspec.Struct):
    type: FormatType
    json_schema: JsonSchema | None = None


class StructuredOutputs(msgspec.Struct, forbid_unknown_fields=True):
    """vLLM's name for a grammar."""

    json: dict[str, Any] | str | None = None
    regex: str | None = None
    choice: Annotated[list[str], Meta(min_length=1)] | None = None
    json_object: bool | None = None


class GenerationBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What both endpoints share."""

    model: Model
    max_tokens: int | None = None
    n: Choices | None = None
    best_of: Choices | None = None  # the same as `n`, or an error
    temperature: Temperature | None = None
    top_p: TopP | None = None
    top_k: TopK | None = None
    min_p: MinP | None = None
    seed: Seed | None = None
    frequency_penalty: OutputPenalty | None = None
    presence_penalty: OutputPenalty | None = None
    repetition_penalty: RepetitionPenalty | None = None
    logit_bias: Bias | None = None
    min_tokens: MinTokens | None = None
    stop: StopString | StopStrings | None = None
    stop_token_ids: StopTokenIds | None = None
    ignore_eos: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    prompt_logprobs: Logprobs | None = None
    service_tier: Tier | None = None
    priority: Priority | None = None
    truncate_prompt_tokens: TruncatedTokens | None = None
    cache_salt: CacheSalt | None = None
    resumable: bool | None = None
    response_format: ResponseFormat | None = None
    guided_json: dict[str, Any] | str | None = None
    guided_regex: str | None = None
    guided_choice: Annotated[list[str], Meta(min_length=1)] | None = None
    structured_outputs: StructuredOutputs | None = None

    user: Ignored = UNSET
    safety_identifier: Ignored = UNSET
    metadata: Ignored = UNSET
    store: Ignored = UNSET
    prompt_cache_key: Ignored = UNSET
    prompt_cache_retention: Ignored = UNSET
    prediction: Ignored = UNSET
    parallel_tool_calls: Ignored = UNSET

    # vLLM's, at the values that its clients send by default.
    skip_special_tokens: OnlyTrue = UNSET
    spaces_between_special_tokens: OnlyTrue = UNSET
    include_stop_str_in_output: OnlyFalse = UNSET
    use_beam_search: OnlyFalse = UNSET
    early_stopping: OnlyFalse = UNSET
    length_penalty: OnlyOne = UNSET
    truncation_side: OnlyLeft = UNSET
    bad_words: OnlyEmptyList = UNSET
    allowed_token_ids: OnlyNull = UNSET
    logprob_token_ids: OnlyNull = UNSET
    return_token_ids: OnlyFalse = UNSET
    return_tokens_as_token_ids: OnlyFalse = UNSET
    guided_grammar: OnlyNull = UNSET
    vllm_xargs: OnlyEmptyObject = UNSET


class ContentPart(msgspec.Struct):
    type: str
    text: str | None = None
    refusal: str | None = None


class ChatMessage(msgspec.Struct):
    """Clients send back whole messages they received, so unknown fields of a message are let through."""

    role: Annotated[str, Meta(extra_json_schema={"enum": ["system", "developer", "user", "assistant"]})]
    content: str | list[ContentPart] | None = None
    refusal: str | None = None
    tool_calls: OnlyEmptyList = UNSET
    function_call: OnlyNull = UNSET
    audio: OnlyNull = UNSET


class ChatBody(GenerationBody, forbid_unknown_fields=True, kw_only=True):
    messages: Annotated[list[ChatMessage], Meta(min_length=1, max_length=MAX_MESSAGES)]
    max_tokens: Annotated[int, Meta(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Meta(ge=1)] | None = None
    logprobs: bool | None = None
    top_logprobs: Logprobs | None = None

    tools: OnlyEmptyList = UNSET  # anything with a `tool_choice` of "none"
    tool_choice: OnlyNoneOrAuto = UNSET
    functions: OnlyEmptyList = UNSET
    function_call: OnlyNoneOrAuto = UNSET
    modalities: OnlyText = UNSET
    audio: OnlyNull = UNSET
    reasoning_effort: OnlyNone = UNSET
    verbosity: OnlyMedium = UNSET
    web_search_options: OnlyNull = UNSET

    echo: OnlyFalse = UNSET
    add_generation_prompt: OnlyTrue = UNSET
    continue_final_message: OnlyFalse = UNSET
    add_special_tokens: OnlyFalse = UNSET  # the chat template writes them
    include_reasoning: OnlyTrue = UNSET
    chat_template: OnlyNull = UNSET
    chat_template_kwargs: OnlyEmptyObject = UNSET
    documents: OnlyEmptyList = UNSET


PromptTokens = Annotated[list[TokenId], Meta(min_length=1)]
PromptList = Annotated[list[str | TokenId | PromptTokens], Meta(min_length=1)]
_PROMPT_SCHEMA = {  # a list holds one kind, and only tokens may be many
    "oneOf": [
        {"type": "string"},
        {"type": "array", "items": {"type": "integer"}},
        {"type": "array", "items": {"type": "string"}, "maxItems": MAX_PROMPTS},
        {"type": "array", "items": {"type": "array"}, "maxItems": MAX_PROMPTS},
    ]
}


class CompletionBody(GenerationBody, forbid_unknown_fields=True, kw_only=True):
    prompt: Annotated[str | PromptList, Meta(extra_json_schema=_PROMPT_SCHEMA)]
    max_tokens: Annotated[int, Meta(ge=0)] | None = None  # 0 only with `echo`
    logprobs: Logprobs | None = None
    echo: bool | None = None

    suffix: OnlyEmptyString = UNSET
    add_special_tokens: OnlyTrue = UNSET
