"""SSE framing: whatever the model says, every client's way of splitting lines finds exactly our events."""

import json

from hypothesis import given
from hypothesis import strategies as st

from gateway import sse
from gateway.replies import ChatReply, CompletionReply

TEXTS = st.text(st.characters(codec="utf-8"), max_size=60)
TRICKY = st.text(st.sampled_from('\r\n\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029\x00"\\: data😀é{}[]'), max_size=40)
CHAT = ChatReply("chatcmpl-1", 1, "tiny", "d" * 64, "default")


def parse(data: bytes) -> list[str]:
    """The WHATWG algorithm for what we send: fields by line, an event at each blank line."""
    events: list[str] = []
    lines: list[str] = []
    for line in data.decode().replace("\r\n", "\n").replace("\r", "\n").split("\n"):
        if line == "":
            if lines:
                events.append("\n".join(lines))
            lines = []
        elif line.startswith("data:"):
            lines.append(line.removeprefix("data:").removeprefix(" "))
        else:
            assert line.startswith((":", "event:"))
    assert not lines
    return events


def parse_by_python_lines(data: bytes) -> list[str]:
    """As clients do that call str.splitlines, which knows eight more line ends."""
    return [line[6:] for line in data.decode().splitlines() if line.startswith("data: ")]


@given(st.lists(TEXTS | TRICKY, max_size=8), st.booleans())
def test_texts_survive_any_client(texts: list[str], include_usage: bool) -> None:
    frame = CHAT.frame(include_usage=include_usage)
    data = b"".join(frame.encode(text) for text in texts)
    for parsed in (parse(data), parse_by_python_lines(data)):
        deltas = [json.loads(event)["choices"][0]["delta"]["content"] for event in parsed]
        assert deltas == texts


@given(st.lists(TEXTS | TRICKY, min_size=1, max_size=4))
def test_comments_between_events_change_nothing(texts: list[str]) -> None:
    frame = CompletionReply("cmpl-1", 1, "tiny", "d" * 64, "default").frame(include_usage=False)
    data = sse.PING + b"".join(frame.encode(text) + sse.PING for text in texts) + sse.DONE
    *events, done = parse(data)
    assert [json.loads(event)["choices"][0]["text"] for event in events] == texts
    assert done == "[DONE]"


@given(TEXTS | TRICKY)
def test_errors_are_one_event(message: str) -> None:
    envelope = json.dumps({"error": {"message": message}}, ensure_ascii=True).encode()
    (event,) = parse(sse.error_event(envelope))
    assert json.loads(event)["error"]["message"] == message


def test_a_frame_is_the_event_it_stands_for() -> None:
    frame = CHAT.frame(include_usage=True)
    (event,) = parse(frame.encode("x"))
    chunk = json.loads(event)
    assert chunk["usage"] is None
    assert chunk["object"] == "chat.completion.chunk"
    assert frame.encode("x").startswith(b"data: {")
    assert b"id:" not in frame.encode("x").split(b"data: ")[0]
