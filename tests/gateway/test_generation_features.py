"""Several choices and prompts, log probabilities, echo, and what is passed on: through a whole gateway."""

import asyncio
import json
from itertools import permutations
from typing import Any
from uuid import UUID

import pytest
from openai import AsyncOpenAI

from gpuworker.wire.messages import (
    ChoiceEnd,
    Ended,
    Frame,
    PromptLogprobs,
    Submit,
    TokenLogprobs,
    unpack_ids,
)
from tests.gateway.full_worker import WORDS, answer_everything
from tests.gateway.harness import MODEL, GatewayProcess
from tests.gateway.peers import WAIT_S, WorkerPeer, end, socket_address
from tests.gateway.raw import RawConnection, Response
from tests.gateway.weights import tokenizer_make

pytestmark = pytest.mark.asyncio(loop_scope="package")

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
MESSAGES: list[Any] = [{"role": "user", "content": "hello"}]
TEXT = "".join(WORDS)
STOPPED_BY: tuple[str | int | None, ...] = ("END", 77, None)


def said(gateway: GatewayProcess, submit: Submit, *entries: tuple[int, int, int, str], **more: Any) -> None:
    """A frame of one request; `entries`: choice, tokens before it, tokens in it, text."""
    columns = list(zip(*entries, strict=True)) or [(), (), (), ()]
    choices, starts, counts, texts = map(list, columns)
    gateway.worker.send(
        Frame(
            step=1,
            sids=[submit.sid] * len(entries),
            starts=starts,
            counts=counts,
            texts=texts,
            choices=choices if submit.n > 1 else [],
            **more,
        )
    )


def chunks(response: Response) -> list[dict[str, Any]]:
    lines = response.body.decode().split("\n")
    return [json.loads(line[6:]) for line in lines if line.startswith("data: {")]


async def begin(
    gateway: GatewayProcess, path: str, body: dict[str, Any]
) -> tuple[RawConnection, list[Submit]]:
    """As many submits as there are prompts, each placed."""
    connection = await RawConnection.open(gateway.port)
    connection.send("POST", path, json.dumps({"model": MODEL, **body}).encode(), gateway.authorization())
    prompts = body.get("prompt", "")
    submits = [
        await gateway.dispatcher.submitted() for _ in range(len(prompts) if isinstance(prompts, list) else 1)
    ]
    for submit in submits:
        gateway.dispatcher.place(submit, gateway.worker)
    return connection, submits


async def ended(connection: RawConnection) -> Response:
    return await asyncio.wait_for(connection.response(), WAIT_S)


# -- choices ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", list(permutations(range(3))))
@pytest.mark.parametrize("stream", [True, False])
async def test_choices_end_in_any_order(
    gateway: GatewayProcess, order: tuple[int, ...], *, stream: bool
) -> None:
    wanted = {"messages": MESSAGES, "n": 3, "stream": stream, "max_tokens": 9, "seed": 4}
    wanted["stop_token_ids"] = [STOPPED_BY[1]]
    connection, (submit,) = await begin(gateway, CHAT, wanted)
    assert (submit.n, submit.max_tokens, submit.sampling.seed) == (3, 9, 4)
    said(gateway, submit, (0, 0, 1, "a"), (1, 0, 2, "b"), (2, 0, 1, ""))
    for choice in order:
        said(gateway, submit, (choice, 2 if choice == 1 else 1, 1, f"-{choice}"))
        reason = "length" if choice == 2 else "stop"
        output = 3 if choice == 1 else 2
        told = ChoiceEnd(
            sid=submit.sid, choice=choice, reason=reason, output_tokens=output, stopped_by=STOPPED_BY[choice]
        )
        said(gateway, submit, choice_ends=[told])
    said(gateway, submit, ends=[end(submit.sid, "stop", prompt=7, output=7)])
    response = await ended(connection)
    if stream:
        events = chunks(response)
        texts = ["", "", ""]
        reasons: list[Any] = [None] * 3
        for choice in (choice for event in events for choice in event["choices"]):
            texts[choice["index"]] += choice["delta"].get("content") or ""
            if choice["finish_reason"]:
                assert reasons[choice["index"]] is None
                reasons[choice["index"]] = (choice["finish_reason"], choice["stop_reason"])
        assert response.body.endswith(b"data: [DONE]\n\n")
    else:
        choices = response.json()["choices"]
        assert [choice["index"] for choice in choices] == [0, 1, 2]
        texts = [choice["message"]["content"] for choice in choices]
        reasons = [(choice["finish_reason"], choice["stop_reason"]) for choice in choices]
        assert response.json()["usage"]["completion_tokens"] == 7
    assert texts == ["a-0", "b-1", "-2"]
    assert reasons == [("stop", "END"), ("stop", 77), ("length", None)]
    record = gateway.usage_of(submit.request_id)
    assert (record.prompt_tokens, record.output_tokens, record.outcome) == (7, 7, "completed")
    connection.close()


@pytest.mark.parametrize(
    "entry",
    [
        (1, 2, 1, "late"),
        (1, 0, 1, "again"),
        (0, 0, 1, "again"),
        (2, 0, 1, "of another"),
        (-1, 0, 1, "of none"),
    ],
)
async def test_a_gap_in_one_choice_ends_the_request(
    gateway: GatewayProcess, entry: tuple[int, int, int, str]
) -> None:
    connection, (submit,) = await begin(gateway, COMPLETIONS, {"prompt": "x", "n": 2, "stream": True})
    said(gateway, submit, (0, 0, 1, "a"), (1, 0, 1, "b"))
    gateway.worker.counts[submit.sid] = (7, 2)
    said(gateway, submit, entry)
    response = await ended(connection)
    assert b'event: error\ndata: {"error":' in response.body
    assert b'"code":"stream_gap"' in response.body
    assert b"[DONE]" not in response.body
    assert gateway.usage_of(submit.request_id).outcome == "error"
    connection.close()


async def test_tokens_of_one_choice_that_never_came(gateway: GatewayProcess) -> None:
    connection, (submit,) = await begin(gateway, COMPLETIONS, {"prompt": "x", "n": 2})
    said(gateway, submit, (0, 0, 1, "a"), (1, 0, 1, "b"))
    ends = [ChoiceEnd(sid=submit.sid, choice=choice, reason="stop", output_tokens=2) for choice in (0, 1)]
    said(gateway, submit, choice_ends=ends, ends=[end(submit.sid, "stop", prompt=1, output=4)])
    response = await ended(connection)
    assert (response.status, response.json()["error"]["code"]) == (500, "stream_gap")
    assert gateway.usage_of(submit.request_id).output_tokens == 0  # nothing was given out
    connection.close()


# -- prompts ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [True, False])
async def test_each_prompt_is_submitted_and_recorded_by_itself(
    gateway: GatewayProcess, *, stream: bool
) -> None:
    """Their choices are numbered through, whichever is computed first."""
    prompts = ["one", [10, 20, 30], "three"]
    connection, submits = await begin(
        gateway, COMPLETIONS, {"prompt": prompts[::2], "n": 2, "stream": stream, "max_tokens": 3}
    )
    first = UUID(submits[0].request_id).int
    assert [UUID(submit.request_id).int - first for submit in submits] == [0, 1]
    for number in (1, 0):
        submit = submits[number]
        for choice in (1, 0):
            said(gateway, submit, (choice, 0, 1, f"p{number}c{choice}"))
        prompt = len(unpack_ids(submit.prompt))
        said(gateway, submit, ends=[end(submit.sid, "length", prompt=prompt, output=2)])
    response = await ended(connection)
    choices = (
        [choice for event in chunks(response) for choice in event["choices"]]
        if stream
        else response.json()["choices"]
    )
    texts = {choice["index"]: choice["text"] for choice in choices if choice["text"]}
    assert texts == {0: "p0c0", 1: "p0c1", 2: "p1c0", 3: "p1c1"}
    assert sorted(choice["index"] for choice in choices if choice["finish_reason"] == "length") == [
        0,
        1,
        2,
        3,
    ]
    records = [gateway.usage_of(submit.request_id) for submit in submits]
    assert [(record.prompt_tokens, record.output_tokens) for record in records] == [(3, 2), (5, 2)]
    if not stream:
        assert response.json()["usage"]["prompt_tokens"] == 8
        assert response.json()["usage"]["completion_tokens"] == 4
    connection.close()


@pytest.mark.parametrize("stream", [True, False])
async def test_a_replica_lost_under_one_prompt_ends_all(gateway: GatewayProcess, *, stream: bool) -> None:
    other = WorkerPeer("worker-1", socket_address(gateway.folder, f"w{stream}"), gateway.digest)
    await gateway.dispatcher.add(other)
    connection = await RawConnection.open(gateway.port)
    body = {"model": MODEL, "prompt": ["one", "two", "three"], "stream": stream}
    connection.send("POST", COMPLETIONS, json.dumps(body).encode(), gateway.authorization())
    submits = [await gateway.dispatcher.submitted() for _ in range(3)]
    for submit, worker in zip(submits, (gateway.worker, other, gateway.worker), strict=True):
        gateway.dispatcher.place(submit, worker)
        worker.emit(submit.sid, 0, 1, "x")
    gateway.worker.emit(submits[2].sid, 1, 1, "y", prompt=5)
    gateway.worker.finish(submits[2].sid, "stop", prompt=5, output=2)  # it is complete already
    await asyncio.sleep(0.1)
    await gateway.dispatcher.lose(other)
    response = await ended(connection)
    if stream:
        assert b'"code":"replica_lost"' in response.body
        assert b"[DONE]" not in response.body
    else:
        assert (response.status, response.json()["error"]["code"]) == (503, "replica_lost")
    cancel = await asyncio.wait_for(gateway.worker.cancels.get(), WAIT_S)
    assert cancel.sid == submits[0].sid
    records = [gateway.usage_of(submit.request_id) for submit in submits]
    assert [record.outcome for record in records] == [
        "error",
        "replica_lost",
        "completed" if stream else "error",
    ]
    assert [record.output_tokens for record in records] == ([1, 1, 2] if stream else [0, 0, 0])
    connection.close()


async def test_a_prompt_that_is_refused_ends_all(gateway: GatewayProcess) -> None:
    connection, submits = await begin(gateway, COMPLETIONS, {"prompt": ["one", "two"]})
    gateway.worker.emit(submits[0].sid, 0, 1, "x")
    message = "the request is longer than any replica can hold"
    refused = Ended(sid=submits[1].sid, code="refused", message=message, reason="too_long")
    gateway.dispatcher.send(refused)
    response = await ended(connection)
    error = response.json()["error"]
    assert (response.status, error["code"], error["param"]) == (400, "context_length_exceeded", "prompt")
    assert (await asyncio.wait_for(gateway.worker.cancels.get(), WAIT_S)).sid == submits[0].sid
    assert [gateway.usage_of(submit.request_id).output_tokens for submit in submits] == [0, 0]
    connection.close()


async def test_a_client_that_leaves_ends_all_prompts(gateway: GatewayProcess) -> None:
    connection, submits = await begin(gateway, COMPLETIONS, {"prompt": ["one", "two"], "n": 2})
    connection.close()
    cancels = [await asyncio.wait_for(gateway.worker.cancels.get(), WAIT_S) for _ in submits]
    assert {cancel.sid for cancel in cancels} == {submit.sid for submit in submits}
    await gateway.idle()
    assert {gateway.usage_of(submit.request_id).outcome for submit in submits} == {"cancelled"}


# -- log probabilities and echo -----------------------------------------------------------------------------


@pytest.fixture
def answering(gateway: GatewayProcess) -> Any:
    with gateway.dispatcher.scripted(answer_everything(gateway.dispatcher)):
        yield gateway


async def test_log_probabilities_of_a_chat(answering: GatewayProcess) -> None:
    """Through the official client's own types; streamed and whole say the same."""
    asked: dict[str, Any] = {
        "model": MODEL,
        "messages": MESSAGES,
        "n": 2,
        "logprobs": True,
        "top_logprobs": 3,
    }
    async with AsyncOpenAI(
        base_url=answering.base_url, api_key=answering.key, _strict_response_validation=True
    ) as client:
        whole = await client.chat.completions.create(**asked, extra_body={"prompt_logprobs": 1})
        stream = await client.chat.completions.create(**asked, stream=True)
        events = [event async for event in stream]
    prompt = whole.model_dump()["prompt_logprobs"]
    assert prompt[0] is None
    assert whole.usage is not None
    assert len(prompt) == whole.usage.prompt_tokens
    for choice in whole.choices:
        assert choice.message.content == TEXT
        assert choice.logprobs is not None
        told = choice.logprobs.content or []
        assert [token.logprob for token in told] == [-0.5] * 5
        assert [len(token.top_logprobs) for token in told] == [3] * 5
        streamed = [
            token
            for event in events
            for part in event.choices
            if part.index == choice.index and part.logprobs
            for token in part.logprobs.content or []
        ]
        assert streamed == told


@pytest.mark.parametrize("stream", [True, False])
async def test_an_echoed_prompt_with_its_log_probabilities(
    answering: GatewayProcess, *, stream: bool
) -> None:
    body = {"model": MODEL, "prompt": "hello", "echo": True, "logprobs": 1, "max_tokens": 2, "stream": stream}
    response = await answering.post(COMPLETIONS, body)
    events = chunks(response) if stream else [response.json()]
    choices = [choice for event in events for choice in event["choices"]]
    assert "".join(choice["text"] for choice in choices) == "the prompt Hello wörld"
    told = [choice["logprobs"] for choice in choices if choice["logprobs"]]
    tokens = [token for logprobs in told for token in logprobs["tokens"]]
    assert tokens[:3] == ["he", "ll", "o"]
    values = [value for logprobs in told for value in logprobs["token_logprobs"]]
    assert values == [None, -0.5, -0.5, -0.5, -0.5]
    assert len({len(logprobs[name]) for logprobs in told[:1] for name in logprobs}) == 1


async def test_an_echo_alone(answering: GatewayProcess) -> None:
    body = {"model": MODEL, "prompt": "hello", "echo": True, "max_tokens": 0, "logprobs": 0}
    response = (await answering.post(COMPLETIONS, body)).json()
    assert (response["choices"][0]["text"], response["usage"]["completion_tokens"]) == ("the prompt ", 0)
    assert response["choices"][0]["logprobs"]["tokens"] == ["he", "ll", "o"]
    assert response["choices"][0]["finish_reason"] == "length"


async def test_log_probabilities_in_pieces_and_late(gateway: GatewayProcess) -> None:
    """A prompt's may come in several frames; those of a token whose text is held back come with the text."""
    body = {"prompt": [10, 20, 30, 40], "stream": True, "logprobs": 0, "echo": True}
    connection, (submit, *_) = await begin(gateway, COMPLETIONS, {**body, "prompt": [[10, 20, 30, 40]]})
    for first, tokens in ((1, [20, 30]), (3, [40])):
        told = [TokenLogprobs(token, -1.0, []) for token in tokens]
        said(gateway, submit, prompts=[PromptLogprobs(sid=submit.sid, first=first, tokens=told)])
    said(gateway, submit, (0, 0, 0, "PROMPT"), logprobs=[[]])
    said(gateway, submit, (0, 0, 1, ""), logprobs=[[TokenLogprobs(50, -2.0, [])]])
    said(gateway, submit, (0, 1, 1, "né"), logprobs=[[TokenLogprobs(51, -3.0, [])]])
    said(gateway, submit, ends=[end(submit.sid, "length", prompt=4, output=2)])
    parts = [event["choices"][0] for event in chunks(await ended(connection))]
    told_values = [part["logprobs"]["token_logprobs"] if part["logprobs"] else None for part in parts]
    assert [value for values in told_values if values for value in values] == [
        None,
        -1.0,
        -1.0,
        -1.0,
        -2.0,
        -3.0,
    ]
    assert "".join(part["text"] for part in parts) == "PROMPTné"
    offsets = [offset for part in parts if part["logprobs"] for offset in part["logprobs"]["text_offset"]]
    assert offsets == sorted(offsets)
    connection.close()


# -- what is passed on --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"priority": 3}, {"klass": "batch"}),
        ({"priority": -3}, {"klass": "interactive"}),
        ({"priority": 0, "service_tier": "flex"}, {"klass": "batch"}),
        ({"cache_salt": "né"}, {"cache_salt": "né"}),
        ({"stop": ["a", "b"], "stop_token_ids": [5]}, {"stop": ["a", "b"], "stop_ids": [2, 0, 5]}),
        ({"ignore_eos": True}, {"ignore_eos": True}),
        ({"n": 4, "best_of": 4}, {"n": 4}),
    ],
)
async def test_what_the_worker_is_told(
    gateway: GatewayProcess, fields: dict[str, Any], expected: dict[str, Any]
) -> None:
    connection, (submit,) = await begin(gateway, COMPLETIONS, {"prompt": "hello", **fields})
    assert {name: getattr(submit, name) for name in expected} == expected
    connection.close()


async def test_the_tier_that_was_used_is_told(echoing: GatewayProcess) -> None:
    for fields, tier in (({"priority": 1}, "flex"), ({"priority": -1}, "default")):
        response = await echoing.post(COMPLETIONS, {"model": MODEL, "prompt": "hello", **fields})
        assert response.json()["service_tier"] == tier
        assert echoing.usage_of(response.headers["x-request-id"]).klass == (
            "batch" if tier == "flex" else "interactive"
        )


async def test_a_prompt_is_cut_to_its_end(gateway: GatewayProcess) -> None:
    ids = tokenizer_make().encode("x" * 300 + "hello").ids
    for prompt in (["x" * 300 + "hello"], [ids]):
        body = {"prompt": prompt, "truncate_prompt_tokens": 3}
        connection, (submit,) = await begin(gateway, COMPLETIONS, body)
        assert unpack_ids(submit.prompt) == ids[-3:]
        connection.close()
    far_too_long = await gateway.post(
        COMPLETIONS, {"model": MODEL, "prompt": "x" * 600, "truncate_prompt_tokens": 600}
    )
    assert far_too_long.json()["error"]["code"] == "context_length_exceeded"


@pytest.mark.parametrize("field", [{"logit_bias": {"999999": 1}}, {"stop_token_ids": [999_999]}])
async def test_tokens_that_the_model_lacks_are_named(gateway: GatewayProcess, field: dict[str, Any]) -> None:
    body = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], **field}
    refused = await gateway.post("/v1/chat/completions", body)
    error = refused.json()["error"]
    assert (refused.status, error["code"], error["param"]) == (400, "invalid_value", next(iter(field)))
