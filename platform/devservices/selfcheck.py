"""`up --once`: stream a completion, leave another halfway, and find the usage row of each."""

import http.client
import json
import ssl
import time
from typing import Any, Final

import psycopg

USAGE_TIMEOUT_S: Final = 20.0
REQUEST_TIMEOUT_S: Final = 60.0


class SelfCheckFailed(Exception):
    """The stack runs but does not do what it should; the message is one line."""


def self_check(
    port: int, api_key: str, model: str, operator_url: str, tls: ssl.SSLContext | None = None
) -> str:
    """One line that says what was seen. With `tls` it asks over TLS."""

    def connect() -> http.client.HTTPConnection:
        if tls is None:
            return http.client.HTTPConnection("127.0.0.1", port, timeout=REQUEST_TIMEOUT_S)
        return http.client.HTTPSConnection("127.0.0.1", port, timeout=REQUEST_TIMEOUT_S, context=tls)

    streamed_id, usage = _stream_whole(connect(), api_key, model)
    left_id = _stream_left(connect(), api_key, model)
    with psycopg.connect(operator_url, autocommit=True) as connection:
        streamed, left = _usage_row(connection, streamed_id), _usage_row(connection, left_id)
    counted = {"prompt": usage["prompt_tokens"], "output": usage["completion_tokens"], "outcome": "completed"}
    if streamed != counted:
        raise SelfCheckFailed(f"request {streamed_id}: usage said {counted}, the row says {streamed}")
    if left["outcome"] != "cancelled":
        raise SelfCheckFailed(f"request {left_id} was left by its client, its row says {left['outcome']}")
    return f"streamed {counted['output']} tokens; cancelled after {left['output']}; both usage rows are there"


def _begin(
    connection: http.client.HTTPConnection, api_key: str, body: dict[str, Any]
) -> http.client.HTTPResponse:
    headers = {"Authorization": f"Bearer {api_key}", "Content-Type": "application/json"}
    connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
    response = connection.getresponse()
    if response.status != 200:
        detail = response.read(2000).decode(errors="replace")
        connection.close()
        raise SelfCheckFailed(f"the gateway answered {response.status}: {detail}")
    return response


def _body(model: str, max_tokens: int) -> dict[str, Any]:
    messages = [{"role": "user", "content": "Write a long story about a river."}]
    return {"model": model, "messages": messages, "max_tokens": max_tokens, "stream": True}


def _stream_whole(
    connection: http.client.HTTPConnection, api_key: str, model: str
) -> tuple[str, dict[str, int]]:
    body = _body(model, 16) | {"stream_options": {"include_usage": True}}
    response = _begin(connection, api_key, body)
    usage: dict[str, int] | None = None
    done = False
    for line in response:
        payload = line.strip().removeprefix(b"data:").strip()
        if payload == b"[DONE]":
            done = True
        elif line.startswith(b"data:"):
            usage = json.loads(payload).get("usage") or usage
    request_id = response.headers["x-request-id"]
    connection.close()
    if usage is None or not done:
        raise SelfCheckFailed(f"request {request_id}: the stream ended without usage or [DONE]")
    return request_id, usage


def _stream_left(connection: http.client.HTTPConnection, api_key: str, model: str) -> str:
    response = _begin(connection, api_key, _body(model, 1000))
    if not any(line.startswith(b"data:") for line in response):
        raise SelfCheckFailed("the second stream brought nothing")
    request_id: str = response.headers["x-request-id"]
    connection.close()
    response.close()
    return request_id


def _usage_row(connection: "psycopg.Connection[Any]", request_id: str) -> dict[str, Any]:
    query = "SELECT prompt_tokens, output_tokens, outcome FROM billing_usageevent WHERE request_id = %s"
    deadline = time.monotonic() + USAGE_TIMEOUT_S
    while time.monotonic() < deadline:
        if (row := connection.execute(query, [request_id]).fetchone()) is not None:
            return {"prompt": row[0], "output": row[1], "outcome": row[2]}
        time.sleep(0.1)  # the spool drains in its own time
    raise SelfCheckFailed(f"request {request_id} has no usage row after {USAGE_TIMEOUT_S:.0f} s")
