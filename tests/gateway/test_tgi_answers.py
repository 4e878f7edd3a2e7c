"""Answers in TGI's words: whole and streamed, as its own client reads them."""

import json
from collections.abc import Iterator

import hypothesis.strategies as st
import pytest
from hypothesis import given
from text_generation import Client
from text_generation.types import Response, StreamResponse

from gateway.answer_parts import ChoiceEnd, Row, Usage
from gateway.dialects.tgi.generate import COMPAT, GENERATE
from gpuworker.wire.messages import TokenLogprobs
from tests.gateway.dialect_server import BYTES, END, DialectServer, Script, head_make, token_rows
from tests.gateway.tgi import EOS, answer_of, events_of, parsed, server_make

# text-generation 0.7.0 was written for pydantic 1.
pytestmark = pytest.mark.filterwarnings("ignore:The `dict` method is deprecated")


@pytest.fixture
def server() -> Iterator[DialectServer]:
    with server_make() as server:
        yield server


@pytest.fixture
def client(server: DialectServer) -> Client:
    return Client(server.url)


# -- whole answers ------------------------------------------------------------------------------------------


def test_details_have_every_token(server: DialectServer, client: Client) -> None:
    text = "né 👍"
    prompt = [TokenLogprobs(byte, -1.0, []) for byte in "é".encode()]
    shown = ["n", "", "é", " ", "", "", "", "👍"]
    server.script = Script(rows=[*token_rows(text.encode(), shown), EOS], prompt=prompt)
    response = client.generate("Hello", decoder_input_details=True, top_n_tokens=2)
    details = response.details
    assert response.generated_text == text
    assert details.finish_reason == "eos_token"
    assert [(token.id, token.text, token.logprob) for token in details.prefill] == [
        (108, "l", None), (195, "", -1.0), (169, "é", -1.0),
    ]  # fmt: skip
    assert "".join(token.text for token in details.tokens if not token.special) == text
    assert [token.id for token in details.tokens] == [*text.encode(), END]
    assert details.tokens[-1].special
    assert details.top_tokens is not None
    assert [token.id for token in details.top_tokens[0]] == [110, END]


@pytest.mark.parametrize(
    ("end", "reason"),
    [
        (ChoiceEnd(0, "stop", 3, END), "eos_token"),
        (ChoiceEnd(0, "stop", 3, None), "eos_token"),
        (ChoiceEnd(0, "stop", 3, "##"), "stop_sequence"),
        (ChoiceEnd(0, "length", 3), "length"),
    ],
)
def test_an_answer_says_why_it_ended(end: ChoiceEnd, reason: str) -> None:
    script = Script(rows=token_rows(b"a##", ["a", "", ""]), ends=[end])
    whole = answer_of(script, details=True, do_sample=True)
    assert (whole["details"]["finish_reason"], whole["details"]["generated_tokens"]) == (reason, 3)
    assert events_of(script, details=True)[-1]["details"]["finish_reason"] == reason


def test_a_stop_string_is_in_no_text() -> None:
    script = Script(rows=token_rows(b"a##\n", ["a", "", "", ""]), ends=[ChoiceEnd(0, "stop", 4, "##")])
    whole = answer_of(script, details=True)
    assert whole["generated_text"] == "a"
    assert [token["text"] for token in whole["details"]["tokens"]] == ["a", "", "", ""]
    events = events_of(script, details=True)
    assert [event["token"]["text"] for event in events] == ["a", "", "", "", ""]
    assert events[-1]["generated_text"] == "a"


def test_the_seed_is_told_where_something_was_drawn() -> None:
    script = Script(rows=[EOS])
    assert answer_of(script, details=True, do_sample=True)["details"]["seed"] == 42
    assert answer_of(script, details=True)["details"]["seed"] is None
    assert events_of(script, details=True, do_sample=True)[-1]["details"]["seed"] == 42


def test_without_details_there_is_the_text_alone(server: DialectServer) -> None:
    script = Script(rows=token_rows(b"Hi", ["H", "i"]))
    assert answer_of(script) == {"generated_text": "Hi"}
    assert answer_of(script, return_full_text=True) == {"generated_text": "HelloHi"}
    renderer = COMPAT.renderer(parsed(COMPAT).options, script.head, BYTES)
    assert json.loads(renderer.whole(script.whole())) == [{"generated_text": "Hi"}]


def test_the_best_of_several_is_the_likeliest_per_token() -> None:
    rows = [Row(0, 1, "a", [TokenLogprobs(97, -0.9, [])]), Row(0, 1, "b", [TokenLogprobs(98, -0.9, [])])]
    rows += [Row(1, 1, "c", [TokenLogprobs(99, -1.2, [])])]
    ends = [ChoiceEnd(0, "length", 2), ChoiceEnd(1, "stop", 1, END)]
    script = Script(rows=rows, ends=ends, head=head_make(n=2))
    ask = parsed(best_of=2, do_sample=True)
    assert (ask.generation.n, ask.generation.sampling.logprobs) == (2, 0)
    whole = answer_of(script, best_of=2, do_sample=True, details=True)
    assert whole["generated_text"] == "ab"
    (other,) = whole["details"]["best_of_sequences"]
    assert (other["generated_text"], other["finish_reason"], other["seed"]) == ("c", "eos_token", None)
    Response.model_validate(whole)


def test_what_can_never_come_has_a_number_too() -> None:
    script = Script(rows=[Row(0, 1, "a", [TokenLogprobs(97, float("-inf"), [(98, float("-inf"))])])])
    details = answer_of(script, details=True, top_n_tokens=1)["details"]
    assert details["tokens"][0]["logprob"] == details["top_tokens"][0][0]["logprob"] == -9999.0
    assert details["prefill"] == []


def test_counts_are_in_the_headers() -> None:
    script = Script(usage=Usage(7, 0, 3))
    renderer = GENERATE.renderer(parsed(inputs="né").options, script.head, BYTES)
    assert renderer.whole_headers(script.whole()) == [
        (b"x-compute-characters", b"2"),
        (b"x-prompt-tokens", b"7"),
        (b"x-generated-tokens", b"3"),
    ]


# -- streams ------------------------------------------------------------------------------------------------


def test_a_stream_has_an_event_for_each_token_and_the_text_in_the_last(
    server: DialectServer, client: Client
) -> None:
    server.script = Script(rows=[*token_rows("né".encode(), ["n", "", "é"]), EOS])
    responses = list(client.generate_stream("Hello", top_n_tokens=2, return_full_text=True))
    assert [response.token.id for response in responses] == [*"né".encode(), END]
    assert "".join(response.token.text for response in responses if not response.token.special) == "né"
    assert [response.generated_text for response in responses] == [None, None, None, "Helloné"]
    assert responses[0].top_tokens is not None
    assert [token.id for token in responses[0].top_tokens] == [110, END]
    last = responses[-1]
    assert last.token.special
    assert last.details is not None
    assert (last.details.finish_reason, last.details.generated_tokens) == ("eos_token", 3)


def test_the_last_token_that_was_asked_for_carries_the_end() -> None:
    script = Script(rows=token_rows(b"abc", ["a", "b", "c"]), ends=[ChoiceEnd(0, "length", 3)])
    events = events_of(script, max_new_tokens=3, details=True)
    assert [event["token"]["text"] for event in events] == ["a", "b", "c"]
    assert [event["index"] for event in events] == [1, 2, 3]
    assert events[-1]["generated_text"] == "abc"
    assert events[-1]["details"]["input_length"] == 7
    # An end that could not be foreseen has an event of its own
    events = events_of(script)
    assert [event["token"]["text"] for event in events] == ["a", "b", "c", ""]
    assert events[-1]["token"] == {"id": 99, "text": "", "logprob": -0.5, "special": True}
    assert events[-1]["details"] is None


@pytest.mark.parametrize("max_new_tokens", [2, 9])
def test_text_held_back_behind_the_last_token_is_sent(max_new_tokens: int) -> None:
    script = Script(rows=[*token_rows(b"ab", ["a", "b"]), Row(0, 0, "#")], ends=[ChoiceEnd(0, "length", 2)])
    events = events_of(script, max_new_tokens=max_new_tokens)
    assert "".join(event["token"]["text"] for event in events if not event["token"]["special"]) == "ab#"
    assert events[-1]["generated_text"] == "ab#"


def test_a_special_token_within_the_text_is_passed_over() -> None:
    script = Script(rows=[*token_rows(b"a", ["a"]), EOS, *token_rows(b"b", ["b"]), EOS])
    events = events_of(script)
    assert [event["token"]["id"] for event in events] == [97, 98, END]
    assert [event["index"] for event in events] == [1, 2, 3]
    # Nor does it come back at an end that could not be foreseen
    events = events_of(Script(rows=[EOS, *token_rows(b"b", ["b"])]))
    assert [event["token"]["id"] for event in events] == [98, 98]


def test_a_stream_without_a_token_still_ends() -> None:
    (event,) = events_of(Script(ends=[ChoiceEnd(0, "stop", 0, END)]), details=True)
    assert event["generated_text"] == ""
    StreamResponse.model_validate(event)


@given(text=st.text(max_size=12), stop=st.booleans(), room=st.integers(0, 3), data=st.data())
def test_text_arrives_as_it_was(text: str, stop: bool, room: int, data: st.DataObject) -> None:
    # Given text whose bytes come one by one, each shown at once or later
    text = text.encode("utf-8", "ignore").decode()
    shown, held = [], ""
    pieces = [piece for char in text for piece in [*[""] * (len(char.encode()) - 1), char]]
    for piece in pieces:
        held += piece
        late = data.draw(st.booleans())
        shown.append("" if late else held)
        held = held if late else ""
    rows = token_rows(text.encode(), shown)
    rows += [EOS] if stop else []
    rows += [Row(0, 0, held)] if held else []
    script = Script(rows=rows)
    # Then every way to put it together gives the text
    events = events_of(script, max_new_tokens=max(sum(row.count for row in rows) + room, 1))
    assert "".join(event["token"]["text"] for event in events if not event["token"]["special"]) == text
    assert events[-1]["generated_text"] == text
    assert all(event["generated_text"] is None for event in events[:-1])
    whole = answer_of(script, details=True)
    assert whole["generated_text"] == text
    assert "".join(token["text"] for token in whole["details"]["tokens"] if not token["special"]) == text
