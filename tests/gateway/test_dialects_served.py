"""Anthropic's and TGI's dialects through a running gateway: what all dialects share, in their words."""

import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import pytest_asyncio

from devservices.valkey import ValkeyServer
from gpuworker.wire.messages import End, Ended, Frame, PromptLogprobs, Submit, TokenLogprobs, unpack_ids
from tests.conftest import Database
from tests.gateway.durable import Fleet, fleet_started
from tests.gateway.harness import MODEL, GatewayProcess, gateway_started
from tests.gateway.peers import Dispatcher, echo
from tests.gateway.raw import RawConnection, Response, request
from tests.gateway.weights import tokenizer_make

pytestmark = pytest.mark.asyncio(loop_scope="package")

END_OF_TURN = 2
TEXT = "né 👍 a"
USER = [{"role": "user", "content": "hello"}]
MESSAGES = ("/v1/messages", {"model": MODEL, "max_tokens": 64, "messages": USER})
TGI_BODY = {"inputs": "hello", "parameters": {"max_new_tokens": 64, "details": True, "do_sample": True}}
GENERATE = ("/generate", TGI_BODY)
GENERATE_STREAM = ("/generate_stream", TGI_BODY)
COMPAT = ("/", TGI_BODY)
Case = tuple[str, dict[str, Any]]
EVERY_CASE = [
    pytest.param(MESSAGES, id="messages"),
    pytest.param((MESSAGES[0], {**MESSAGES[1], "stream": True}), id="messages-stream"),
    pytest.param(GENERATE, id="generate"),
    pytest.param(GENERATE_STREAM, id="generate-stream"),
    pytest.param(COMPAT, id="compat"),
    pytest.param((COMPAT[0], {**COMPAT[1], "stream": True}), id="compat-stream"),
]
WITHOUT_A_MODEL = {"SLUICE_DEFAULT_MODEL": MODEL}


@pytest_asyncio.fixture(scope="module", loop_scope="package")
async def default_gateway() -> AsyncIterator[GatewayProcess]:
    async with gateway_started(environment=WITHOUT_A_MODEL) as gateway:
        yield gateway


@pytest_asyncio.fixture(loop_scope="package")
async def served(default_gateway: GatewayProcess) -> AsyncIterator[GatewayProcess]:
    default_gateway.peers_reset()
    await default_gateway.ready()
    yield default_gateway
    await default_gateway.idle()


@pytest_asyncio.fixture(loop_scope="package")
async def fleet(database: Database, valkey: ValkeyServer) -> AsyncIterator[Fleet]:
    async with fleet_started(database, valkey) as fleet:
        yield fleet


def speaking(
    dispatcher: Dispatcher, *, stopped_by: str | int | None = END_OF_TURN, reason: str = "stop"
) -> Callable[[Submit], None]:
    """A script: TEXT token by token as an engine would, each character with its last byte."""

    def script(submit: Submit) -> None:
        worker = dispatcher.workers[0]
        dispatcher.place(submit, worker)
        prompt = unpack_ids(submit.prompt)
        ids = tokenizer_make().encode(TEXT).ids
        shown = list(TEXT.encode())
        texts = [bytes(shown[: at + 1]).decode(errors="ignore") for at in range(len(shown))]
        texts = [text[len(before) :] for before, text in zip(["", *texts], texts, strict=False)]
        if stopped_by == END_OF_TURN:
            ids, texts = [*ids, END_OF_TURN], [*texts, ""]
        count, wants = len(ids), submit.sampling.logprobs >= 0
        logprobs = [[TokenLogprobs(token, -0.25, [])] if wants else [] for token in ids]
        known = [TokenLogprobs(token, -1.5, []) for token in prompt[1:]]
        worker.send(
            Frame(
                step=1,
                sids=[submit.sid] * count,
                starts=list(range(count)),
                counts=[1] * count,
                texts=texts,
                logprobs=logprobs if wants else [],
                prompts=[PromptLogprobs(sid=submit.sid, first=1, tokens=known)]
                if submit.sampling.prompt_logprobs >= 0
                else [],
                ends=[
                    End(
                        sid=submit.sid,
                        reason=reason,
                        prompt_tokens=len(prompt),
                        cached_tokens=0,
                        output_tokens=count,
                        queue_ms=0,
                        prefill_ms=0,
                        decode_ms=0,
                        preemptions=0,
                        stopped_by=stopped_by,
                    )
                ],
            )
        )

    return script


def events_of(response: Response) -> list[Any]:
    lines = response.body.decode().split("\n")
    return [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]


async def asked(gateway: GatewayProcess, case: Case, **script: Any) -> Response:
    with gateway.dispatcher.scripted(speaking(gateway.dispatcher, **script)):
        path, body = case
        return await gateway.post(path, body)


# -- answers ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("script", "anthropic", "tgi"),
    [
        ({}, ("end_turn", None), "eos_token"),
        ({"stopped_by": None}, ("end_turn", None), "eos_token"),
        ({"stopped_by": "##"}, ("stop_sequence", "##"), "stop_sequence"),
        ({"stopped_by": None, "reason": "length"}, ("max_tokens", None), "length"),
    ],
)
async def test_what_ended_an_answer_is_said_in_every_dialect(
    served: GatewayProcess, script: dict[str, Any], anthropic: tuple[str, str | None], tgi: str
) -> None:
    message = (await asked(served, MESSAGES, **script)).json()
    assert message["content"] == [{"type": "text", "text": TEXT, "citations": None}]
    assert (message["stop_reason"], message["stop_sequence"]) == anthropic
    for case in (GENERATE, COMPAT):
        answer = (await asked(served, case, **script)).json()
        (generated,) = answer if case is COMPAT else [answer]
        assert generated["generated_text"] == TEXT
        assert generated["details"]["finish_reason"] == tgi


async def test_the_events_of_a_message(served: GatewayProcess) -> None:
    response = await asked(served, (MESSAGES[0], {**MESSAGES[1], "stream": True}), stopped_by="##")
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    events = events_of(response)
    kinds = [event["type"] for event in events]
    assert kinds[:3] == ["message_start", "content_block_start", "ping"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    deltas = [event["delta"]["text"] for event in events if event["type"] == "content_block_delta"]
    assert ("".join(deltas), all(deltas)) == (TEXT, True)
    assert events[-2]["delta"] == {"stop_reason": "stop_sequence", "stop_sequence": "##"}
    names = [line for line in response.body.decode().split("\n") if line.startswith("event: ")]
    assert names == [f"event: {kind}" for kind in kinds]
    assert b"[DONE]" not in response.body


async def test_the_events_of_a_generation(served: GatewayProcess) -> None:
    for case in (GENERATE_STREAM, (COMPAT[0], {**COMPAT[1], "stream": True})):
        response = await asked(served, case)
        events = events_of(response)
        assert [event["index"] for event in events] == list(range(1, len(TEXT.encode()) + 2))
        assert "".join(e["token"]["text"] for e in events if not e["token"]["special"]) == TEXT
        assert [event["generated_text"] for event in events[:-1]] == [None] * (len(events) - 1)
        last = events[-1]
        assert last["token"] == {"id": END_OF_TURN, "text": "", "logprob": -0.25, "special": True}
        assert last["generated_text"] == TEXT
        assert last["details"]["generated_tokens"] == len(events)
        assert last["details"]["input_length"] == len(tokenizer_make().encode("hello").ids)
        assert b"[DONE]" not in response.body
        assert b"event: " not in response.body


async def test_the_tokens_of_prompt_and_output(served: GatewayProcess) -> None:
    parameters = {**TGI_BODY["parameters"], "decoder_input_details": True, "return_full_text": True}  # type: ignore[dict-item]
    response = await asked(served, ("/generate", {**TGI_BODY, "parameters": parameters}))
    answer = response.json()
    details = answer["details"]
    assert answer["generated_text"] == "hello" + TEXT
    assert "".join(token["text"] for token in details["prefill"]) == "hello"
    assert [token["logprob"] for token in details["prefill"]] == [None, -1.5, -1.5]
    assert "".join(token["text"] for token in details["tokens"] if not token["special"]) == TEXT
    assert details["seed"] is not None
    assert response.headers["x-prompt-tokens"] == "3"
    assert response.headers["x-generated-tokens"] == str(details["generated_tokens"])
    assert response.headers["x-compute-characters"] == "5"


async def test_counted_tokens_are_those_that_a_message_takes(served: GatewayProcess) -> None:
    body = {"model": MODEL, "messages": USER, "system": "Be brief."}
    counted = await served.post("/v1/messages/count_tokens", body, f"x-api-key: {served.key}")
    message = await asked(served, (MESSAGES[0], {**body, "max_tokens": 5}))
    assert counted.json() == {"input_tokens": message.json()["usage"]["input_tokens"]}
    refused = await served.post("/v1/messages/count_tokens", {**body, "max_tokens": 5})
    assert (refused.status, refused.json()["error"]["details"]["param"]) == (400, "max_tokens")


async def test_documents(served: GatewayProcess) -> None:
    health = await request(served.port, "GET", "/health")
    assert (health.status, health.body) == (200, b"")
    info = (await request(served.port, "GET", "/info")).json()
    assert (info["model_id"], info["model_sha"]) == (MODEL, served.digest)


# -- errors -------------------------------------------------------------------------------------------------


def said(response: Response) -> tuple[int, str]:
    """Status and type, and that nothing but the dialect's own envelope is there."""
    body = response.json()
    if body.get("type") == "error":
        assert body["request_id"] == response.headers["x-request-id"]
        return response.status, body["error"]["type"]
    assert body.keys() - {"limit"} == {"error", "error_type"}
    return response.status, body["error_type"]


@pytest.mark.parametrize("case", EVERY_CASE)
async def test_a_missing_key(served: GatewayProcess, case: Case) -> None:
    path, body = case
    response = await served.post(path, body, "accept: */*")
    expected = "authentication_error" if path == MESSAGES[0] else "invalid_api_key"
    assert said(response) == (401, expected)


async def test_a_key_in_either_header(served: GatewayProcess) -> None:
    path, body = MESSAGES
    with served.dispatcher.scripted(echo(served.dispatcher)):
        for header in (f"x-api-key: {served.key}", served.authorization()):
            assert (await served.post(path, body, header, "anthropic-version: 2023-06-01")).status == 200
    assert said(await served.post(path, body, f"x-api-key: {served.keys['unknown']}"))[0] == 401


@pytest.mark.parametrize("case", EVERY_CASE)
async def test_a_prompt_that_is_too_long(served: GatewayProcess, case: Case) -> None:
    path, body = case
    long = "x" * 600
    field = {"inputs": long} if "inputs" in body else {"messages": [{"role": "user", "content": long}]}
    response = await served.post(path, {**body, **field})
    expected = (400, "invalid_request_error") if path == MESSAGES[0] else (422, "validation")
    assert said(response) == expected


async def test_a_model_that_does_not_exist(served: GatewayProcess) -> None:
    response = await served.post(MESSAGES[0], {**MESSAGES[1], "model": "absent"})
    assert said(response) == (404, "not_found_error")


@pytest.mark.parametrize("case", EVERY_CASE)
@pytest.mark.parametrize(
    ("code", "anthropic", "tgi"),
    [
        ("queue_full", (429, "rate_limit_error"), (429, "overloaded")),
        ("no_replica", (529, "overloaded_error"), (429, "overloaded")),
        ("deadline_exceeded", (504, "timeout_error"), (504, "incomplete_generation")),
    ],
)
async def test_what_the_dispatcher_refuses(
    served: GatewayProcess, case: Case, code: str, anthropic: tuple[int, str], tgi: tuple[int, str]
) -> None:
    def refuse(submit: Submit) -> None:
        served.dispatcher.send(Ended(sid=submit.sid, code=code, message="no", retry_after_ms=50))

    path, body = case
    with served.dispatcher.scripted(refuse):
        response = await served.post(path, body)
    assert said(response) == (anthropic if path == MESSAGES[0] else tgi)
    assert ("retry-after" in response.headers) == (code != "deadline_exceeded")


@pytest.mark.parametrize("case", EVERY_CASE)
async def test_a_stream_that_breaks_ends_in_an_error_event(served: GatewayProcess, case: Case) -> None:
    response = await asked(served, case, reason="error", stopped_by=None)
    path, body = case
    if body.get("stream") or path == "/generate_stream":
        last = events_of(response)[-1]
        kind = last["error"]["type"] if path == MESSAGES[0] else last["error_type"]
        assert kind == ("api_error" if path == MESSAGES[0] else "generation")
        assert (b"event: error\n" in response.body) == (path == MESSAGES[0])
    else:
        assert said(response) == ((500, "api_error") if path == MESSAGES[0] else (424, "generation"))


# -- answers that outlive their connection ------------------------------------------------------------------


async def test_a_repeated_request_gets_the_same_bytes(fleet: Fleet) -> None:
    gateway = fleet.gateways[0]
    key = fleet.customer.authorization
    for number, case in enumerate(EVERY_CASE):
        path, body = case.values[0]  # type: ignore[misc]
        with gateway.dispatcher.scripted(speaking(gateway.dispatcher)):
            first = await gateway.post(path, body, key, f"idempotency-key: k{number}")
        again = await gateway.post(path, body, key, f"idempotency-key: k{number}")
        assert (first.status, again.status, again.body) == (200, 200, first.body)
        assert again.headers["idempotent-replayed"] == "true"
        for name in ("x-prompt-tokens", "x-generated-tokens", "request-id"):
            assert again.headers.get(name) == first.headers.get(name)


@pytest.mark.parametrize("case", [EVERY_CASE[1], EVERY_CASE[3]])
async def test_a_stream_that_was_cut_goes_on_where_it_was(fleet: Fleet, case: Case) -> None:
    gateway = fleet.gateways[0]
    path, body = case
    with gateway.dispatcher.scripted(speaking(gateway.dispatcher)):
        connection = await RawConnection.open(gateway.port)
        data = json.dumps(body).encode()
        connection.send("POST", path, data, fleet.customer.authorization, "x-stream-resume: 1")
        whole = await connection.response()
    events = whole.body.decode().split("\n\n")[:-1]
    numbers = [int(event.split("\n")[0].rpartition(":")[2]) for event in events]
    assert numbers == list(range(1, len(events) + 1))
    request_id = whole.headers["x-request-id"]
    for after in range(len(events) + 1):
        rest = await fleet.get(f"/v1/streams/{request_id}?after={after}")
        assert rest.body.decode().split("\n\n")[:-1] == events[after:]
