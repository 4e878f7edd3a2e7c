"""Frames survive any split of the byte stream; whatever is not a frame is an error, never a guess."""

import contextlib
from types import UnionType
from typing import Any, get_args, get_origin

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuworker.wire.framing import MAX_FIRST_FRAME_BYTES, MAX_FRAME_BYTES, FrameDecoder, WireError, encode
from gpuworker.wire.messages import (
    AnyMessage,
    Cancel,
    End,
    Ended,
    Frame,
    Heartbeat,
    Hello,
    RowFlow,
    RowKey,
    pack_ids,
    unpack_ids,
)

_SCALARS: dict[Any, st.SearchStrategy[Any]] = {
    int: st.integers(-(2**63), 2**63 - 1),
    str: st.text(max_size=20),
    float: st.floats(allow_nan=False),
    bytes: st.binary(max_size=20),
    bool: st.booleans(),
}


def values_of(annotation: Any) -> st.SearchStrategy[Any]:
    if annotation in _SCALARS:
        return _SCALARS[annotation]
    if annotation is RowKey:
        return st.builds(RowKey, gateway=_SCALARS[str], sid=_SCALARS[int])
    if get_origin(annotation) is list:
        return st.lists(values_of(get_args(annotation)[0]), max_size=3)
    if get_origin(annotation) is tuple:
        return st.tuples(*map(values_of, get_args(annotation)))
    if isinstance(annotation, UnionType):
        return st.one_of(*(values_of(a) if a is not type(None) else st.none() for a in get_args(annotation)))
    fields = msgspec.structs.fields(annotation)
    return st.builds(annotation, **{field.name: values_of(field.type) for field in fields})


messages = st.one_of(*(values_of(kind) for kind in get_args(AnyMessage)))


@settings(max_examples=300, deadline=None)
@given(sent=st.lists(messages, max_size=6), data=st.data())
def test_messages_arrive_equal_and_in_order_however_the_bytes_are_split(
    sent: list[AnyMessage], data: st.DataObject
) -> None:
    raw = b"".join(encode(message) for message in sent)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=8)))
    decoder = FrameDecoder()
    received: list[AnyMessage] = []
    for start, end in zip([0, *cuts], [*cuts, len(raw)], strict=True):
        received += decoder.feed(raw[start:end])
    assert received == sent


def test_messages_arrive_byte_by_byte() -> None:
    sent: list[AnyMessage] = [
        Heartbeat(),
        Cancel(sid=7),
        Frame(step=1, sids=[7], starts=[0], counts=[1], texts=["é"]),
    ]
    decoder = FrameDecoder()
    received = [
        message
        for byte in b"".join(encode(message) for message in sent)
        for message in decoder.feed(bytes([byte]))
    ]
    assert received == sent


def test_an_oversized_length_is_refused_before_its_body_arrives() -> None:
    with pytest.raises(WireError, match="exceeds"):
        FrameDecoder().feed((MAX_FRAME_BYTES + 1).to_bytes(4, "big"))


def test_a_stranger_may_not_make_us_hold_a_large_frame() -> None:
    large = (MAX_FIRST_FRAME_BYTES + 1).to_bytes(4, "big")
    with pytest.raises(WireError, match="exceeds"):
        FrameDecoder().feed(large)
    decoder = FrameDecoder()
    decoder.feed(encode(Heartbeat()))
    assert decoder.feed(large) == [], "who has greeted may"


def test_an_oversized_message_is_not_sent() -> None:
    with pytest.raises(WireError, match="exceeds"):
        encode(Cancel(sid=1, reason="x" * MAX_FRAME_BYTES))


def _frame(body: Any) -> bytes:
    raw = msgspec.msgpack.encode(body)
    return len(raw).to_bytes(4, "big") + raw


@pytest.mark.parametrize(
    "raw",
    [
        _frame(["NoSuchMessage", 1]),
        _frame(["Cancel", "not a number", "reason"]),
        _frame(["Cancel"]),
        _frame({"sid": 1}),
        _frame(None),
        (4).to_bytes(4, "big") + b"\xc1\xc1\xc1\xc1",
        (0).to_bytes(4, "big"),
    ],
)
def test_an_undecodable_frame_is_an_error(raw: bytes) -> None:
    with pytest.raises(WireError, match="undecodable"):
        FrameDecoder().feed(raw)


@settings(max_examples=300, deadline=None)
@given(raw=st.binary(max_size=200))
def test_garbage_raises_nothing_but_wire_error(raw: bytes) -> None:
    with contextlib.suppress(WireError):
        FrameDecoder().feed(raw)


def test_a_newer_peer_may_add_fields_at_the_end() -> None:
    hello = Hello(version=2, role="gateway", id="g", incarnation="i", secret="s")
    body = [*msgspec.msgpack.decode(encode(hello)[4:]), "a field of version 3"]
    assert FrameDecoder().feed(_frame(body)) == [hello]


def test_what_an_older_peer_does_not_say_has_its_default() -> None:
    ended = Ended(sid=1, code="queue_full", message="full", reason="r", name="queue", used=9, limit=9)
    (received,) = FrameDecoder().feed(_frame(msgspec.msgpack.decode(encode(ended)[4:])[:5]))
    assert received == Ended(sid=1, code="queue_full", message="full")


@given(ids=st.lists(st.integers(0, 2**32 - 1), max_size=50))
def test_token_ids_survive_packing_at_four_bytes_each(ids: list[int]) -> None:
    packed = pack_ids(ids)
    assert unpack_ids(packed) == ids
    assert len(packed) == 4 * len(ids)


def test_a_row_key_is_still_a_row_key_after_the_wire() -> None:
    sent = Hello(version=1, role="worker", id="w", incarnation="i", secret="s", running=[RowKey("g", 1)])
    (received,) = FrameDecoder().feed(encode(sent))
    assert isinstance(received, Hello)
    assert received.running[0].gateway == "g"


def test_a_greeting_says_whose_each_running_row_is() -> None:
    sent = Hello(
        version=1, role="worker", id="w", incarnation="i", secret="s",
        running=[RowKey("g", 1), RowKey("g", 2)],
        flows=[RowFlow("acme", "batch", 0.5), RowFlow("globex", "interactive")],
    )  # fmt: skip
    assert FrameDecoder().feed(encode(sent)) == [sent]
    before_flows = 1 + Hello.__struct_fields__.index("flows")
    (older,) = FrameDecoder().feed(_frame(msgspec.msgpack.decode(encode(sent)[4:])[:before_flows]))
    assert older == msgspec.structs.replace(sent, flows=[])


def test_ends_travel_inside_their_frame() -> None:
    end = End(
        sid=1, reason="stop", prompt_tokens=3, cached_tokens=0, output_tokens=2, queue_ms=1, prefill_ms=2,
        decode_ms=3, preemptions=0,
    )  # fmt: skip
    ends = [end, msgspec.structs.replace(end, stopped_by="##"), msgspec.structs.replace(end, stopped_by=9)]
    frame = Frame(step=9, sids=[], starts=[], counts=[], texts=[], ends=ends)
    assert FrameDecoder().feed(encode(frame)) == [frame]
