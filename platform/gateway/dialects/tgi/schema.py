"""The JSON bodies of text-generation-inference as msgspec structs, with its names and ranges.

`null` says the same as an absent parameter, because its clients send all of them. A parameter is a field here
or an error. Source: `GenerateParameters` of TGI's router and `validation.rs`, version 3.3.
"""

from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta

from gateway.dialects.openai.neutral import Ignored, OnlyFalse, OnlyNull
from gateway.dialects.openai.sampling_ranges import OutputPenalty, RepetitionPenalty
from gateway.dialects.openai.schema import MAX_LOGPROBS, StopString, TruncatedTokens

MAX_BEST_OF = 2  # TGI's defaults
MAX_STOP_SEQUENCES = 4
MAX_SEED = (1 << 64) - 1

BestOf = Annotated[int, Meta(ge=1, le=MAX_BEST_OF)]
Temperature = Annotated[float, Meta(gt=0, le=100)]  # greedy is `do_sample: false`
TopK = Annotated[int, Meta(ge=1, le=(1 << 31) - 1)]
TopP = Annotated[float, Meta(gt=0, lt=1)]
Seed = Annotated[int, Meta(ge=0, extra_json_schema={"maximum": MAX_SEED})]  # wider than a constraint can be
TopTokens = Annotated[int, Meta(ge=0, le=MAX_LOGPROBS)]
GrammarType = Annotated[
    str, Meta(extra_json_schema={"enum": ["json", "json_object", "json_schema", "regex"]})
]


class GrammarChoice(msgspec.Struct, forbid_unknown_fields=True):
    type: GrammarType
    value: dict[str, Any] | str


class Parameters(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    best_of: BestOf | None = None
    temperature: Temperature | None = None
    repetition_penalty: RepetitionPenalty | None = None
    frequency_penalty: OutputPenalty | None = None
    top_k: TopK | None = None
    top_p: TopP | None = None
    do_sample: bool | None = None
    max_new_tokens: Annotated[int, Meta(ge=1)] | None = None
    return_full_text: bool | None = None
    stop: Annotated[list[StopString], Meta(max_length=MAX_STOP_SEQUENCES)] | None = None
    truncate: TruncatedTokens | None = None
    details: bool | None = None
    decoder_input_details: bool | None = None
    seed: Seed | None = None
    top_n_tokens: TopTokens | None = None
    grammar: GrammarChoice | None = None

    typical_p: OnlyNull = UNSET
    watermark: OnlyFalse = UNSET
    adapter_id: OnlyNull = UNSET


class GenerateBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    inputs: Annotated[str, Meta(min_length=1)]
    parameters: Parameters | None = None

    stream: Ignored = UNSET  # the path says it


class CompatBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    inputs: Annotated[str, Meta(min_length=1)]
    parameters: Parameters | None = None
    stream: bool | None = None


GENERATE_BODY = msgspec.json.Decoder(GenerateBody)
COMPAT_BODY = msgspec.json.Decoder(CompatBody)
