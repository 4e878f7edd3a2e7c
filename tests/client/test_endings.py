"""A stream ends by an error, or begins again, only where the server says so, and its reader is told."""

from typing import Any

import openai
import pytest

from sluice_client import AsyncSluice, Restarted, StreamError, StreamLost
from tests.client.answers import (
    REQUEST_ID,
    STREAM_ID,
    TEXT,
    Resumable,
    chat_events,
    error_event,
    numbered,
    refusing,
)
from tests.client.conftest import QUICK, client_of
from tests.client.server import Exchange, serving

ASK: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}]}


def restarting(status: int) -> Resumable:
    """The first resume is refused: what was sent is gone. The new answer says something else."""
    script = Resumable(cuts=(700,))

    def gone(exchange: Exchange, _times: int) -> bool:
        exchange.refuse(status, "resume_expired")
        script.events = chat_events(["Another", " answer"])
        return True

    script.on_resume = gone
    return script


@pytest.mark.parametrize("status", [410, 404])
def test_what_is_gone_begins_again_with_the_same_key(status: int) -> None:
    with client_of(restarting(status)) as (client, server):
        stream = client.chat.stream(**ASK, idempotency_key="mine")
        events = list(stream)
    (at,) = [index for index, event in enumerate(events) if isinstance(event, Restarted)]
    assert at > 1
    assert events[at] == Restarted(REQUEST_ID, 1)
    assert stream.answer.text == "Another answer"
    assert [e.method for e in server.exchanges] == ["POST", "GET", "POST"]
    assert {e.headers["idempotency-key"] for e in server.of("POST")} == {"mine"}


async def test_begins_again_for_code_that_awaits() -> None:
    with serving(restarting(410)) as server:
        async with AsyncSluice(server.base_url, "k", resume=QUICK) as client:
            stream = client.chat.stream(**ASK)
            events = [event async for event in stream]
    assert sum(isinstance(event, Restarted) for event in events) == 1
    assert stream.answer.text == "Another answer"


def test_an_answer_that_is_lost_again_and_again_is_given_up() -> None:
    script = Resumable(cuts=[700] * 9)
    script.on_resume = refusing(410, "resume_expired")
    with client_of(script) as (client, server):
        stream = client.chat.stream(**ASK)
        with pytest.raises(StreamLost, match="3 times"):
            stream.read()
    assert len(server.of("POST")) == 3
    assert stream.answer.restarts == 2


@pytest.mark.parametrize("name", [b"", b"event: error\n"])
def test_an_error_event_is_an_exception(name: bytes) -> None:
    identity = b"id: %b:4\n" % STREAM_ID.encode()
    events = numbered(chat_events())[:3]
    error = error_event("replica_lost").removeprefix(b"event: error\n")

    def script(exchange: Exchange) -> None:
        exchange.stream_head(REQUEST_ID)
        exchange.chunk(b"".join([*events, identity, name, error, b"data: [DONE]\n\n"]))
        exchange.end()

    with client_of(script) as (client, server):
        stream = client.chat.stream(**ASK)
        with pytest.raises(StreamError, match="it failed") as raised:
            stream.read()
    assert (raised.value.code, raised.value.type) == ("replica_lost", "server_error")
    assert raised.value.request_id == REQUEST_ID
    assert isinstance(raised.value, openai.APIError)
    assert stream.answer.text == "Hello wörld"
    assert len(server.exchanges) == 1


@pytest.mark.parametrize(("status", "code"), [(503, "replica_lost"), (504, "deadline_exceeded")])
def test_a_stream_that_had_ended_by_an_error_before_it_was_resumed(status: int, code: str) -> None:
    script = Resumable(cuts=(700,), on_resume=refusing(status, code))
    with client_of(script) as (client, _), pytest.raises(StreamError) as raised:
        client.chat.stream(**ASK).read()
    assert raised.value.code == code
    assert script.resumed == 1


def test_an_answer_whose_gateway_died_begins_again() -> None:
    events = numbered(chat_events())
    script = Resumable(cuts=())
    died = False

    def dying(exchange: Exchange) -> None:
        nonlocal died
        if died:
            return script(exchange)
        died = True
        exchange.stream_head(REQUEST_ID)
        exchange.chunk(b"".join([*events[:3], error_event("gateway_lost")]))
        return exchange.end()

    with client_of(dying) as (client, server):
        stream = client.chat.stream(**ASK)
        assert sum(isinstance(event, Restarted) for event in stream) == 1
    assert stream.answer.text == TEXT
    assert [exchange.method for exchange in server.exchanges] == ["POST", "POST"]


@pytest.mark.parametrize("kept", [True, False])
def test_a_connection_that_the_server_breaks_off_is_mended(kept: bool) -> None:
    """Its error has no number: the answer goes on. If it is gone, the error is what is left."""
    script = Resumable()
    if not kept:
        script.on_resume = refusing(410, "resume_expired")

    def cutting(exchange: Exchange) -> None:
        if exchange.method != "POST":
            return script(exchange)
        exchange.stream_head(REQUEST_ID)
        error = error_event("slow_reader")
        exchange.chunk(b"".join([*numbered(chat_events())[:3], error]))
        return exchange.end()

    with client_of(cutting) as (client, server):
        stream = client.chat.stream(**ASK)
        if kept:
            assert stream.read() == TEXT
        else:
            with pytest.raises(StreamError) as raised:
                stream.read()
            assert raised.value.code == "slow_reader"
    assert [exchange.method for exchange in server.exchanges] == ["POST", "GET"]


@pytest.mark.parametrize("data", [b"{not json", b"[1]", b'"text"'])
def test_what_is_no_event_is_an_exception_and_ends_the_generation(data: bytes) -> None:
    def script(exchange: Exchange) -> None:
        if exchange.method == "POST":
            exchange.stream_head(REQUEST_ID)
            exchange.chunk(b"data: %b\n\n" % data)
            exchange.wait_left()
        else:
            exchange.head(204)

    with client_of(script) as (client, server), pytest.raises(StreamError) as raised:
        client.chat.stream(**ASK).read()
    assert raised.value.code == "invalid_event"
    assert len(server.of("DELETE")) == 1


def test_a_page_instead_of_a_stream_is_an_exception() -> None:
    def script(exchange: Exchange) -> None:
        exchange.answer(200, {"hello": "you"})

    with client_of(script) as (client, _), pytest.raises(StreamError, match="application/json"):
        client.chat.stream(**ASK).read()


def test_errors_before_the_response_are_the_official_clients() -> None:
    refusals = iter([(503, "retry-after-ms: 1"), (404, "x-request-id: r-1")])

    def script(exchange: Exchange) -> None:
        status, header = next(refusals)
        exchange.refuse(status, "model_not_found", header)

    with client_of(script) as (client, server), pytest.raises(openai.NotFoundError) as raised:
        client.chat.stream(**ASK).read()
    assert raised.value.code == "model_not_found"
    assert len({exchange.headers["idempotency-key"] for exchange in server.exchanges}) == 1
    assert len(server.exchanges) == 2
