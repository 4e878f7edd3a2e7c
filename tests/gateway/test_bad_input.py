"""Everything a client can get wrong: the right status, a clear envelope, and a service that goes on."""

import asyncio
import json
import socket
from typing import Any

import pytest

from tests.gateway.harness import MODEL, GatewayProcess
from tests.gateway.raw import RawConnection, request

pytestmark = pytest.mark.asyncio(loop_scope="package")

CHAT = "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "hello"}]
MIB = 1024 * 1024


def chat(**fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": MESSAGES, **fields}


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        (b"", "invalid_json", None),
        (b"{", "invalid_json", None),
        (b'{"model": "\xff"}', "invalid_json", None),
        (b'{"model":"tiny","messages":[]} x', "invalid_json", None),
        (b'{"user":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "invalid_json", None),
        (b'{"model":"tiny","seed":' + b"9" * 10_000 + b"}", None, None),
        (b"[]", "invalid_type", None),
        (b'"text"', "invalid_type", None),
        ({"messages": MESSAGES}, "missing_required_parameter", "model"),
        ({"model": MODEL}, "missing_required_parameter", "messages"),
        ({"model": 7, "messages": MESSAGES}, "invalid_type", "model"),
        ({"model": "", "messages": MESSAGES}, "invalid_value", "model"),
        ({"model": "absent", "messages": MESSAGES}, "model_not_found", "model"),
        (chat(messages=[]), "invalid_value", "messages"),
        (chat(messages="hello"), "invalid_type", "messages"),
        (chat(messages=[{"content": "x"}]), "missing_required_parameter", "messages[0].role"),
        (chat(messages=[{"role": "robot", "content": "x"}]), "invalid_value", "messages[0].role"),
        (chat(messages=[{"role": "tool", "content": "x"}]), "unsupported_parameter", "messages[0].role"),
        (chat(messages=[{"role": "user"}]), "missing_required_parameter", "messages[0].content"),
        (chat(messages=[{"role": "user", "content": 5}]), "invalid_type", "messages[0].content"),
        (
            chat(messages=[{"role": "user", "content": [{"type": "image_url"}]}]),
            "unsupported_parameter",
            "messages[0].content[0].type",
        ),
        (
            chat(messages=[{"role": "assistant", "content": "x", "tool_calls": [{"id": "1"}]}]),
            "unsupported_parameter",
            "messages[0].tool_calls",
        ),
        (chat(max_tokens=0), "invalid_value", "max_tokens"),
        (chat(max_tokens=-1), "invalid_value", "max_tokens"),
        (chat(max_completion_tokens=0), "invalid_value", "max_completion_tokens"),
        (chat(max_tokens=1, max_completion_tokens=1), "invalid_value", "max_completion_tokens"),
        (chat(max_tokens=True), "invalid_type", "max_tokens"),
        (chat(max_tokens=1.5), "invalid_type", "max_tokens"),
        (chat(max_tokens="1"), "invalid_type", "max_tokens"),
        (chat(max_tokens=512), "context_length_exceeded", "max_tokens"),
        (chat(messages=[{"role": "user", "content": "x" * 600}]), "context_length_exceeded", "messages"),
        (chat(temperature=2.1), "invalid_value", "temperature"),
        (chat(temperature=-0.1), "invalid_value", "temperature"),
        (chat(top_p=-0.1), "invalid_value", "top_p"),
        (chat(top_p=1.1), "invalid_value", "top_p"),
        (chat(top_k=-2), "invalid_value", "top_k"),
        (chat(seed=1 << 65), "invalid_value", "seed"),
        (chat(seed=-(1 << 64)), "invalid_value", "seed"),
        (chat(messages=[{"role": "user", "content": ""}] * 600), "context_length_exceeded", "messages"),
        (chat(messages=[{"role": "user", "content": ""}] * 33_000), "invalid_value", "messages"),
        (
            chat(messages=[{"role": "user", "content": None, "refusal": "x"}]),
            "missing_required_parameter",
            "messages[0].content",
        ),
        (
            chat(messages=[{"role": "assistant", "content": [{"type": "refusal"}]}]),
            "missing_required_parameter",
            "messages[0].content[0].refusal",
        ),
        (chat(stop=["a"] * 5), "invalid_value", "stop"),
        (chat(stop=""), "invalid_value", "stop"),
        (b'{"model":"tiny","stop":"\\ud800"}', "invalid_json", None),
        (b'{"surprise":' + b"[" * 200_000 + b"]" * 200_000 + b"}", "invalid_json", None),
        (b'{"model":' + b"[" * 200_000 + b"]" * 200_000 + b"}", "invalid_json", None),
        (b'{"surprise":1,"model":}', "invalid_json", None),
        (chat(stop=7), "invalid_type", "stop"),
        (chat(stream="yes"), "invalid_type", "stream"),
        (chat(stream_options={"include_usage": True}), "invalid_value", "stream_options"),
        (
            chat(stream=True, stream_options={"surprise": 1}),
            "unknown_parameter",
            "stream_options.surprise",
        ),
        (chat(service_tier="gold"), "invalid_value", "service_tier"),
        (chat(surprise=1), "unknown_parameter", "surprise"),
        (chat(n=129), "invalid_value", "n"),
        (chat(best_of=2), "unsupported_parameter", "best_of"),
        (chat(logprobs=3), "invalid_type", "logprobs"),
        (chat(top_logprobs=3), "invalid_value", "top_logprobs"),
        (chat(tools=[{"type": "function"}]), "unsupported_parameter", "tools"),
        (chat(response_format={"type": "xml"}), "invalid_value", "response_format.type"),
        (
            chat(response_format={"type": "json_schema"}),
            "invalid_value",
            "response_format.json_schema.schema",
        ),
        (chat(response_format="json"), "invalid_type", "response_format"),
        (chat(guided_choice=[]), "invalid_value", "guided_choice"),
        (chat(guided_regex="a", guided_choice=["a"]), "invalid_value", "guided_choice"),
        (chat(guided_regex="a" * 70_000), "invalid_value", "guided_regex"),
        (chat(structured_outputs={"grammar": "x"}), "unknown_parameter", "structured_outputs.grammar"),
        (chat(guided_regex="a", min_tokens=1), "invalid_value", "min_tokens"),
        (chat(logit_bias={"x": 1}), "invalid_value", "logit_bias"),
        (chat(logit_bias={"5": 101}), "invalid_value", "logit_bias[5]"),
        (chat(logit_bias={"5": 1, "05": 2}), "invalid_value", "logit_bias"),
        (chat(logit_bias={str(token): 1 for token in range(1025)}), "invalid_value", "logit_bias"),
        (chat(presence_penalty=2.5), "invalid_value", "presence_penalty"),
        (chat(frequency_penalty=-2.5), "invalid_value", "frequency_penalty"),
        (chat(repetition_penalty=0), "invalid_value", "repetition_penalty"),
        (chat(repetition_penalty=11), "invalid_value", "repetition_penalty"),
        (chat(min_p=1.5), "invalid_value", "min_p"),
        (chat(min_tokens=-1), "invalid_value", "min_tokens"),
        (chat(stop_token_ids=[-1]), "invalid_value", "stop_token_ids[0]"),
        (chat(stop_token_ids=[0] * 65), "invalid_value", "stop_token_ids"),
    ],
    ids=lambda value: str(value)[:40],
)
async def test_chat_refuses(gateway: GatewayProcess, body: Any, code: str | None, param: str | None) -> None:
    response = await gateway.post(CHAT, body)
    error = response.json()["error"]
    assert response.status == (404 if code == "model_not_found" else 400)
    if code is not None:
        assert (error["code"], error["param"]) == (code, param)
    assert error["type"] == "invalid_request_error"
    assert error["message"]
    assert len(response.headers["x-request-id"]) == 36
    assert gateway.dispatcher.submits.empty()


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (chat(stop=""), "stop must have at least 1 character"),
        *(
            (
                b'{"model":"tiny","stop":"' + stop + b'"}',
                "the request body is not valid JSON: a string holds a lone surrogate",
            )
            for stop in (rb"\ud800", rb"\ud800abcdefgh", rb"\udc00", rb"\ud800\u0041")
        ),
        (b'{"model":"ti', "the request body is not valid JSON: Input data was truncated"),
        (b'{"surprise":' + b"[" * 9999 + b"]" * 9999 + b"}", "the JSON is nested too deeply"),
    ],
)
async def test_the_words_of_an_error(gateway: GatewayProcess, body: Any, message: str) -> None:
    assert (await gateway.post(CHAT, body)).json()["error"]["message"] == message


async def test_a_compressed_body_is_refused(echoing: GatewayProcess) -> None:
    gzip = await echoing.post(CHAT, b"\x1f\x8b", echoing.authorization(), "content-encoding: gzip")
    plain = await echoing.post(CHAT, chat(), echoing.authorization(), "content-encoding: identity")
    assert (gzip.status, gzip.json()["error"]["code"]) == (415, "unsupported_encoding")
    assert "'gzip'" in gzip.json()["error"]["message"]
    assert plain.status == 200


@pytest.mark.parametrize(
    ("prompt", "code"),
    [
        ("", "invalid_value"),
        ([], "invalid_value"),
        (["x"] * 129, "invalid_value"),
        ([[1], []], "invalid_value"),
        ([1, "two"], "invalid_value"),
        ([-1], "invalid_value"),
        ([100_000], "invalid_value"),
        ({}, "invalid_type"),
        (None, "invalid_type"),
    ],
)
async def test_completions_refuses(gateway: GatewayProcess, prompt: Any, code: str) -> None:
    response = await gateway.post("/v1/completions", {"model": MODEL, "prompt": prompt})
    assert response.status == 400
    assert response.json()["error"]["code"] == code


async def test_neutral_and_ignored_parameters_are_served(echoing: GatewayProcess) -> None:
    response = await echoing.post(
        CHAT,
        chat(
            n=1,
            best_of=1,
            logprobs=False,
            skip_special_tokens=True,
            tools=[],
            tool_choice="auto",
            presence_penalty=0,
            frequency_penalty=0.0,
            logit_bias={},
            response_format={"type": "text"},
            user="someone",
            metadata={"a": "b"},
            prompt_cache_key="k",
            stream_options=None,
            max_tokens=None,
            stop=None,
        ),
    )
    assert response.status == 200


@pytest.mark.parametrize(
    "headers",
    [
        ("x-nothing: 1",),
        ("authorization: Basic abc",),
        ("authorization: Bearer",),
        ("authorization: Bearer sk-slc-garbled",),
        ("authorization: Bearer \xff\xfe",),
    ],
)
async def test_keys_that_are_none(gateway: GatewayProcess, headers: tuple[str, ...]) -> None:
    for path, method in (("/v1/models", "GET"), ("/v1/models/tiny", "GET"), (CHAT, "POST")):
        response = await request(gateway.port, method, path, b"", *headers)
        assert response.status == 401
        assert response.json()["error"]["code"] == "invalid_api_key"
        assert response.headers["www-authenticate"] == "Bearer"


async def test_a_key_with_one_wrong_character_is_refused(gateway: GatewayProcess) -> None:
    key = gateway.key
    wrong = key[:-1] + ("A" if key[-1] != "A" else "B")
    response = await gateway.post(CHAT, chat(), f"authorization: Bearer {wrong}")
    assert response.status == 401


async def test_unknown_paths_and_methods(gateway: GatewayProcess) -> None:
    nothing = await request(gateway.port, "GET", "/v1/nothing", b"", gateway.authorization())
    wrong = await request(gateway.port, "GET", CHAT, b"", gateway.authorization())
    assert (nothing.status, nothing.json()["error"]["code"]) == (404, "unknown_url")
    assert (wrong.status, wrong.headers["allow"]) == (405, "POST")


async def test_body_over_the_cap_with_content_length(gateway: GatewayProcess) -> None:
    response = await gateway.post(CHAT, b"x" * (4 * MIB + 1))
    assert response.status == 413
    assert response.json()["error"]["code"] == "request_too_large"


async def test_body_over_the_cap_in_chunks(gateway: GatewayProcess) -> None:
    connection = await RawConnection.open(gateway.port)
    connection.send("POST", CHAT, b"", "transfer-encoding: chunked", gateway.authorization())
    chunk = b"%x\r\n" % MIB + b"x" * MIB + b"\r\n"
    for _ in range(5):
        connection.writer.write(chunk)
        await connection.writer.drain()
    connection.writer.write(b"0\r\n\r\n")
    response = await connection.response()
    assert response.status == 413
    await connection.closed()
    connection.close()


@pytest.mark.parametrize("headers", [(), ("expect: 100-continue",)])
async def test_body_announced_too_large_is_refused_before_it_is_sent(
    gateway: GatewayProcess, headers: tuple[str, ...]
) -> None:
    connection = await RawConnection.open(gateway.port)
    connection.send("POST", CHAT, b"", "content-length: 1000000000000", gateway.authorization(), *headers)
    response = await asyncio.wait_for(connection.response(), 2)
    assert (response.status, response.headers["connection"]) == (413, "close")
    await asyncio.wait_for(connection.closed(), 2)
    connection.close()


async def test_chunks_over_the_cap_are_refused_before_they_end(gateway: GatewayProcess) -> None:
    connection = await RawConnection.open(gateway.port)
    connection.send("POST", CHAT, b"", "transfer-encoding: chunked", gateway.authorization())
    connection.writer.write((b"%x\r\n" % MIB + b"x" * MIB + b"\r\n") * 6)
    response = await asyncio.wait_for(connection.response(), 2)
    assert (response.status, response.headers["connection"]) == (413, "close")
    await asyncio.wait_for(connection.closed(), 2)
    connection.close()


async def test_a_client_that_reads_only_after_sending_sees_the_refusal(gateway: GatewayProcess) -> None:
    """Without lingering the close resets the connection, and the answer is lost with it."""

    def exchange() -> bytes:
        with socket.create_connection(("127.0.0.1", gateway.port), timeout=5) as client:
            head = (
                f"POST {CHAT} HTTP/1.1\r\nhost: x\r\n{gateway.authorization()}\r\ncontent-length: {6 * MIB}"
            )
            client.sendall(head.encode() + b"\r\n\r\n" + b"x" * 6 * MIB)
            return client.recv(4096)

    assert (await asyncio.to_thread(exchange)).startswith(b"HTTP/1.1 413 ")


async def test_a_body_in_many_small_pieces_is_served(echoing: GatewayProcess) -> None:
    connection = await RawConnection.open(echoing.port)
    body = json.dumps(chat(max_tokens=1)).encode()
    connection.send("POST", CHAT, b"", "transfer-encoding: chunked", echoing.authorization())
    for position in range(0, len(body), 9):
        piece = body[position : position + 9]
        connection.writer.write(b"%x\r\n" % len(piece) + piece + b"\r\n")
        await connection.writer.drain()
        await asyncio.sleep(0)
    connection.writer.write(b"0\r\n\r\n")
    assert (await connection.response()).status == 200
    connection.close()


async def test_client_that_leaves_while_sending_its_body(gateway: GatewayProcess) -> None:
    connection = await RawConnection.open(gateway.port)
    connection.send("POST", CHAT, b'{"model"', "content-length: 1000", gateway.authorization())
    await connection.writer.drain()
    connection.close()
    await gateway.idle()
    assert gateway.dispatcher.submits.empty()
