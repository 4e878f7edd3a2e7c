"""Examples that are true: what the dialects themselves make of a request and of the text `Hello!`."""

import msgspec

from gateway import sse
from gateway.answer_parts import ChoiceEnd, Head, Row, Usage
from gateway.dialects.base import Dialect, Event, Whole, WholeChoice
from gateway.openapi.site import MODEL
from gpuworker.wire.messages import TokenLogprobs

REQUEST_ID = "019a3c5e-7f00-7000-8000-000000000001"
_TEXTS = ("Hel", "lo!")
_HEAD = Head(
    request_id=REQUEST_ID,
    created=1_762_000_000,
    model=MODEL,
    digest="4f9c2ab1d07e" + "0" * 52,
    klass="interactive",
    prompt_tokens=(9,),
    seed=42,
)
_USAGE = Usage(9, 0, 2)


class _Vocabulary:
    def token_bytes(self, token: int) -> bytes:
        return _TEXTS[token].encode()

    def is_special(self, token: int) -> bool:
        return False


def answer_make(dialect: Dialect, body: dict[str, object]) -> object:
    """The whole answer to `body`."""
    options = dialect.parse(msgspec.json.encode(body)).options
    choice = WholeChoice("".join(_TEXTS), [row for piece in _rows() for row in piece.logprobs], _end())
    whole = Whole([choice], _USAGE)
    return msgspec.json.decode(dialect.renderer(options, _HEAD, _Vocabulary()).whole(whole))


def stream_make(dialect: Dialect, body: dict[str, object]) -> str:
    """The events of the streamed answer to `body`."""
    options = dialect.parse(msgspec.json.encode(body)).options
    renderer = dialect.renderer(options, _HEAD, _Vocabulary())
    deltas = [Event(data, renderer.delta_name) for row in _rows() if (data := renderer.delta(row))]
    events = [*renderer.opening(), *deltas, *renderer.closing([_end()], _USAGE)]
    return b"".join(
        sse.frame(number, event.name, event.data) for number, event in enumerate(events, 1)
    ).decode()


def _rows() -> list[Row]:
    return [
        Row(0, 1, text, [TokenLogprobs(number, -0.25 * (number + 1), [])])
        for number, text in enumerate(_TEXTS)
    ]


def _end() -> ChoiceEnd:
    return ChoiceEnd(0, "stop", len(_TEXTS))
