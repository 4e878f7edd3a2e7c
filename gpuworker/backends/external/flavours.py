"""What OpenAI-compatible servers understand beyond OpenAI's own completions, as their sources say: vLLM
(`vllm/entrypoints/openai/completion/protocol.py`), SGLang (`sglang/srt/entrypoints/openai/protocol.py`) and
llama.cpp (`tools/server/server-schema.cpp`, b11434)."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Flavour:
    """Names of fields; "" for what the server does not know: a request that needs it is refused."""

    takes_ids: bool = False  # a prompt as token ids; otherwise as text
    ids_fields: dict[str, Any] = field(default_factory=dict)  # that make it tell ids of the output
    always_ids: bool = False  # ask for them in any case: it costs nothing there
    has_logprobs: bool = False  # with ids
    takes_choices: bool = False
    top_k: str = ""
    no_top_k: int = 0  # its value for off
    min_p: str = ""
    repetition_penalty: str = ""
    min_tokens: str = ""
    ignore_eos: str = ""
    stop_ids: str = ""
    keep_stop: str = ""  # the stop string stays in the text, so that we see which it was
    grammars: dict[str, str] = field(default_factory=dict)  # kind of grammar → field
    is_grammar_nested: bool = False  # in `structured_outputs`
    is_schema_text: bool = False  # a JSON schema is sent as a string, not as an object
    cache_salt: str = ""  # keeps tenants' prefixes apart in its cache
    always: dict[str, Any] = field(default_factory=dict)
    seed_bits: int = 31
    is_model_told: bool = True  # answers name the model as it was asked for


FLAVOURS = {
    "generic": Flavour(is_model_told=False),
    "vllm": Flavour(
        takes_ids=True,
        ids_fields={"return_token_ids": True},
        always_ids=True,
        has_logprobs=True,
        takes_choices=True,
        top_k="top_k",
        min_p="min_p",
        repetition_penalty="repetition_penalty",
        min_tokens="min_tokens",
        ignore_eos="ignore_eos",
        stop_ids="stop_token_ids",
        keep_stop="include_stop_str_in_output",
        grammars={
            "json_schema": "json",
            "json_object": "json_object",
            "regex": "regex",
            "choice": "choice",
        },
        is_grammar_nested=True,
        cache_salt="cache_salt",
        seed_bits=63,
    ),
    "sglang": Flavour(
        takes_ids=True,
        ids_fields={"return_token_ids": True},  # of 2026; what older ones do not know they ignore
        always_ids=True,
        takes_choices=True,
        top_k="top_k",
        no_top_k=-1,
        min_p="min_p",
        repetition_penalty="repetition_penalty",
        min_tokens="min_tokens",
        ignore_eos="ignore_eos",
        stop_ids="stop_token_ids",
        keep_stop="no_stop_trim",
        grammars={"json_schema": "json_schema", "regex": "regex"},
        is_schema_text=True,
        cache_salt="cache_salt",
    ),
    "llama.cpp": Flavour(
        takes_ids=True,
        ids_fields={"n_probs": 1},
        has_logprobs=True,
        top_k="top_k",
        min_p="min_p",
        repetition_penalty="repeat_penalty",
        ignore_eos="ignore_eos",
        grammars={"json_schema": "json_schema"},
        always={"cache_prompt": False},  # its cache knows no tenants
    ),
}
