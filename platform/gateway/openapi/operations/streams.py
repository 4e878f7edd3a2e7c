"""What a request used, and how to go on with a stream that was cut."""

from typing import Any

from gateway.openapi import errors, parameters
from gateway.openapi.examples import REQUEST_ID
from gateway.openapi.objects import platform
from gateway.openapi.operations.base import Operation

STREAM_OPERATIONS = (
    Operation(
        method="get",
        path="/v1/streams/{stream_id}",
        id="resumeStream",
        tag="Streams and usage",
        summary="Go on with a stream",
        description="All events after the given one, and then what comes. Only of requests that opted in, "
        "with `X-Stream-Resume: 1`, `resumable: true` or an `Idempotency-Key`. The events are those of the "
        "endpoint that began the stream.",
        parameters=(parameters.STREAM_ID, parameters.AFTER, parameters.LAST_EVENT_ID),
        answer=dict[str, Any] | list[Any],
        event=dict[str, Any],
        codes=(
            *errors.SCOPE,
            *errors.SLOT,
            *errors.RUN,
            "invalid_value",
            "request_not_found",
            "resume_expired",
        ),
    ),
    Operation(
        method="delete",
        path="/v1/streams/{stream_id}",
        id="cancelStream",
        tag="Streams and usage",
        summary="End a stream",
        description="Nobody wants it any more: it ends at once, and what it used so far is recorded.",
        parameters=(parameters.STREAM_ID,),
        answer=platform.StreamCancelled,
        answer_example={"cancelled": True},
        success=202,
        codes=(*errors.SCOPE, "request_not_found"),
    ),
    Operation(
        method="get",
        path="/v1/stream",
        id="openSocket",
        tag="Streams and usage",
        summary="Many requests over one WebSocket",
        description="Only with a WebSocket upgrade. The key goes into `Authorization`, or from a browser "
        "into the subprotocol `openai-insecure-api-key.sk-slc-…`. Without an upgrade: always 426.",
        other={101: ("With an upgrade: the WebSocket is open.", None)},
        codes=("upgrade_required",),
    ),
    Operation(
        method="get",
        path="/v1/usage/{request_id}",
        id="getUsage",
        tag="Streams and usage",
        summary="What a request used and costs",
        description="From the ledger's own rows; they appear some moments after a request's end.",
        parameters=(parameters.REQUEST_ID,),
        answer=platform.UsageReport,
        answer_example={
            "object": "usage",
            "request_id": REQUEST_ID,
            "status": "recorded",
            "prompt_tokens": 9,
            "completion_tokens": 2,
            "cost_micro_usd": 13,
            "records": [],
        },
        codes=(*errors.KEY, "request_not_found"),
    ),
)
