"""Whatever frames a client sends: each gets its one answer, the socket stays, and nothing is left behind."""

import asyncio
import json
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from websockets.sync.client import connect

from tests.gateway.harness import MODEL, QUICK, GatewayProcess, gateway_started
from tests.gateway.peers import echo
from tests.gateway.sockets import ENDS, MESSAGES, SERVER

LIMITS = {**QUICK, "slow_reader_s": 5.0, "max_socket_requests": 4}


@pytest.fixture(scope="module")
def gateway() -> Iterator[GatewayProcess]:
    """Its peers live in a thread of their own; in the end nothing may be left in it."""
    ready: Future[GatewayProcess] = Future()
    loop = asyncio.new_event_loop()
    over = asyncio.Event()

    async def serve() -> None:
        async with gateway_started(limits=LIMITS, server_arguments=SERVER) as started:
            await started.ready()
            with started.dispatcher.scripted(echo(started.dispatcher)):
                ready.set_result(started)
                await over.wait()
                await started.idle()

    failures: list[BaseException] = []

    def run() -> None:
        try:
            loop.run_until_complete(serve())
        except BaseException as failure:
            failures.append(failure)
            if not ready.done():
                ready.set_exception(failure)

    thread = threading.Thread(target=run)
    thread.start()
    yield ready.result(30)
    loop.call_soon_threadsafe(over.set)
    thread.join(30)
    loop.close()
    assert failures == []


IDS = st.sampled_from(["a", "b", "ü\u2028"])
WINDOWS = st.one_of(st.none(), st.integers(1, 9))
BODIES: st.SearchStrategy[Any] = st.one_of(
    st.builds(
        lambda stream, count: {
            "model": MODEL,
            "messages": MESSAGES,
            "stream": stream,
            "max_completion_tokens": count,
        },
        st.booleans(),
        st.integers(1, 9),
    ),
    st.recursive(st.none() | st.booleans() | st.text(max_size=5), lambda inner: st.lists(inner, max_size=3)),
)
CREATES = st.builds(
    lambda name, body, window: {"type": "request.create", "id": name, "body": body, "window": window},
    IDS,
    BODIES,
    WINDOWS,
)
RESUMES = st.builds(
    lambda name, request_id, after: {
        "type": "request.resume",
        "id": name,
        "request_id": request_id,
        "after": after,
    },
    IDS,
    st.sampled_from(["018f0000-0000-7000-8000-000000000001", "x", ""]),
    st.integers(0, 99),
)
WRONG = st.one_of(
    st.dictionaries(st.sampled_from(["id", "body", "seq"]), st.none() | st.integers() | st.text(max_size=3)),
    st.builds(lambda name: {"type": "cancel", "id": name, "more": 1}, IDS),
    st.builds(lambda name, seq: {"type": "ack", "id": name, "seq": seq}, IDS, st.text(max_size=2)),
    st.builds(lambda kind: {"type": kind, "id": "a"}, st.text(max_size=5)),
    st.integers() | st.none() | st.lists(st.none(), max_size=2),
)
NOISE = st.one_of(
    st.text(max_size=20).map(lambda text: "{" + text),
    st.binary(max_size=20).map(lambda data: b"{\xff" + data),
)
ANSWERED = st.one_of(CREATES, RESUMES, WRONG).map(json.dumps) | NOISE
UNANSWERED = st.one_of(
    st.builds(lambda name: {"type": "cancel", "id": name}, IDS),
    st.builds(lambda name, seq: {"type": "ack", "id": name, "seq": seq}, IDS, st.integers(0, 1 << 40)),
    st.just({"type": "pong"}),
).map(json.dumps)
MESSAGES_SENT = st.lists(
    st.tuples(st.just(True), ANSWERED) | st.tuples(st.just(False), UNANSWERED), max_size=25
)


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(MESSAGES_SENT)
def test_every_frame_gets_its_one_answer(
    gateway: GatewayProcess, sent: list[tuple[bool, str | bytes]]
) -> None:
    headers = {"Authorization": f"Bearer {gateway.key}"}
    with connect(
        f"ws://127.0.0.1:{gateway.port}/v1/stream", additional_headers=headers, proxy=None
    ) as client:
        for _, message in sent:
            client.send(message)
        client.send('{"type":"ping"}')
        answers, begun, pongs = 0, Counter[str](), 0
        while answers < sum(is_answered for is_answered, _ in sent) or not pongs:
            frame = json.loads(client.recv(timeout=5))
            pongs += frame["type"] == "pong"
            answers += frame["type"] in ENDS
            if frame["type"] == "request.accepted":
                begun[frame["id"]] += 1
                assert begun[frame["id"]] == 1
            elif frame["type"] in ENDS and frame.get("final", True):
                begun[frame["id"]] = 0
            elif frame["type"] == "chunk":
                assert begun[frame["id"]] == 1
                client.send(json.dumps({"type": "ack", "id": frame["id"], "seq": frame["seq"]}))
        client.send('{"type":"ping"}')
        assert json.loads(client.recv(timeout=5)) == {"type": "pong"}
