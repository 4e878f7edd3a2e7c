"""OpenAI's completions interface, as vLLM, SGLang and llama.cpp serve it. Chat templates are applied by our
gateway, so that prompts are the same on every replica."""

import json
from typing import Any

import msgspec

from gpuworker.backends.external.answer import (
    AnswerTaker,
    Unsayable,
    UpstreamError,
    UpstreamRequest,
    WrongModel,
)
from gpuworker.backends.external.event_stream import BadStream
from gpuworker.backends.external.flavours import Flavour
from gpuworker.wire.messages import Grammar, Sampling, TokenLogprobs

_NO_LOGPROBS: list[TokenLogprobs] = []
_FINISH_REASONS = ("stop", "length", "content_filter")
_ID_PREFIX = "token_id:"  # how vLLM spells a token when asked for ids


class _Entry(msgspec.Struct, gc=False):
    id: int
    logprob: float
    top_logprobs: list["_Entry"] = []


class _Logprobs(msgspec.Struct):
    tokens: list[str] = []  # vLLM
    token_logprobs: list[float | None] = []
    top_logprobs: list[dict[str, float] | None] | None = None
    content: list[_Entry] = []  # llama.cpp


class _Choice(msgspec.Struct, gc=False):
    index: int = 0
    text: str = ""
    finish_reason: str | None = None
    stop_reason: str | int | None = None  # vLLM
    matched_stop: str | int | None = None  # SGLang
    token_ids: list[int] | None = None
    logprobs: _Logprobs | None = None


class _PromptDetails(msgspec.Struct, gc=False):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct, gc=False):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: _PromptDetails | None = None


class _Chunk(msgspec.Struct, gc=False):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    model: str = ""
    error: Any = None


class _Model(msgspec.Struct):
    id: str
    max_model_len: int | None = None


class _Models(msgspec.Struct):
    data: list[_Model]


class OpenAIDialect:
    path = "/v1/completions"
    identity_path = "/v1/models"

    def __init__(self, flavour: Flavour, model: str) -> None:
        self._flavour = flavour
        self._model = model if flavour.is_model_told else ""
        self._decode = msgspec.json.Decoder(_Chunk).decode

    def keeps_stops(self, stops: list[str]) -> bool:
        return bool(self._flavour.keep_stop and stops)

    # -- the request --------------------------------------------------------------------------------------

    def body(self, model: str, request: UpstreamRequest) -> bytes:
        submit, flavour = request.submit, self._flavour
        sampling = submit.sampling
        fields: dict[str, Any] = {
            "model": model,
            "prompt": request.ids if flavour.takes_ids else request.say(),
            "max_tokens": request.max_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
            # Always said: servers have defaults of their own.
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "presence_penalty": sampling.presence_penalty,
            "frequency_penalty": sampling.frequency_penalty,
            "seed": sampling.seed & ((1 << flavour.seed_bits) - 1),
            **flavour.always,
        }
        if flavour.cache_salt:
            fields[flavour.cache_salt] = request.cache_salt
        if submit.n > 1:
            if not flavour.takes_choices:
                raise Unsayable("n above 1 is not served by this model's replicas")
            fields["n"] = submit.n
        if sampling.logit_bias:
            fields["logit_bias"] = {str(token): bias for token, bias in sampling.logit_bias}
        self._extras(fields, sampling)
        if submit.ignore_eos:
            _set(fields, flavour.ignore_eos, True, "ignore_eos")
        if request.stop_ids and not (flavour.ids_fields and not flavour.stop_ids):
            _set(fields, flavour.stop_ids, request.stop_ids, "stop_token_ids")
        if self.keeps_stops(submit.stop):
            fields |= {"stop": submit.stop, flavour.keep_stop: True}
        if submit.grammar is not None:
            fields |= self._grammar(submit.grammar)
        wants_logprobs = sampling.logprobs >= 0
        if wants_logprobs and not flavour.has_logprobs:
            raise Unsayable("logprobs are not served by this model's replicas")
        if sampling.prompt_logprobs >= 0:
            raise Unsayable("prompt_logprobs are not served by this model's replicas")
        if flavour.always_ids or submit.wants_ids or request.stop_ids or wants_logprobs:
            fields |= flavour.ids_fields
        if wants_logprobs:
            if "n_probs" in flavour.ids_fields:
                fields["n_probs"] = max(sampling.logprobs, 1)
            else:
                fields |= {"logprobs": sampling.logprobs, "return_tokens_as_token_ids": True}
        return msgspec.json.encode(fields)

    def _extras(self, fields: dict[str, Any], sampling: Sampling) -> None:
        flavour = self._flavour
        if flavour.top_k:
            fields[flavour.top_k] = sampling.top_k or flavour.no_top_k
        elif sampling.top_k:
            raise Unsayable("top_k is not served by this model's replicas")
        for name, field, value, default in (
            ("min_p", flavour.min_p, sampling.min_p, 0.0),
            ("repetition_penalty", flavour.repetition_penalty, sampling.repetition_penalty, 1.0),
        ):
            if field:
                fields[field] = value
            elif value != default:
                raise Unsayable(f"{name} is not served by this model's replicas")
        if sampling.min_tokens:
            _set(fields, flavour.min_tokens, sampling.min_tokens, "min_tokens")

    def _grammar(self, grammar: Grammar) -> dict[str, Any]:
        flavour = self._flavour
        field = flavour.grammars.get(grammar.kind, "")
        text: Any = grammar.text
        if not field and grammar.kind == "json_object":
            field, text = flavour.grammars.get("json_schema", ""), '{"type": "object"}'
        if not field:
            raise Unsayable(f"a {grammar.kind} grammar is not served by this model's replicas")
        value = True if field == "json_object" else text
        is_schema = field in ("json", "json_schema")
        if grammar.kind == "choice" or (is_schema and not flavour.is_schema_text):
            value = json.loads(text)
        return {"structured_outputs": {field: value}} if flavour.is_grammar_nested else {field: value}

    # -- the answer ---------------------------------------------------------------------------------------

    def take(self, event: bytes, taker: AnswerTaker) -> bool:
        if event == b"[DONE]":
            return True
        try:
            chunk = self._decode(event)
        except (msgspec.MsgspecError, ValueError) as error:
            raise BadStream(f"an event is no completion chunk: {error}") from error
        if chunk.error is not None:
            raise _error(chunk.error)
        if self._model and chunk.model and chunk.model != self._model:
            raise WrongModel(f"{chunk.model[:100]!r} answers for {self._model!r}")
        for choice in chunk.choices:
            logprobs = _NO_LOGPROBS if choice.logprobs is None else _logprobs(choice.logprobs)
            ids = choice.token_ids
            if ids is None and logprobs:
                ids = [entry.token for entry in logprobs]
            if choice.text or ids:
                taker.piece(choice.index, choice.text, ids, logprobs)
            if choice.finish_reason is not None:
                if choice.finish_reason not in _FINISH_REASONS:
                    raise UpstreamError(f"it ended with {choice.finish_reason[:100]!r}")
                reason = "length" if choice.finish_reason == "length" else "stop"
                taker.choice_finished(choice.index, reason, choice.stop_reason or choice.matched_stop)
        if (usage := chunk.usage) is not None:
            details = usage.prompt_tokens_details
            cached_tokens = details.cached_tokens or 0 if details is not None else 0
            taker.usage(usage.prompt_tokens, cached_tokens, usage.completion_tokens)
        return False

    def identity_problem(self, body: bytes, model: str, revision: str, context_tokens: int) -> str:
        try:
            served = msgspec.json.decode(body, type=_Models).data
        except (msgspec.MsgspecError, ValueError) as error:
            raise BadStream(f"{self.identity_path} lists no models: {error}") from error
        found = next((entry for entry in served if entry.id == model), None)
        if found is None:
            names = ", ".join(repr(entry.id[:100]) for entry in served[:5])
            return f"it serves {names or 'nothing'}, not {model!r}"
        if found.max_model_len is not None and found.max_model_len < context_tokens:
            return f"it serves {found.max_model_len} tokens of context, {context_tokens} are promised"
        return ""


def _set(fields: dict[str, Any], name: str, value: Any, parameter: str) -> None:
    if not name:
        raise Unsayable(f"{parameter} is not served by this model's replicas")
    fields[name] = value


def _logprobs(logprobs: _Logprobs) -> list[TokenLogprobs]:
    if logprobs.content:
        return [
            TokenLogprobs(entry.id, entry.logprob, [(top.id, top.logprob) for top in entry.top_logprobs])
            for entry in logprobs.content
        ]
    found = []
    tops = logprobs.top_logprobs or [None] * len(logprobs.tokens)
    for token, logprob, top in zip(logprobs.tokens, logprobs.token_logprobs, tops, strict=False):
        if not token.startswith(_ID_PREFIX) or logprob is None:
            continue  # a server that was not asked for logprobs, or does not tell ids
        pairs = [(_token_id(name), value) for name, value in (top or {}).items()]
        found.append(
            TokenLogprobs(_token_id(token), logprob, sorted(pairs, key=lambda pair: (-pair[1], pair[0])))
        )
    return found


def _token_id(name: str) -> int:
    digits = name.removeprefix(_ID_PREFIX)
    if not digits.isdecimal():
        raise BadStream("a token of the logprobs is not told by its id")
    return int(digits)


def _error(error: Any) -> UpstreamError:
    """Not in its words: they may quote the prompt, or the key."""
    code = error.get("code") if isinstance(error, dict) else None
    return UpstreamError("an error event", code if isinstance(code, int) else 500)
