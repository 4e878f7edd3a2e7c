"""`sluice chat` without a prompt: turns, until Ctrl-D or Ctrl-C at the prompt."""

import contextlib

import openai

from sluice_client.cli.answers import Asking
from sluice_client.cli.failures import INTERRUPTED, failure_of, failure_write
from sluice_client.cli.terminal import note

with contextlib.suppress(ImportError):  # not everywhere; where it is, `input` edits lines and remembers them
    import readline  # noqa: F401

PROMPT = "> "


def converse(asking: Asking, messages: list[dict[str, str]]) -> int:
    """Ctrl-C stops an answer, and what had come of it stays in the conversation. Returns the exit code."""
    note("Ctrl-C stops an answer; Ctrl-D ends the conversation.", only_terminal=True)
    while True:
        try:
            line = input(PROMPT)
        except EOFError:
            return 0
        except KeyboardInterrupt:
            return INTERRUPTED
        if not line.strip():
            continue
        turn = {"role": "user", "content": line}
        try:
            outcome = asking.chat([*messages, turn])
        except openai.OpenAIError as error:
            failure_write(failure_of(error, asking.client), as_json=asking.json)
            continue
        if outcome.text:
            messages += [turn, {"role": "assistant", "content": outcome.text}]
