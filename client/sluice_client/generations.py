"""What both clients make of the arguments of a generation, before anything is sent."""

from collections.abc import Iterable, Mapping
from typing import Any

from sluice_client.answer import Answer, ChunkT, Endpoint
from sluice_client.call import StreamCall, idempotency_key_make
from sluice_client.policy import ResumePolicy


def stream_call(
    endpoint: Endpoint[ChunkT],
    parameters: Mapping[str, Any],
    *,
    policy: ResumePolicy,
    connect_s: float,
) -> StreamCall[ChunkT]:
    """`extra_headers` and `extra_body` mean what they mean to the official client."""
    body = {name: value for name, value in parameters.items() if name not in ("extra_headers", "extra_body")}
    if isinstance(body.get("messages"), Iterable):
        body["messages"] = list(body["messages"])  # may be needed again
    return StreamCall(
        endpoint=endpoint,
        body=body,
        extra_headers=dict(parameters.get("extra_headers") or {}),
        extra_body=dict(parameters.get("extra_body") or {}),
        policy=policy,
        connect_s=connect_s,
    )


def whole_parameters(parameters: Mapping[str, Any], idempotency_key: str | None) -> dict[str, Any]:
    """Of a call without a stream. Raises TypeError when a stream is asked for."""
    if parameters.get("stream"):
        raise TypeError("create() answers in one piece; use stream()")
    headers = {
        **(parameters.get("extra_headers") or {}),
        "Idempotency-Key": idempotency_key_make(idempotency_key),
    }
    return {**parameters, "extra_headers": headers}


def answer_make(idempotency_key: str | None) -> Answer:
    return Answer(idempotency_key=idempotency_key_make(idempotency_key))
