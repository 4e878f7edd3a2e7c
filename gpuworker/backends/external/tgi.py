"""text-generation-inference: `/generate_stream` and `/info`, with requests made by its own client library.

The library's types say what a server takes, and check it. Its streaming is not used: it opens a session for
each request, has no limits between events, and costs several times as much for each (docs/backends.md).
"""

import json
from typing import Any

import msgspec
from pydantic import ValidationError
from text_generation.errors import ValidationError as RefusedByLibrary
from text_generation.types import Grammar, GrammarType, Parameters, Request

from gpuworker.backends.external.answer import AnswerTaker, Unsayable, UpstreamError, UpstreamRequest
from gpuworker.backends.external.event_stream import BadStream
from gpuworker.engine.sampling import GREEDY_BELOW
from gpuworker.wire.messages import Submit, TokenLogprobs

MAX_STOPS = 4  # of a server with its default settings
_STATUS = {"overloaded": 429, "validation": 422, "unhealthy": 503}
_NO_LOGPROBS: list[TokenLogprobs] = []


class _Token(msgspec.Struct, gc=False):
    id: int
    text: str
    logprob: float | None = None
    special: bool = False


class _Details(msgspec.Struct, gc=False):
    finish_reason: str
    generated_tokens: int
    input_length: int = 0


class _Event(msgspec.Struct, gc=False):
    token: _Token | None = None
    top_tokens: list[_Token] = []
    details: _Details | None = None
    error: str | None = None
    error_type: str = ""


class _Info(msgspec.Struct):
    model_id: str
    model_sha: str | None = None
    max_total_tokens: int | None = None


class TGIDialect:
    path = "/generate_stream"
    identity_path = "/info"

    def __init__(self) -> None:
        self._decode = msgspec.json.Decoder(_Event).decode

    def keeps_stops(self, stops: list[str]) -> bool:
        return 0 < len(stops) <= MAX_STOPS and all(stops)

    def body(self, model: str, request: UpstreamRequest) -> bytes:
        submit = request.submit
        _refuse_unsayable(submit)
        sampling = submit.sampling
        is_greedy = sampling.temperature < GREEDY_BELOW
        try:
            parameters = Parameters(
                do_sample=not is_greedy,
                max_new_tokens=request.max_tokens,
                temperature=None if is_greedy else sampling.temperature,
                top_k=sampling.top_k or None,
                top_p=sampling.top_p if sampling.top_p < 1 else None,
                seed=sampling.seed & ((1 << 63) - 1),
                repetition_penalty=sampling.repetition_penalty if sampling.repetition_penalty != 1 else None,
                frequency_penalty=sampling.frequency_penalty or None,
                stop=submit.stop if self.keeps_stops(submit.stop) else [],
                details=True,
                top_n_tokens=sampling.logprobs if sampling.logprobs > 0 else None,
                grammar=_grammar(submit),
            )
            asked = Request(inputs=request.say(), stream=True, parameters=parameters)
        except (ValidationError, RefusedByLibrary) as error:
            raise Unsayable(f"text-generation-inference does not take this: {_reason(error)}") from error
        return msgspec.json.encode(asked.model_dump(mode="json", exclude_none=True))

    def take(self, event: bytes, taker: AnswerTaker) -> bool:
        try:
            found = self._decode(event)
        except (msgspec.MsgspecError, ValueError) as error:
            raise BadStream(f"an event is none of a generated stream: {error}") from error
        if found.error is not None:
            raise UpstreamError("an error event", _STATUS.get(found.error_type, 500))
        if (token := found.token) is not None:
            logprobs = _NO_LOGPROBS
            if token.logprob is not None:
                tops = [(top.id, top.logprob) for top in found.top_tokens if top.logprob is not None]
                logprobs = [TokenLogprobs(token.id, token.logprob, tops)]
            taker.piece(0, "" if token.special else token.text, [token.id], logprobs)
        if (details := found.details) is None:
            return False
        taker.usage(details.input_length, 0, details.generated_tokens)
        taker.choice_finished(0, "length" if details.finish_reason == "length" else "stop", None)
        return True

    def identity_problem(self, body: bytes, model: str, revision: str, context_tokens: int) -> str:
        try:
            info = msgspec.json.decode(body, type=_Info)
        except (msgspec.MsgspecError, ValueError) as error:
            raise BadStream(f"{self.identity_path} names no model: {error}") from error
        if info.model_id != model:
            return f"it serves {info.model_id[:100]!r}, not {model!r}"
        if revision and info.model_sha != revision:
            return f"it serves revision {info.model_sha!r}, not {revision!r}"
        if info.max_total_tokens is not None and info.max_total_tokens < context_tokens:
            return f"it serves {info.max_total_tokens} tokens of context, {context_tokens} are promised"
        return ""


def _refuse_unsayable(submit: Submit) -> None:
    sampling = submit.sampling
    for name, is_asked in (
        ("n above 1", submit.n > 1),
        ("min_p", sampling.min_p > 0),
        ("presence_penalty", sampling.presence_penalty != 0),
        ("logit_bias", bool(sampling.logit_bias)),
        ("min_tokens", sampling.min_tokens > 0),
        ("ignore_eos", submit.ignore_eos),
        ("prompt_logprobs", sampling.prompt_logprobs >= 0),
    ):
        if is_asked:
            raise Unsayable(f"{name} is not served by this model's replicas")


def _grammar(submit: Submit) -> Grammar | None:
    grammar = submit.grammar
    if grammar is None:
        return None
    match grammar.kind:
        case "json_schema":
            return Grammar(type=GrammarType.Json, value=json.loads(grammar.text))
        case "json_object":
            return Grammar(type=GrammarType.Json, value={"type": "object"})
        case "regex":
            return Grammar(type=GrammarType.Regex, value=grammar.text)
    raise Unsayable(f"a {grammar.kind} grammar is not served by this model's replicas")


def _reason(error: Exception) -> str:
    if not isinstance(error, ValidationError):
        return str(error)
    found: list[Any] = error.errors()
    return f"{'.'.join(str(part) for part in found[0]['loc'])}: {found[0]['msg']}"
