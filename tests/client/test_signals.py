"""The `sluice` command as a process: Ctrl-C, a reader that leaves, a conversation on a terminal."""

import re
import signal
import subprocess
import time
from typing import Any

import pytest

from tests.client.answers import REQUEST_ID, STREAM_ID, chat_events, numbered
from tests.client.processes import COMMAND, Terminal, environment
from tests.client.server import Exchange, ScriptedServer, serving

pytestmark = pytest.mark.usefixtures("ctrl_c_is_not_ignored")


def start(server: ScriptedServer, *arguments: str, **options: Any) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [*COMMAND, *arguments],
        env=environment(server),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        **options,
    )


class Endless:
    """Three events, then silence until the client leaves. DELETE is answered, or kept waiting."""

    def __init__(self, *, begins: bool = True, cancels: bool = True) -> None:
        self._begins = begins
        self._cancels = cancels

    def __call__(self, exchange: Exchange) -> None:
        if exchange.method == "DELETE" and self._cancels:
            exchange.head(204)
            return
        if exchange.method == "POST" and self._begins:
            exchange.stream_head(REQUEST_ID)
            exchange.chunk(b"".join(numbered(chat_events())[:3]))
        exchange.wait_left()


@pytest.mark.parametrize(
    ("command", "number", "code"), [("chat", signal.SIGINT, 130), ("complete", signal.SIGTERM, 143)]
)
def test_a_signal_stops_the_answer_at_the_server(command: str, number: signal.Signals, code: int) -> None:
    with serving(Endless()) as server:
        process = start(server, command, "hello")
        with process:
            assert process.stdout is not None
            if command == "chat":
                assert process.stdout.read(5) == b"Hello"
            generation = server.wait_for("POST")
            time.sleep(0.1)
            process.send_signal(number)
            since = time.monotonic()
            assert server.wait_for("DELETE", within_s=1).path == f"/v1/streams/{STREAM_ID}"
            assert generation.left.wait(1)
            assert generation.left_at - since < 1
            assert process.wait(5) == code
            assert process.stderr is not None
            assert process.stderr.read() == b""


@pytest.mark.parametrize("arguments", [["chat"], ["chat", "--no-stream"]])
def test_ctrl_c_before_anything_came(arguments: list[str]) -> None:
    with serving(Endless(begins=False)) as server:
        process = start(server, *arguments, "hello")
        with process:
            generation = server.wait_for("POST")
            process.send_signal(signal.SIGINT)
            assert generation.left.wait(1)
            assert process.wait(5) == 130
    assert server.of("DELETE") == []


@pytest.mark.parametrize("times", [1, 2])
def test_a_second_ctrl_c_does_not_wait_for_the_server(times: int) -> None:
    with serving(Endless(cancels=False)) as server:
        process = start(server, "chat", "hello")
        with process:
            assert process.stdout is not None
            assert process.stdout.read(5) == b"Hello"
            process.send_signal(signal.SIGINT)
            server.wait_for("DELETE")
            if times == 2:
                process.send_signal(signal.SIGINT)
            assert process.wait(5) == 130
            assert process.stderr is not None
            errors = process.stderr.read()
            assert b"Traceback" not in errors
            assert (b"was not told" in errors) == (times == 1)


def test_a_reader_that_leaves_stops_the_answer() -> None:
    def script(exchange: Exchange) -> None:
        if exchange.method == "DELETE":
            exchange.head(204)
            return
        exchange.stream_head(REQUEST_ID)
        for event in numbered(chat_events(["word "] * 1000)):
            exchange.chunk(event)
            time.sleep(0.002)

    with serving(script) as server:
        process = start(server, "chat", "hello")
        with process:
            assert process.stdout is not None
            process.stdout.read(5)
            process.stdout.close()
            server.wait_for("DELETE")
            assert process.wait(5) == 141
            assert process.stderr is not None
            assert process.stderr.read() == b""


def test_a_conversation() -> None:
    endless = Endless()

    def script(exchange: Exchange) -> None:
        last = exchange.json()["messages"][-1]["content"] if exchange.body else ""
        if exchange.method == "DELETE" or last == "for ever":
            endless(exchange)
        elif last == "wrong":
            exchange.refuse(400, "invalid_value", message="that is wrong")
        else:
            exchange.stream_head(REQUEST_ID)
            exchange.chunk(b"".join(numbered(chat_events(["Hi", "\x1b[2J", "!"], usage=True))))
            exchange.end()

    with serving(script) as server:
        terminal = Terminal(server, "chat", "--system", "Be brief.")
        try:
            terminal.shows("Ctrl-D ends")
            terminal.shows("> ")
            terminal.type("hello\n")
            terminal.shows(re.escape(r"Hi\x1b[2J!"))
            terminal.shows(rf"3 \+ 3 tokens · .*first token \d+\.\d\d s · {REQUEST_ID}")
            terminal.shows("> ")
            terminal.type("for ever\n")
            terminal.shows("Hello wörld")
            terminal.type("\x03")
            server.wait_for("DELETE", within_s=1)
            terminal.shows("stopped")
            terminal.shows("> ")
            terminal.type("wrong\n")
            terminal.shows("sluice: that is wrong")
            terminal.shows("> ")
            terminal.type("again\n")
            terminal.shows("Hi")
            terminal.shows("> ")
            assert terminal.interrupted() == 130
        finally:
            terminal.close()
    turns = [(turn["role"], turn["content"]) for turn in server.of("POST")[-1].json()["messages"]]
    assert turns == [
        ("system", "Be brief."),
        ("user", "hello"),
        ("assistant", "Hi\x1b[2J!"),
        ("user", "for ever"),
        ("assistant", "Hello wörld"),
        ("user", "again"),
    ]


def test_the_end_of_input_ends_a_conversation() -> None:
    with serving(Endless()) as server:
        terminal = Terminal(server, "chat")
        try:
            terminal.shows("> ")
            terminal.type("\x04")
            assert terminal.process.wait(5) == 0
        finally:
            terminal.close()


def test_the_command_runs_as_a_process_from_a_pipe() -> None:
    def script(exchange: Exchange) -> None:
        exchange.stream_head(REQUEST_ID)
        exchange.chunk(b"".join(numbered(chat_events())))
        exchange.end()

    with serving(script) as server:
        done = subprocess.run(
            [*COMMAND, "chat", "Summarise:"],
            env=environment(server),
            input="你好".encode(),
            capture_output=True,
            timeout=30,
            check=True,
        )
    assert done.stdout.decode().startswith("Hello wörld 你好")
    assert done.stderr == b""
    assert server.of("POST")[0].json()["messages"][0]["content"] == "Summarise:\n\n你好"
