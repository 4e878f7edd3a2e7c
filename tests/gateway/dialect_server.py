"""A server that speaks one dialect and answers with scripted parts, for the official clients. No gateway."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from types import TracebackType
from typing import Self

from gateway import sse
from gateway.access.auth import credentials
from gateway.answer_parts import ChoiceEnd, Head, Row, Usage
from gateway.dialects.base import Ask, Dialect, Renderer, Whole, WholeChoice
from gateway.errors import ApiError
from gpuworker.wire.messages import TokenLogprobs
from tests.gateway.vocabulary import Vocabulary

REQUEST_ID = "01932c07-209c-7d4e-8a3b-0123456789ab"
END = 256
BYTES = Vocabulary(*(bytes([byte]) for byte in range(256)), b"<|end|>", special=frozenset({END}))


def head_make(*, prompt_tokens: int = 7, n: int = 1) -> Head:
    return Head(
        request_id=REQUEST_ID,
        created=1_700_000_000,
        model="tiny",
        digest="d" * 64,
        klass="interactive",
        prompt_tokens=(prompt_tokens,),
        n=n,
        seed=42,
        first_tokens=(108,),
    )


def token_rows(text: bytes, texts: list[str], *, choice: int = 0) -> list[Row]:
    """One row a byte, with its text."""
    return [
        Row(choice, 1, shown, [TokenLogprobs(byte, -0.5, [(byte, -0.5), (END, -2.0)])])
        for byte, shown in zip(text, texts, strict=True)
    ]


@dataclass
class Script:
    """What is answered."""

    rows: list[Row] = field(default_factory=list)
    ends: list[ChoiceEnd] = field(default_factory=lambda: [ChoiceEnd(0, "stop", 3, END)])
    usage: Usage = field(default_factory=lambda: Usage(7, 0, 3))
    prompt: list[TokenLogprobs] = field(default_factory=list)
    failure: ApiError | None = None  # after the rows, or instead of an answer where there are none
    head: Head = field(default_factory=head_make)

    def events(self, renderer: Renderer) -> list[tuple[bytes, bytes]]:
        """Name and data of each."""
        events = [(event.name, event.data) for event in renderer.opening()]
        events += [(renderer.delta_name, data) for row in self.rows if (data := renderer.delta(row))]
        last = renderer.failed(self.failure) if self.failure else renderer.closing(self.ends, self.usage)
        return events + [(event.name, event.data) for event in last]

    def whole(self) -> Whole:
        choices = []
        for end in self.ends:
            rows = [row for row in self.rows if row.choice == end.choice]
            logprobs = [token for row in rows for token in row.logprobs]
            choices.append(WholeChoice("".join(row.text for row in rows), logprobs, end))
        return Whole(choices, self.usage, [self.prompt])


class DialectServer:
    """`asks` and `keys` are what its clients sent."""

    def __init__(self, dialects: Mapping[str, Dialect]) -> None:
        self.script = Script()
        self.asks: list[Ask] = []
        self.keys: list[bytes | None] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler(dialects))
        self._thread = Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def answer(self, dialect: Dialect, body: bytes) -> tuple[int, str, bytes]:
        """Status, content type, body."""
        script = self.script
        try:
            ask = dialect.parse(body)
            self.asks.append(ask)
            if script.failure and not script.rows:
                raise script.failure
        except ApiError as error:
            status, content = dialect.error(error, REQUEST_ID)
            return status, "application/json", content
        renderer = dialect.renderer(ask.options, script.head, BYTES)
        if not ask.generation.stream:
            return 200, "application/json", renderer.whole(script.whole())
        events = script.events(renderer)
        framed = [sse.frame(number, name, data) for number, (name, data) in enumerate(events, 1)]
        return 200, "text/event-stream; charset=utf-8", b": ping\n".join(framed)

    def _handler(self, dialects: Mapping[str, Dialect]) -> type[BaseHTTPRequestHandler]:
        owner = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                headers = {name.lower().encode(): value.encode() for name, value in self.headers.items()}
                dialect = dialects[self.path]
                owner.keys.append(credentials(headers))
                body = self.rfile.read(int(self.headers["content-length"]))
                status, content_type, content = owner.answer(dialect, body)
                self.send_response(status)
                self.send_header("content-type", content_type)
                self.send_header("content-length", str(len(content)))
                self.send_header("connection", "close")
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002
                """Nobody reads it."""

        return Handler
