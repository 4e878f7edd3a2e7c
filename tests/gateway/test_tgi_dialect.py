"""TGI's API: its own clients are understood, and understand what they are sent."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
import text_generation.errors
from huggingface_hub import InferenceClient
from huggingface_hub.errors import IncompleteGenerationError, OverloadedError, ValidationError
from text_generation import Client
from text_generation.types import Grammar as GrammarParam
from text_generation.types import GrammarType

from gateway.dialects.base import Dialect
from gateway.dialects.tgi.generate import COMPAT, GENERATE, GENERATE_STREAM
from gateway.dialects.tgi.info import UNHEALTHY, info_body
from gateway.errors import ERRORS, ApiError, LimitDetail, overloaded
from gpuworker.wire.messages import Grammar
from tests.gateway.dialect_server import REQUEST_ID, DialectServer, Script, token_rows
from tests.gateway.tgi import EOS, parsed, server_make

# text-generation 0.7.0 was written for pydantic 1.
pytestmark = pytest.mark.filterwarnings("ignore:The `dict` method is deprecated")


@pytest.fixture
def server() -> Iterator[DialectServer]:
    with server_make() as server:
        yield server


@pytest.fixture
def client(server: DialectServer) -> Client:
    return Client(server.url, headers={"Authorization": "Bearer sk-slc-key"})


@pytest.fixture
def hub(server: DialectServer) -> InferenceClient:
    return InferenceClient(model=server.url, token="sk-slc-key")


def refusal(dialect: Dialect = GENERATE, **parameters: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        parsed(dialect, **parameters)
    return caught.value


# -- requests -----------------------------------------------------------------------------------------------


def test_text_generation_is_understood(server: DialectServer, client: Client) -> None:
    server.script.rows = [*token_rows(b"Hi", ["H", "i"]), EOS]
    client.generate(
        "Hello",
        do_sample=True,
        max_new_tokens=30,
        repetition_penalty=1.2,
        frequency_penalty=0.3,
        seed=7,
        stop_sequences=["###"],
        temperature=0.5,
        top_k=40,
        top_p=0.9,
        truncate=100,
        decoder_input_details=True,
        top_n_tokens=2,
        grammar=GrammarParam(type=GrammarType.Regex, value="[a-z]+"),
    )
    (ask,) = server.asks
    generation, sampling = ask.generation, ask.generation.sampling
    assert (generation.model, generation.prompts[0].text, generation.max_tokens) == ("", "Hello", 30)
    assert (generation.stop, generation.truncate_prompt_tokens, generation.n) == (("###",), 100, 1)
    assert generation.grammar == Grammar(kind="regex", text="[a-z]+")
    assert (sampling.temperature, sampling.top_k, sampling.top_p, sampling.seed) == (0.5, 40, 0.9, 7)
    assert (sampling.repetition_penalty, sampling.frequency_penalty) == (1.2, 0.3)
    assert (sampling.logprobs, sampling.prompt_logprobs) == (2, 0)
    assert server.keys == [b"Bearer sk-slc-key"]


def test_the_hubs_client_is_understood(server: DialectServer, hub: InferenceClient) -> None:
    server.script.rows = [*token_rows(b"Hi", ["H", "i"]), EOS]
    assert hub.text_generation("Hello", max_new_tokens=5) == "Hi"
    assert list(hub.text_generation("Hello", stream=True)) == ["H", "i", ""]
    assert [ask.generation.stream for ask in server.asks] == [False, True]


@pytest.mark.parametrize(
    ("parameters", "temperature"),
    [
        ({}, 0.0),
        ({"do_sample": False}, 0.0),
        ({"temperature": 1.0}, 0.0),
        ({"do_sample": True}, 1.0),
        ({"temperature": 0.7}, 0.7),
        ({"top_p": 0.5}, 1.0),
        ({"top_k": 5, "do_sample": False}, 1.0),
    ],
)
def test_what_asks_for_sampling(parameters: dict[str, Any], temperature: float) -> None:
    ask = parsed(**parameters)
    assert ask.generation.sampling.temperature == temperature
    assert ask.options.sampled == bool(temperature)


def test_a_request_without_parameters_is_sampled_as_in_tgi() -> None:
    generation = GENERATE.parse(b'{"inputs":"a"}').generation
    assert generation.sampling.temperature == 1.0
    assert generation.max_tokens is None
    assert generation.sampling.logprobs == -1


def test_the_path_decides_whether_it_streams_except_at_the_root() -> None:
    for asked in (b"true", b"false", b"null"):
        body = b'{"inputs":"a","stream":' + asked + b"}"
        assert not GENERATE.parse(body).generation.stream
        assert GENERATE_STREAM.parse(body).generation.stream
        assert GENERATE_STREAM.parse(body).generation.sampling.logprobs == 0  # every event has a token
        assert COMPAT.parse(body).generation.stream == (asked == b"true")


@pytest.mark.parametrize(
    ("grammar", "expected"),
    [
        (
            {"type": "json", "value": {"type": "object"}},
            Grammar(kind="json_schema", text='{"type":"object"}'),
        ),
        ({"type": "json_object", "value": '{"type": 1}'}, Grammar(kind="json_schema", text='{"type": 1}')),
        (
            {"type": "json_schema", "value": {"name": "n", "schema": {"a": 1}}},
            Grammar(kind="json_schema", text='{"a":1}'),
        ),
        ({"type": "regex", "value": "a+"}, Grammar(kind="regex", text="a+")),
    ],
)
def test_grammars(grammar: dict[str, object], expected: Grammar) -> None:
    assert parsed(grammar=grammar).generation.grammar == expected


@pytest.mark.parametrize(
    ("dialect", "parameters", "code", "param"),
    [
        (GENERATE, {"watermark": True}, "unsupported_parameter", "parameters.watermark"),
        (GENERATE, {"typical_p": 0.5}, "unsupported_parameter", "parameters.typical_p"),
        (GENERATE, {"adapter_id": "lora"}, "unsupported_parameter", "parameters.adapter_id"),
        (GENERATE, {"temperature": 0}, "invalid_value", "parameters.temperature"),
        (GENERATE, {"repetition_penalty": 0}, "invalid_value", "parameters.repetition_penalty"),
        (GENERATE, {"frequency_penalty": 3}, "invalid_value", "parameters.frequency_penalty"),
        (GENERATE, {"top_k": 0}, "invalid_value", "parameters.top_k"),
        (GENERATE, {"top_p": 1}, "invalid_value", "parameters.top_p"),
        (GENERATE, {"top_n_tokens": 21}, "invalid_value", "parameters.top_n_tokens"),
        (GENERATE, {"max_new_tokens": 0}, "invalid_value", "parameters.max_new_tokens"),
        (GENERATE, {"truncate": 0}, "invalid_value", "parameters.truncate"),
        (GENERATE, {"stop": ["x"] * 5}, "invalid_value", "parameters.stop"),
        (GENERATE, {"stop": [""]}, "invalid_value", "parameters.stop[0]"),
        (GENERATE, {"seed": -1}, "invalid_value", "parameters.seed"),
        (GENERATE, {"seed": 1 << 64}, "invalid_value", "parameters.seed"),
        (GENERATE, {"best_of": 3}, "invalid_value", "parameters.best_of"),
        (GENERATE, {"best_of": 2}, "invalid_value", "parameters.best_of"),
        (GENERATE, {"best_of": 2, "do_sample": True, "seed": 1}, "invalid_value", "parameters.seed"),
        (GENERATE_STREAM, {"best_of": 2, "do_sample": True}, "invalid_value", "parameters.best_of"),
        (
            GENERATE_STREAM,
            {"decoder_input_details": True},
            "invalid_value",
            "parameters.decoder_input_details",
        ),
        (GENERATE, {"grammar": {"type": "regex", "value": {}}}, "invalid_value", "parameters.grammar.value"),
        (GENERATE, {"grammar": {"type": "regex", "value": ""}}, "invalid_value", "parameters.grammar.value"),
        (GENERATE, {"grammar": {"type": "xml", "value": ""}}, "invalid_value", "parameters.grammar.type"),
        (
            GENERATE,
            {"grammar": {"type": "json_schema", "value": {}}},
            "invalid_value",
            "parameters.grammar.value.schema",
        ),
        (GENERATE, {"mirostat": 2}, "unknown_parameter", "parameters.mirostat"),
        (GENERATE, {"max_new_tokens": "9"}, "invalid_type", "parameters.max_new_tokens"),
    ],
)
def test_what_cannot_be_served_is_named(
    dialect: Dialect, parameters: dict[str, Any], code: str, param: str
) -> None:
    error = refusal(dialect, **parameters)
    assert (error.code, error.param) == (code, param)
    assert dialect.error(error, REQUEST_ID)[0] == 422


def test_a_prompt_is_needed() -> None:
    for body in (b"{}", b'{"inputs":""}', b'{"inputs":["a"]}', b"no"):
        with pytest.raises(ApiError):
            GENERATE.parse(body)


# -- errors -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "status", "kind", "raised"),
    [
        ("invalid_value", 422, "validation", text_generation.errors.ValidationError),
        ("context_length_exceeded", 422, "validation", text_generation.errors.ValidationError),
        ("overloaded", 429, "overloaded", text_generation.errors.OverloadedError),
        ("queue_full", 429, "overloaded", text_generation.errors.OverloadedError),
        ("engine_error", 424, "generation", text_generation.errors.GenerationError),
        ("replica_lost", 500, "incomplete_generation", text_generation.errors.IncompleteGenerationError),
        ("deadline_exceeded", 504, "incomplete_generation", text_generation.errors.IncompleteGenerationError),
        ("model_not_found", 404, "model_not_found", text_generation.errors.NotFoundError),
        ("invalid_api_key", 401, "invalid_api_key", text_generation.errors.UnknownError),
    ],
)
def test_errors_have_tgis_types(
    server: DialectServer, client: Client, code: str, status: int, kind: str, raised: type[Exception]
) -> None:
    server.script.failure = ApiError(code, "it went wrong")
    with pytest.raises(raised, match="it went wrong"):
        client.generate("Hello")
    with pytest.raises(raised, match="it went wrong"):
        list(client.generate_stream("Hello"))
    shown, body = GENERATE.error(server.script.failure, REQUEST_ID)
    assert (shown, json.loads(body)["error_type"]) == (status, kind)


def test_the_hubs_client_knows_them(server: DialectServer, hub: InferenceClient) -> None:
    with pytest.raises(ValidationError, match="top_k"):
        hub.text_generation("Hello", top_k=0)
    server.script.failure = ApiError("overloaded", "full")
    with pytest.raises(OverloadedError):
        hub.text_generation("Hello")


def test_every_error_has_a_type_and_a_text() -> None:
    for code, (status, _) in ERRORS.items():
        shown, body = COMPAT.error(ApiError(code, "x"), REQUEST_ID)
        error = json.loads(body)
        assert error["error"] == "x"
        assert error["error_type"]
        assert shown in (status, 422, 424, 429, 500)


def test_a_limit_is_explained() -> None:
    limit = LimitDetail(name="open_requests", scope="gateway", subject="g", used=9, limit=9)
    _, body = GENERATE.error(overloaded("too many requests", limit=limit), REQUEST_ID)
    assert json.loads(body)["limit"]["used"] == 9


def test_a_stream_that_fails_ends_in_an_error(
    server: DialectServer, client: Client, hub: InferenceClient
) -> None:
    server.script = Script(rows=token_rows(b"a", ["a"]), failure=ApiError("replica_lost", "lost"))
    seen: list[str] = []
    with pytest.raises(text_generation.errors.IncompleteGenerationError, match="lost"):
        seen.extend(response.token.text for response in client.generate_stream("Hello"))
    with pytest.raises(IncompleteGenerationError, match="lost"):
        seen.extend(hub.text_generation("Hello", stream=True))
    assert seen == ["a", "a"]


# -- documents ----------------------------------------------------------------------------------------------


def test_info_has_what_clients_read() -> None:
    body = info_body(
        model="tiny",
        digest="d" * 64,
        max_context_tokens=4096,
        max_concurrent_requests=128,
        validation_workers=2,
        version="1.0",
    )
    info = json.loads(body)
    assert (info["model_id"], info["max_total_tokens"], info["max_input_tokens"]) == ("tiny", 4096, 4095)
    required = {"max_concurrent_requests", "max_best_of", "max_stop_sequences", "validation_workers"}
    assert required | {"max_client_batch_size", "router", "version"} <= info.keys()
    assert json.loads(UNHEALTHY) == {"error": "unhealthy", "error_type": "healthcheck"}
