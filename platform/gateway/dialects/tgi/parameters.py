"""From TGI's parameters to what may be run, with the rules that concern several of them."""

import secrets
from typing import Any

from gateway.dialects.checks import grammar_make
from gateway.dialects.openai.neutral import neutral_require
from gateway.dialects.openai.refusals import invalid
from gateway.dialects.tgi.schema import MAX_SEED, GrammarChoice, Parameters
from gateway.generation import Generation, Names, Prompt
from gpuworker.wire.messages import Grammar, Sampling

GRAMMAR_PARAM = "parameters.grammar"
NAMES = Names(prompt="inputs", max_tokens="parameters.max_new_tokens", grammar=GRAMMAR_PARAM)
ABSENT = Parameters(do_sample=True)  # without `parameters` TGI samples, with them it does so only when asked


def generation_make(inputs: str, parameters: Parameters, *, stream: bool) -> Generation:
    """For the default model: the API names none. Raises ApiError."""
    neutral_require(parameters, "parameters.")
    _combinations_check(parameters, stream=stream)
    return Generation(
        model="",
        prompts=(Prompt(text=inputs),),
        stream=stream,
        sampling=_sampling(parameters, stream=stream),
        max_tokens=parameters.max_new_tokens,
        stop=tuple(parameters.stop or ()),
        grammar=_grammar(parameters.grammar),
        n=parameters.best_of or 1,
        truncate_prompt_tokens=parameters.truncate,
        names=NAMES,
    )


def is_sampled(parameters: Parameters) -> bool:
    """A temperature other than 1, `top_k` and `top_p` ask for it as `do_sample` does."""
    has_warper = parameters.top_k is not None or parameters.top_p is not None
    return bool(parameters.do_sample) or has_warper or parameters.temperature not in (None, 1.0)


def _combinations_check(parameters: Parameters, *, stream: bool) -> None:
    if (parameters.best_of or 1) > 1:
        if stream:
            raise invalid("parameters.best_of", "must be 1 where tokens are streamed")
        if parameters.seed is not None:
            raise invalid("parameters.seed", "must not be set when best_of is above 1")
        if not is_sampled(parameters):
            raise invalid("parameters.best_of", "must be 1 without sampling")
    if (parameters.seed or 0) > MAX_SEED:
        raise invalid("parameters.seed", f"must be at most {MAX_SEED}")
    if parameters.decoder_input_details and stream:
        raise invalid("parameters.decoder_input_details", "must be false where tokens are streamed")


def _sampling(parameters: Parameters, *, stream: bool) -> Sampling:
    temperature = 1.0 if parameters.temperature is None else parameters.temperature
    wants_tokens = stream or parameters.details or parameters.decoder_input_details
    picks = (parameters.best_of or 1) > 1  # by the probability of the tokens
    return Sampling(
        temperature=temperature if is_sampled(parameters) else 0.0,
        top_p=1.0 if parameters.top_p is None else parameters.top_p,
        top_k=parameters.top_k or 0,
        seed=secrets.randbits(64) if parameters.seed is None else parameters.seed,
        repetition_penalty=1.0 if parameters.repetition_penalty is None else parameters.repetition_penalty,
        frequency_penalty=parameters.frequency_penalty or 0.0,
        logprobs=(parameters.top_n_tokens or 0) if wants_tokens or picks else -1,
        prompt_logprobs=0 if parameters.decoder_input_details else -1,
    )


def _grammar(choice: GrammarChoice | None) -> Grammar | None:
    if choice is None:
        return None
    value = choice.value
    if choice.type == "regex":
        if not isinstance(value, str):
            raise invalid(f"{GRAMMAR_PARAM}.value", "must be a string where the type is regex")
        return grammar_make(f"{GRAMMAR_PARAM}.value", "regex", value)
    if choice.type in ("json", "json_object"):
        return grammar_make(f"{GRAMMAR_PARAM}.value", "json_schema", value)
    if choice.type != "json_schema":
        raise invalid(f"{GRAMMAR_PARAM}.type", "must be json, json_object, json_schema or regex")
    return grammar_make(f"{GRAMMAR_PARAM}.value.schema", "json_schema", _named_schema(value))


def _named_schema(value: dict[str, Any] | str) -> dict[str, Any]:
    schema = value.get("schema") if isinstance(value, dict) else None
    if not isinstance(schema, dict):
        raise invalid(f"{GRAMMAR_PARAM}.value.schema", "must be an object where the type is json_schema")
    return schema
