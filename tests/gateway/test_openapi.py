"""The OpenAPI document and its page say what the gateway does: routes, bodies, answers, events and errors."""

import json
import re
from collections.abc import Iterator
from typing import Any

import jsonschema_rs
import pytest
import schemathesis

from gateway import sse
from gateway.answer_parts import ChoiceEnd, Head, PromptRow, Row, Usage
from gateway.app import ROUTES
from gateway.dialects.base import Dialect, Whole, WholeChoice
from gateway.dialects.registry import ENDPOINTS
from gateway.dialects.tgi.info import UNHEALTHY
from gateway.endpoints.reference import document_bytes, page_bytes
from gateway.errors import ERRORS, ApiError, LimitDetail
from gateway.openapi.document import document_make
from gateway.openapi.errors import MEANINGS
from gateway.openapi.operations import OPERATIONS
from gateway.openapi.page import CONTENT_SECURITY_POLICY
from gateway.openapi.site import BASE_URL, MODEL, Site, site_of
from gpuworker.wire.messages import TokenLogprobs

DOCUMENT = document_make()
COMPONENTS = DOCUMENT["components"]["schemas"]
REQUEST_ID = "019f0000-0000-7000-8000-000000000001"
LOGPROBS = [TokenLogprobs(104, -0.5, [(104, -0.5), (105, float("-inf"))])]
CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
COMPLETION = {"model": "m", "prompt": "hi"}
MESSAGE = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}


class ByteTokens:
    def token_bytes(self, token: int) -> bytes:
        return bytes([token])

    def is_special(self, token: int) -> bool:
        return False


def validator(schema: dict[str, Any]) -> Any:
    return jsonschema_rs.Draft202012Validator({**schema, "components": DOCUMENT["components"]})


def operation_of(path: str) -> dict[str, Any]:
    found: dict[str, Any] = DOCUMENT["paths"][path]["post"]
    return found


def request_structs() -> Iterator[tuple[str, dict[str, Any]]]:
    """Every component that a request's body leads to."""
    waiting = {
        operation["requestBody"]["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
        for methods in DOCUMENT["paths"].values()
        for operation in methods.values()
        if "requestBody" in operation
    }
    seen: set[str] = set()
    while waiting:
        name = waiting.pop()
        seen.add(name)
        yield name, COMPONENTS[name]
        waiting |= set(re.findall(r'"#/components/schemas/([^"]+)"', json.dumps(COMPONENTS[name]))) - seen


# -- the document -------------------------------------------------------------------------------------------


def test_it_is_an_openapi_document_and_its_schemas_are_schemas() -> None:
    schemathesis.openapi.from_dict(json.loads(document_bytes(Site()))).validate()
    for name in COMPONENTS:
        validator({"$ref": f"#/components/schemas/{name}"})
        assert "." not in name, "two structs have one name"


def test_every_route_is_in_it_and_nothing_else() -> None:
    routes = {
        (method, re.sub(r"\{\w+\}", "{}", path)) for path, methods in ROUTES.items() for method in methods
    }
    documented = {
        (method.upper(), re.sub(r"\{\w+\}", "{}", path))
        for path, methods in DOCUMENT["paths"].items()
        for method in methods
    }
    assert documented == routes


def test_every_field_of_a_request_and_every_error_is_explained() -> None:
    unexplained = [
        f"{name}.{field}"
        for name, schema in request_structs()
        for field, property_ in schema.get("properties", {}).items()
        if not property_.get("description")
    ]
    assert unexplained == []
    assert MEANINGS.keys() == ERRORS.keys()


@pytest.mark.parametrize("path", ENDPOINTS)
def test_example_bodies_are_valid_and_accepted(path: str) -> None:
    content = operation_of(path)["requestBody"]["content"]["application/json"]
    validator(content["schema"]).validate(content["example"])
    ENDPOINTS[path].parse(json.dumps(content["example"]).encode())


# -- answers ------------------------------------------------------------------------------------------------


def parts_of(dialect: Dialect, body: dict[str, Any]) -> tuple[Any, Head]:
    ask = dialect.parse(json.dumps(body).encode())
    count = len(ask.generation.prompts)
    head = Head(
        request_id=REQUEST_ID,
        created=1_790_000_000,
        model="m",
        digest="d" * 64,
        klass=ask.generation.klass,
        prompt_tokens=(3,) * count,
        first_tokens=(104,) * count,
        n=ask.generation.n,
        seed=7,
    )
    return dialect.renderer(ask.options, head, ByteTokens()), head


@pytest.mark.parametrize("reason", ["stop", "length"])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", CHAT),
        ("/v1/chat/completions", CHAT | {"n": 2, "logprobs": True, "top_logprobs": 2, "prompt_logprobs": 1}),
        ("/v1/completions", COMPLETION | {"prompt": ["a", "b"], "n": 2}),
        ("/v1/completions", COMPLETION | {"echo": True, "logprobs": 2, "prompt_logprobs": 1}),
        ("/v1/responses", {"model": "m", "input": "hi"}),
        ("/v1/responses", {"model": "m", "input": "hi", "top_logprobs": 2}),
        ("/v1/messages", MESSAGE),
        ("/generate", {"inputs": "hi"}),
        ("/generate", {"inputs": "hi", "parameters": {"decoder_input_details": True, "top_n_tokens": 2}}),
        ("/", {"inputs": "hi", "parameters": {"best_of": 2, "do_sample": True, "details": True}}),
    ],
)
def test_whole_answers_are_as_documented(path: str, body: dict[str, Any], reason: str) -> None:
    dialect = ENDPOINTS[path]
    renderer, head = parts_of(dialect, body)
    whole = Whole(
        [WholeChoice("h", LOGPROBS, ChoiceEnd(number, reason, 1)) for number in range(head.choices)],
        Usage(3, 1, 1),
        [LOGPROBS for _ in head.prompt_tokens],
    )
    schema = operation_of(path)["responses"]["200"]["content"]["application/json"]["schema"]
    validator(schema).validate(json.loads(renderer.whole(whole)))


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", CHAT),
        ("/v1/chat/completions", CHAT | {"stream_options": {"include_usage": True}, "n": 2}),
        ("/v1/chat/completions", CHAT | {"logprobs": True, "top_logprobs": 1}),
        ("/v1/completions", COMPLETION | {"logprobs": 1, "echo": True}),
        ("/v1/responses", {"model": "m", "input": "hi", "top_logprobs": 1}),
        ("/v1/messages", MESSAGE),
        ("/generate_stream", {"inputs": "hi", "parameters": {"details": True, "top_n_tokens": 1}}),
        ("/", {"inputs": "hi"}),
    ],
)
def test_events_are_as_documented(path: str, body: dict[str, Any]) -> None:
    wanted = body if path == "/generate_stream" else body | {"stream": True}
    renderer, head = parts_of(ENDPOINTS[path], wanted)
    prompt = renderer.prompt_delta(PromptRow(0, 1, LOGPROBS))
    rows = [Row(number, 1, "h", LOGPROBS) for number in range(head.choices)]
    deltas = [data for row in rows if (data := renderer.delta(row))]
    ends = [ChoiceEnd(number, "stop", 1) for number in range(head.choices)]
    closing = renderer.closing(ends, Usage(3, 0, 1))
    sent = (
        [event.data for event in [*renderer.opening(), *prompt]] + deltas + [event.data for event in closing]
    )
    content = operation_of(path)["responses"]["200"]["content"]["text/event-stream"]
    documented = content["schema"]["properties"]["data"]
    if "anyOf" in documented:
        end_mark, documented = documented["anyOf"]
        assert sent.pop() == end_mark["const"].encode() == sse.DONE
    judge = validator(documented["contentSchema"])
    for event in renderer.failed(ApiError("replica_lost", "why")):
        judge.validate(json.loads(event.data))
    event_judge = validator(documented["contentSchema"]["anyOf"][0])
    for data in sent:
        event_judge.validate(json.loads(data))


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.id)
def test_every_error_has_the_documented_envelope(operation: Any) -> None:
    responses = DOCUMENT["paths"][operation.path][operation.method]["responses"]
    dialect = (
        operation.dialect
        or ENDPOINTS[
            {"openai": "/v1/chat/completions", "anthropic": "/v1/messages", "tgi": "/generate"}[
                operation.family.name
            ]
        ]
    )
    limit = LimitDetail(name="queue", scope="model", subject="m", used=1, limit=1, clears_in_ms=5)
    for code in operation.codes:
        status, body = dialect.error(ApiError(code, "why", param="p", limit=limit), REQUEST_ID)
        assert str(status) in responses, code
        schema = responses[str(status)]["content"]["application/json"]["schema"]
        validator(schema).validate(json.loads(body))


def test_an_error_that_cannot_happen_there_is_not_documented_there() -> None:
    schema = operation_of("/v1/chat/completions")["responses"]["404"]["content"]["application/json"]["schema"]
    judge = validator(schema)
    assert judge.is_valid(json.loads(ApiError("model_not_found", "why").envelope()))
    assert not judge.is_valid(json.loads(ApiError("request_not_found", "why").envelope()))


def test_what_health_says_is_as_documented() -> None:
    responses = DOCUMENT["paths"]["/health"]["get"]["responses"]
    assert "content" not in responses["200"]
    validator(responses["503"]["content"]["application/json"]["schema"]).validate(json.loads(UNHEALTHY))


# -- the page -----------------------------------------------------------------------------------------------


def test_the_page_shows_every_operation_field_and_error_and_runs_no_script() -> None:
    page = page_bytes(Site()).decode()
    for operation in OPERATIONS:
        assert f'id="{operation.id}"' in page
    for _, schema in request_structs():
        for name in schema["properties"]:
            assert f"<code>{name}</code>" in page
    for code in ERRORS:
        assert f'id="error-{code}"' in page
    assert "<script" not in page
    assert not re.search(r'\s(?:style|on\w+)="', page), "the page's policy allows its one style element alone"
    assert "script-src" not in CONTENT_SECURITY_POLICY
    assert "default-src 'none'" in CONTENT_SECURITY_POLICY


def test_examples_in_python_are_python() -> None:
    for methods in DOCUMENT["paths"].values():
        for operation in methods.values():
            for sample in operation["x-codeSamples"]:
                if sample["lang"] == "Python":
                    compile(sample["source"], operation["operationId"], "exec")


# -- what the examples name ---------------------------------------------------------------------------------


def test_examples_name_the_site_and_nothing_else() -> None:
    site = Site("https://api.example:8443", "org/model-7b:latest")
    for rendered in (document_bytes(site), page_bytes(site)):
        text = rendered.decode()
        assert site.base_url in text
        assert site.model in text
        for other in (BASE_URL, MODEL, Site().base_url, "portal", "silently"):
            assert other not in text
    json.loads(document_bytes(site))


@pytest.mark.parametrize(
    ("scheme", "host", "base_url"),
    [
        ("http", "127.0.0.1:8000", "http://127.0.0.1:8000"),
        ("https", "API.example", "https://api.example"),
        ("https", "[::1]:8443", "https://[::1]:8443"),
        *(
            ("https", host, Site().base_url)
            for host in (
                "",
                "a b",
                "a, b",
                "a/b",
                "a@b",
                'evil"><script>',
                "$(id)",
                "a:",
                "a:0",
                "a:65536",
                "a:99999999",
                "-a",
                "a..b",
                "a.",
                "[1.2.3.4]",
                "[::1",
                "é",
                "a\n",
                "a" * 64,
                ".".join(["abc"] * 64),
            )
        ),
        ("ws", "a", Site().base_url),
    ],
)
def test_only_what_is_an_address_is_shown_as_one(scheme: str, host: str, base_url: str) -> None:
    assert site_of({"scheme": scheme}, {b"host": host.encode("latin-1")}, "m") == Site(base_url, "m")


@pytest.mark.parametrize("model", ["", "'; id", 'a"', "<b>", "a" * 201, "a\n"])
def test_only_what_needs_no_quotes_is_shown_as_a_model(model: str) -> None:
    assert site_of({"scheme": "http"}, {}, model).model == Site().model


def test_many_addresses_do_not_pile_up() -> None:
    for number in range(40):
        page_bytes(Site(f"http://host-{number}"))
    found = page_bytes.cache_info()
    assert found.maxsize is not None
    assert found.currsize <= found.maxsize <= 32
