"""A stream that is broken anywhere is read as if it had not been: no gap, no repeat, one request."""

import itertools
from typing import Any

import openai
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice_client import AsyncSluice, Restarted, ResumePolicy, Sluice, StreamLost
from tests.client.answers import (
    ENDINGS,
    REQUEST_ID,
    STREAM_ID,
    TEXT,
    Resumable,
    chat_events,
    completion_events,
    numbered,
    refusing,
)
from tests.client.conftest import QUICK, client_of
from tests.client.server import Exchange, serving

ASK: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}]}
WIRE_BYTES = len(b"".join(numbered(chat_events())))


def text_of(client: Sluice) -> str:
    pieces = []
    stream = client.chat.stream(**ASK)
    for chunk in stream:
        assert not isinstance(chunk, Restarted)
        pieces += [choice.delta.content or "" for choice in chunk.choices]
    assert stream.answer.text == "".join(pieces)
    assert stream.answer.finish_reason == "stop"
    assert stream.answer.request_id == REQUEST_ID
    return "".join(pieces)


def test_an_unbroken_stream() -> None:
    with client_of(Resumable()) as (client, server):
        assert text_of(client) == TEXT
    (request,) = server.exchanges
    assert request.path == "/v1/chat/completions"
    assert request.headers["x-stream-resume"] == "1"
    assert len(request.headers["idempotency-key"]) == 36
    assert request.headers["authorization"] == "Bearer sk-slc-test"
    assert request.json() == {**ASK, "stream": True}


@pytest.mark.parametrize("ending", ENDINGS)
def test_broken_after_every_byte(ending: str) -> None:
    events = chat_events(["Hé", "👩🏽", "\u2028"])
    script = Resumable(events=events, ending=ending)
    with client_of(script) as (client, server):
        for cut in range(0, len(b"".join(numbered(events))), 1 if ending == "closed" else 7):
            script.cuts, script.connections = (cut,), 0
            server.exchanges.clear()
            assert text_of(client) == "Hé👩🏽\u2028", cut
            assert len({e.headers["idempotency-key"] for e in server.of("POST")}) == 1
            assert len(server.exchanges) == 2
            assert server.of("DELETE") == []


def test_broken_after_every_event_of_one_stream() -> None:
    first, *others = (len(event) for event in numbered(chat_events()))
    script = Resumable(cuts=[first, *others])
    policy = ResumePolicy(attempts=2, first_wait_s=0.001)  # counted from the last event
    with client_of(script, policy) as (client, server):
        stream = client.chat.stream(**ASK)
        assert stream.read() == TEXT
    assert len(server.of("POST")) == 1
    numbers = [exchange.headers["last-event-id"] for exchange in server.of("GET")]
    assert numbers == [f"{STREAM_ID}:{n}" for n in range(1, len(chat_events()))]
    assert stream.answer.resumes == len(numbers)


@settings(max_examples=60, deadline=None)
@given(
    cuts=st.lists(st.integers(0, WIRE_BYTES), max_size=6),
    ending=st.sampled_from(ENDINGS),
    keepalive=st.sampled_from([b"", b": ping\n", b": ping\n\n", b"\n", b"retry: 1\n\n"]),
    split=st.integers(1, 400),
)
def test_broken_anywhere_any_number_of_times(
    cuts: list[int], ending: str, keepalive: bytes, split: int
) -> None:
    script = Resumable(cuts=cuts, ending=ending, keepalive=keepalive, split=split)
    with client_of(script) as (client, _):
        assert text_of(client) == TEXT


@settings(max_examples=25, deadline=None)
@given(cuts=st.lists(st.integers(0, WIRE_BYTES), max_size=5), ending=st.sampled_from(ENDINGS))
async def test_broken_anywhere_for_code_that_awaits(cuts: list[int], ending: str) -> None:
    pieces = []
    with serving(Resumable(cuts=cuts, ending=ending)) as server:
        async with (
            AsyncSluice(server.base_url, "k", resume=QUICK) as client,
            client.chat.stream(**ASK) as stream,
        ):
            async for chunk in stream:
                assert not isinstance(chunk, Restarted)
                pieces.append(chunk.choices[0].delta.content or "")
    assert "".join(pieces) == stream.answer.text == TEXT
    assert server.of("DELETE") == []


def test_completions_resume_too() -> None:
    with client_of(Resumable(events=completion_events(), cuts=(300,))) as (client, server):
        assert client.completions.stream(model="tiny", prompt="hello").read() == TEXT
    assert [exchange.method for exchange in server.exchanges] == ["POST", "GET"]


def test_events_that_were_seen_are_dropped_and_a_gap_is_not_accepted() -> None:
    events = numbered(chat_events())

    def script(exchange: Exchange) -> None:
        exchange.stream_head(REQUEST_ID)
        after = int(exchange.headers.get("last-event-id", ":0").rpartition(":")[2])
        if after == 0:
            exchange.chunk(b"".join([*events[:3], *events[4:]]))  # the fourth is missing
        else:
            exchange.chunk(b"".join(events))  # all again
        exchange.end()

    with client_of(script) as (client, server):
        assert text_of(client) == TEXT
    assert server.of("GET")[0].headers["last-event-id"].endswith(":3")


def test_refusals_that_pass_are_waited_out() -> None:
    answers = iter([(503, "overloaded", "retry-after-ms: 1"), (429, "queue_full", "retry-after-ms: 1")])
    script = Resumable(cuts=(700,))

    def refuse(exchange: Exchange, _times: int) -> bool:
        for status, code, header in itertools.islice(answers, 1):
            exchange.refuse(status, code, header)
            return True
        return False

    script.on_resume = refuse
    with client_of(script) as (client, _):
        assert text_of(client) == TEXT
    assert script.resumed == 3


@pytest.mark.parametrize(
    ("status", "headers", "error"),
    [
        (401, (), openai.AuthenticationError),
        (429, ("x-should-retry: false",), openai.RateLimitError),
        (503, ("x-should-retry: false",), openai.InternalServerError),
    ],
)
def test_refusals_that_stay_are_raised(status: int, headers: tuple[str, ...], error: type[Exception]) -> None:
    script = Resumable(cuts=(700,))
    script.on_resume = refusing(status, "overloaded", *headers)
    with client_of(script) as (client, server), pytest.raises(error):
        client.chat.stream(**ASK).read()
    assert [exchange.method for exchange in server.exchanges] == ["POST", "GET"]


def test_attempts_are_bounded_and_what_is_needed_to_ask_again_is_in_the_error() -> None:
    script = Resumable(cuts=[700, *[0] * 100])
    with client_of(script) as (client, server), pytest.raises(StreamLost) as raised:
        client.chat.stream(**ASK, idempotency_key="mine").read()
    assert len(server.of("GET")) == QUICK.attempts
    assert raised.value.idempotency_key == "mine"
    assert raised.value.request_id == REQUEST_ID
    assert raised.value.last_event_id.startswith(f"{STREAM_ID}:")
    assert isinstance(raised.value, openai.APIConnectionError)


def test_time_is_bounded_also_against_what_the_server_asks_for() -> None:
    script = Resumable(cuts=(700,))
    script.on_resume = refusing(503, "overloaded", "retry-after: 60")
    policy = ResumePolicy(first_wait_s=0.001, total_s=5.0)
    with client_of(script, policy) as (client, _), pytest.raises(StreamLost, match="not mended in 5 s"):
        client.chat.stream(**ASK).read()


def test_a_silent_connection_counts_as_broken() -> None:
    script = Resumable(cuts=(700,), ending="silent")
    plain = script.__call__

    def silent(exchange: Exchange) -> None:
        plain(exchange)
        if exchange.method == "POST":
            exchange.wait_left()

    with client_of(silent, ResumePolicy(first_wait_s=0.001, silence_s=0.2)) as (client, _):
        assert text_of(client) == TEXT


def test_without_numbers_nothing_is_asked_for_twice() -> None:
    def script(exchange: Exchange) -> None:
        exchange.stream_head("req-1")
        exchange.chunk(b"".join(b"data: %b\n\n" % data for data in chat_events()[:4]))

    with client_of(script) as (client, server):
        stream = client.chat.stream(**ASK)
        with pytest.raises(StreamLost, match="cannot resume"):
            stream.read()
    assert len(server.exchanges) == 1
    assert stream.answer.text == "Hello wörld 你好"
