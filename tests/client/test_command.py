"""The `sluice` command in this process: what it asks for, what it prints where, and how it ends."""

import io
import json
import sys
from collections.abc import Callable
from typing import Any

import pytest

from sluice_client.cli.main import main
from sluice_client.cli.terminal import shown
from tests.client.answers import (
    REQUEST_ID,
    STREAM_ID,
    TEXT,
    Resumable,
    chat_events,
    completion_events,
    error_event,
    numbered,
    refusing,
)
from tests.client.server import Exchange, Script, serving

MODELS = {
    "object": "list",
    "data": [{"id": "tiny", "object": "model", "max_model_len": 512}, {"id": "other"}],
}
WHOLE = {
    "id": "chatcmpl-1",
    "choices": [{"index": 0, "finish_reason": "length", "message": {"content": "Hello"}, "text": "Hello"}],
    "usage": {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4},
}

Run = Callable[..., tuple[int, str, str]]

THIRD = b"id: %b:3\n" % STREAM_ID.encode()


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """The exit code, stdout and stderr of a command against a script; `piped` is its stdin."""

    def run(
        script: Script, *arguments: str, piped: bytes = b"", key: str = "sk-slc-1"
    ) -> tuple[int, str, str]:
        with serving(script) as server:
            monkeypatch.setenv("SLUICE_BASE_URL", server.base_url)
            monkeypatch.setenv("SLUICE_API_KEY", key)
            stdin = io.TextIOWrapper(io.BytesIO(piped))
            monkeypatch.setattr(stdin, "fileno", lambda: 0, raising=False)
            monkeypatch.setattr(sys, "stdin", stdin)
            monkeypatch.setattr("sluice_client.cli.prompts._has_content", lambda _descriptor: bool(piped))
            code = main(arguments)
        run.requests = server.exchanges  # type: ignore[attr-defined]
        return code, *capsys.readouterr()

    return run


def sent(run: Run) -> Any:
    return run.requests[-1].json()  # type: ignore[attr-defined]


def test_chat_prints_the_answer_and_nothing_else_into_a_pipe(run: Run) -> None:
    arguments = ["--max-tokens", "9", "--temperature", "0", "--stop", "a", "--stop", "b", "--seed", "7"]
    code, out, err = run(Resumable(), "chat", "-m", "tiny", "--system", "Be brief.", *arguments, "hello")
    assert (code, out, err) == (0, TEXT, "")
    assert sent(run) == {
        "model": "tiny",
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hello"}],
        "max_tokens": 9,
        "temperature": 0.0,
        "stop": ["a", "b"],
        "seed": 7,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def test_the_prompt_may_be_piped_in_after_the_argument_or_alone(run: Run) -> None:
    run(Resumable(), "chat", "-m", "tiny", "Summarise:", piped="wörld".encode())
    assert sent(run)["messages"][0]["content"] == "Summarise:\n\nwörld"
    code, out, _ = run(Resumable(events=completion_events()), "complete", "-m", "tiny", piped=b"once")
    assert (code, out) == (0, TEXT)
    assert sent(run)["prompt"] == "once"


def test_in_one_piece(run: Run) -> None:
    def script(exchange: Exchange) -> None:
        exchange.answer(200, WHOLE)

    assert run(script, "chat", "-m", "tiny", "--no-stream", "hello")[:2] == (0, "Hello\n")
    assert "stream" not in sent(run)
    assert run(script, "complete", "-m", "tiny", "--no-stream", "hello")[:2] == (0, "Hello\n")
    code, out, _ = run(script, "chat", "-m", "tiny", "--no-stream", "--json", "hello")
    assert (code, json.loads(out)) == (0, WHOLE)


def test_json_is_what_the_server_sent(run: Run) -> None:
    events = chat_events(usage=True)
    code, out, _ = run(Resumable(events=events, cuts=(400,)), "chat", "-m", "tiny", "--json", "hello")
    assert code == 0
    assert [json.loads(line) for line in out.splitlines()] == [json.loads(event) for event in events[:-1]]


def test_a_restart_is_printed_again_and_said(run: Run) -> None:
    script = Resumable(cuts=(500,), on_resume=refusing(410, "resume_expired"))
    code, out, err = run(script, "chat", "-m", "tiny", "hello")
    assert code == 0
    assert out.endswith(f"\n{TEXT}")
    assert "begins again" in err
    script = Resumable(cuts=(500,), on_resume=refusing(410, "resume_expired"))
    _, out, err = run(script, "chat", "-m", "tiny", "--json", "hello")
    restarts = [event for event in map(json.loads, out.splitlines()) if event["object"] == "sluice.restarted"]
    assert (restarts, err) == ([{"object": "sluice.restarted", "request_id": REQUEST_ID}], "")


def test_the_model_is_the_named_one_or_the_only_one(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = Resumable()
    models: dict[str, Any] = {"object": "list", "data": [{"id": "only"}]}

    def script(exchange: Exchange) -> None:
        exchange.answer(200, models) if exchange.path == "/v1/models" else answer(exchange)

    run(script, "chat", "hello")
    assert sent(run)["model"] == "only"
    monkeypatch.setenv("SLUICE_MODEL", "from-environment")
    run(script, "chat", "hello")
    assert sent(run)["model"] == "from-environment"
    run(script, "chat", "-m", "named", "hello")
    assert sent(run)["model"] == "named"
    monkeypatch.delenv("SLUICE_MODEL")
    models["data"] = MODELS["data"]
    code, _, err = run(script, "chat", "hello")
    assert code == 2
    assert "tiny, other" in err
    assert "--model" in err
    models["data"] = []
    assert "none" in run(script, "chat", "hello")[2]


def test_models_and_usage(run: Run) -> None:
    def script(exchange: Exchange) -> None:
        usage = {"request_id": REQUEST_ID, "tokens": {"prompt": 3, "output": 5}}
        exchange.answer(200, MODELS if exchange.path == "/v1/models" else usage)

    assert run(script, "models")[:2] == (0, "tiny   512 tokens of context\nother\n")
    assert [json.loads(line)["id"] for line in run(script, "models", "--json")[1].splitlines()] == [
        "tiny",
        "other",
    ]
    for named in (REQUEST_ID, f"chatcmpl-{REQUEST_ID.replace('-', '')}"):
        code, out, _ = run(script, "usage", named)
        assert code == 0
        assert out == f"request_id     {REQUEST_ID}\ntokens.prompt  3\ntokens.output  5\n"
        assert run.requests[0].path == f"/v1/usage/{REQUEST_ID}"  # type: ignore[attr-defined]
    assert json.loads(run(script, "usage", "--json", REQUEST_ID)[1])["tokens"] == {"prompt": 3, "output": 5}
    assert run(script, "usage", "../models")[0] == 2


def refuses(status: int, code: str, *headers: str) -> Script:
    def script(exchange: Exchange) -> None:
        if exchange.path == "/v1/models":
            exchange.answer(200, MODELS)
        else:
            exchange.refuse(status, code, "x-should-retry: false", "x-request-id: r-1", *headers)

    return script


@pytest.mark.parametrize(
    ("script", "exit_code", "says"),
    [
        (refuses(401, "invalid_api_key"), 3, "SLUICE_API_KEY"),
        (refuses(403, "insufficient_scope"), 3, "SLUICE_API_KEY"),
        (refuses(404, "model_not_found"), 5, "there are: tiny, other"),
        (refuses(400, "context_length_exceeded"), 5, "refused"),
        (refuses(429, "queue_full", "retry-after: 3"), 6, "try again in 3 s"),
        (refuses(429, "insufficient_quota"), 6, "refused"),
        (refuses(503, "overloaded"), 1, "refused"),
    ],
)
def test_refusals_say_what_to_do(run: Run, script: Script, exit_code: int, says: str) -> None:
    for command in (("chat",), ("chat", "--no-stream"), ("complete",)):
        code, out, err = run(script, *command, "-m", "absent", "hello")
        assert (code, out) == (exit_code, "")
        assert says in err
        assert "request r-1" in err
        assert "sk-slc-1" not in err
    error = json.loads(run(script, "chat", "--json", "-m", "absent", "hello")[2])["error"]
    assert error["request_id"] == "r-1"
    assert says in error["message"]


def test_an_error_in_the_midst_of_an_answer(run: Run) -> None:
    def script(exchange: Exchange) -> None:
        exchange.stream_head(REQUEST_ID)
        exchange.chunk(
            b"".join([*numbered(chat_events())[:2], THIRD, error_event("replica_lost", "the replica died")])
        )
        exchange.end()

    code, out, err = run(script, "chat", "-m", "tiny", "hello")
    assert (code, out) == (1, "Hello\n")
    assert "the replica died" in err
    assert REQUEST_ID in err


def test_a_connection_that_is_lost_for_good(run: Run) -> None:
    script = Resumable(cuts=(500,), on_resume=refusing(503, "overloaded", "retry-after: 60"))
    code, out, err = run(script, "chat", "-m", "tiny", "--idempotency-key", "mine", "hello")
    assert (code, out.strip()) == (4, "Hello")
    assert "--idempotency-key mine" in err


def test_no_server(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(lambda _exchange: None) as server:
        url = server.base_url
    monkeypatch.setenv("SLUICE_API_KEY", "k")
    assert main(["models", "--base-url", url]) == 4
    err = capsys.readouterr().err
    assert f"cannot reach {url}" in err
    assert "refused" in err


def test_what_never_reaches_a_server(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    def script(_exchange: Exchange) -> None:
        raise AssertionError("nothing is asked for")

    code, _, err = run(script, "models", key="")
    assert (code, "SLUICE_API_KEY" in err) == (3, True)
    assert run(script, "models", "--base-url", "here")[0] == 2
    assert run(script, "complete", "-m", "tiny")[0] == 2
    assert run(script, "chat", "-m", "tiny", piped=b" \n")[0] == 2
    assert run(script, "chat", "-m", "tiny", piped=b"x" * (4 * 1024 * 1024 + 1))[0] == 2
    for wrong in ([], ["dance"], ["usage"], ["chat", "--max-tokens", "many"]):
        with pytest.raises(SystemExit) as raised:
            main(wrong)
        assert raised.value.code == 2
    capsys.readouterr()


def test_a_pipe_gets_the_text_as_it_is(run: Run) -> None:
    assert (
        run(Resumable(events=chat_events(["\x1b[1m", "\r\n"])), "chat", "-m", "tiny", "a")[1] == "\x1b[1m\r\n"
    )


def test_a_models_text_cannot_steer_the_terminal() -> None:
    assert shown("a\x1b[2J\tb\r\n\x9b1m\x07 你") == "a\\x1b[2J\tb\\x0d\n\\x9b1m\\x07 你"


@pytest.mark.parametrize(
    "wrong",
    [
        ["--temperature", "nan"],
        ["--temperature", "1e999"],
        ["--temperature", "-inf"],
        ["--temperature", "warm"],
        ["--max-tokens", "9" * 5000],
        ["--seed", "1.5"],
        ["--idempotency-key", "é"],
        ["--idempotency-key", ""],
        ["--idempotency-key", " key"],
        ["--idempotency-key", "k" * 256],
        ["--idempotency-key", "a\x00b"],
        ["--model", "\udcff"],
        ["--system", "\udcff"],
        ["--stop", "\udcff"],
        ["\udcff"],
    ],
    ids=lambda wrong: ascii(" ".join(wrong))[:40],
)
def test_what_no_request_can_hold_is_refused_in_one_line(
    wrong: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as raised:
        main(["chat", *wrong])
    out, err = capsys.readouterr()
    assert (raised.value.code, out, err.count("\n")) == (2, "", 1)
    assert len(err) < 250


@pytest.mark.parametrize(
    "url",
    [
        "http://[",
        "http://h:nope",
        "http://h:99999",
        "http://h:0",
        "http://a\x01b",
        "http://a\x00b",
        "http://é..x",
        "http://\udcff",
        "http://:80",
        "ftp://h",
        "http://",
    ],
    ids=ascii,
)
def test_what_is_no_base_url_is_refused_in_one_line(run: Run, url: str) -> None:
    code, out, err = run(Resumable(), "models", "--base-url", url)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "is no base URL" in err


def test_a_model_that_the_environment_names_is_text(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLUICE_MODEL", "\udcff")
    assert run(Resumable(), "chat", "hi") == (2, "", "sluice: SLUICE_MODEL is not in UTF-8\n")


def test_odd_values_that_a_server_may_judge_reach_it(run: Run) -> None:
    arguments = ["--temperature", "-1", "--max-tokens", "-5", "--seed", "1" + "0" * 400, "--stop", "é\x00"]
    assert run(Resumable(), "chat", "-m", "tiny", *arguments, "hi")[0] == 0
    assert sent(run)["stop"] == ["é\x00"]
    assert (sent(run)["temperature"], sent(run)["max_tokens"], sent(run)["seed"]) == (-1.0, -5, 10**400)
