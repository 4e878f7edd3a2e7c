"""Events are read by the rules of the WHATWG, however the bytes are cut."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice_client.sse import EventDecoder, EventTooLarge, ServerSentEvent

MARK = b"\xef\xbb\xbf"
LINES = [
    *(b"", b"data: x", b"data:  y ", b"data", b"data:", b"event: error", b"event:", b"other: z", b" data: w"),
    *(b"id: a:1", b"id: a:2", b"id", b"id: a\0b", b": ping", b":", b"retry: 7", MARK + b"data: marked"),
    *("data: é你👩🏽\u2028".encode(), b"data: \xff\xe4\xbd", b"data: :", b"data::"),
]
WIRE = st.builds(
    lambda mark, lines, rest: mark + b"".join(line + end for line, end in lines) + rest,
    st.sampled_from([b"", MARK, MARK + MARK]),
    st.lists(st.tuples(st.sampled_from(LINES), st.sampled_from([b"\n", b"\r", b"\r\n"])), max_size=20),
    st.sampled_from([b"", b"data: unfinished"]),
)


def reference(wire: bytes) -> list[ServerSentEvent]:
    """The specification's algorithm over the whole stream at once (HTML, 9.2.6)."""
    text = wire.decode(errors="replace").removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    events: list[ServerSentEvent] = []
    data, name, last_id, has_id = "", "", "", False
    for line in text.split("\n")[:-1]:
        if line == "":
            if data:
                events.append(ServerSentEvent(name or "message", data.removesuffix("\n"), last_id, has_id))
            data, name, has_id = "", "", False
            continue
        field, colon, value = line.partition(":")
        if colon and not field:
            continue
        value = value.removeprefix(" ")
        if field == "data":
            data += value + "\n"
        elif field == "event":
            name = value
        elif field == "id" and "\0" not in value:
            last_id, has_id = value, True
    return events


def decoded(pieces: list[bytes]) -> list[ServerSentEvent]:
    decoder = EventDecoder()
    return [event for piece in pieces for event in decoder.feed(piece)]


@given(wire=WIRE, cuts=st.lists(st.integers(0, 200), max_size=20))
def test_any_bytes_in_any_pieces(wire: bytes, cuts: list[int]) -> None:
    places = [0, *sorted(min(cut, len(wire)) for cut in cuts), len(wire)]
    pieces = [wire[start:end] for start, end in itertools.pairwise(places)]
    assert decoded(pieces) == reference(wire)
    assert decoded([bytes([byte]) for byte in wire]) == reference(wire)


@pytest.mark.parametrize(
    ("wire", "expected"),
    [
        (b"data: a\ndata:b\ndata\n\n", [ServerSentEvent("message", "a\nb\n", "", False)]),
        (b"id: r:1\n\n: ping\n\ndata: x\n\n", [ServerSentEvent("message", "x", "r:1", False)]),
        (b"id: r:1\ndata: x\n\n: ping\n\n\ndata: y\n\n", [
            ServerSentEvent("message", "x", "r:1"), ServerSentEvent("message", "y", "r:1", False)
        ]),
        (b"event: error\ndata:  two spaces\n\n", [ServerSentEvent("error", " two spaces", "", False)]),
        (b"data: never finished\n", []),
        (b"data: x\r\n\r\ndata: y\r\n\r\n", [
            ServerSentEvent("message", "x", "", False), ServerSentEvent("message", "y", "", False)
        ]),
        (MARK + b"data: x\n\n", [ServerSentEvent("message", "x", "", False)]),
        (b"id: r:1\nid: r\0:2\ndata: x\n\n", [ServerSentEvent("message", "x", "r:1")]),
        (b"data:\n\n", [ServerSentEvent("message", "", "", False)]),
    ],
)  # fmt: skip
def test_examples(wire: bytes, expected: list[ServerSentEvent]) -> None:
    assert decoded([wire]) == expected
    assert decoded([bytes([byte]) for byte in wire]) == expected


def test_the_reconnection_time_is_digits_only() -> None:
    decoder = EventDecoder()
    list(decoder.feed(b"retry: 250\nretry: 1.5\nretry: -1\nretry:\n"))
    assert decoder.retry_ms == 250


def test_an_event_has_a_largest_size() -> None:
    decoder = EventDecoder(max_event_bytes=1000)
    for _ in range(3):
        list(decoder.feed(b"data: %b\n\n" % (b"x" * 900)))
    for _ in range(2):
        list(decoder.feed(b"data: %b\n" % (b"x" * 400)))
    with pytest.raises(EventTooLarge):
        list(decoder.feed(b"data: %b\n" % (b"x" * 400)))
    with pytest.raises(EventTooLarge):
        list(EventDecoder(max_event_bytes=1000).feed(b"x" * 1001))
