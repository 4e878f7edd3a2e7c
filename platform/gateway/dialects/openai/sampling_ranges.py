"""The ranges of sampling parameters as types: OpenAI's where it has the parameter, else vLLM's."""

from typing import Annotated

from msgspec import Meta

MAX_BIASED_TOKENS = 1024
MAX_STOP_TOKEN_IDS = 64
MAX_TOKEN_ID = (1 << 31) - 1
MAX_TOKEN_DIGITS = 10
MIN_SEED = -9_223_372_036_854_776_000  # -2**63 and 2**64, as JavaScript writes them
MAX_SEED = 18_446_744_073_709_552_000
MAX_BIAS = 100.0

TokenId = Annotated[int, Meta(ge=0, le=MAX_TOKEN_ID)]
StopTokenIds = Annotated[list[TokenId], Meta(max_length=MAX_STOP_TOKEN_IDS)]

Temperature = Annotated[float, Meta(ge=0, le=2)]
TopP = Annotated[float, Meta(ge=0, le=1)]
TopK = Annotated[int, Meta(ge=-1, le=(1 << 31) - 1)]  # 0 and -1: off
MinP = Annotated[float, Meta(ge=0, le=1)]
OutputPenalty = Annotated[float, Meta(ge=-2, le=2)]
RepetitionPenalty = Annotated[float, Meta(gt=0, le=10)]  # 1 changes nothing
MinTokens = Annotated[int, Meta(ge=0)]

# Checked by `sampling_parameters`: wider than a constraint can be, and a bias is named by its token.
Seed = Annotated[int, Meta(extra_json_schema={"minimum": MIN_SEED, "maximum": MAX_SEED})]
_BIAS_SCHEMA = {"minimum": -MAX_BIAS, "maximum": MAX_BIAS}
_TOKEN_SCHEMA = {"pattern": f"^[0-9]{{1,{MAX_TOKEN_DIGITS}}}$"}
Bias = Annotated[
    dict[
        Annotated[str, Meta(extra_json_schema=_TOKEN_SCHEMA)],
        Annotated[float, Meta(extra_json_schema=_BIAS_SCHEMA)],
    ],
    Meta(max_length=MAX_BIASED_TOKENS),
]
