"""What `make up` prints: lines that can be copied as they are, with an answer that a small model knows."""

import ast
import json
import shlex
from pathlib import Path

from devservices.snippets import ready_text
from devservices.state import up_settings

SEEDED = {"tenants": [{"api_key": "sk-slc-x"}], "admin": {"username": "admin", "password": "p"}}


def _text() -> str:
    return ready_text(up_settings({"SLUICE_STATE": str(Path("/state"))}), SEEDED, "small")


def test_the_curl_line_sends_a_request_whose_answer_is_the_same_every_time() -> None:
    command = _text().split("\n\n")[1]

    body = json.loads(shlex.split(command)[-1])

    assert body["temperature"] == 0
    assert body["messages"] == [{"role": "user", "content": "What is the capital of France?"}]


def test_the_python_lines_say_what_they_need_and_are_python() -> None:
    snippet = _text().split("\n\n")[2]

    calls = [node for node in ast.walk(ast.parse(snippet)) if isinstance(node, ast.Call)]

    assert "pip install openai" in snippet.splitlines()[0]
    arguments = {word.arg: ast.unparse(word.value) for call in calls for word in call.keywords}
    assert arguments["temperature"] == "0"
