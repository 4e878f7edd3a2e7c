"""What is written where: answers to stdout, everything about them to stderr."""

import json
import re
import sys
import time

from openai import BaseModel
from openai.types import CompletionUsage

from sluice_client.answer import Answer, Restarted

# All but tab and line feed: a model's text must not move the cursor, or speak to the terminal.
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def shown(text: str) -> str:
    """Text that is safe to show on a terminal."""
    return _CONTROLS.sub(lambda match: f"\\x{ord(match[0]):02x}", text)


def write(text: str) -> None:
    """Raw into a pipe or a file, safe on a terminal."""
    sys.stdout.write(shown(text) if sys.stdout.isatty() else text)
    sys.stdout.flush()


def write_json(event: BaseModel | Restarted) -> None:
    """What the server sent, whole, on one line."""
    if isinstance(event, Restarted):
        sent: dict[str, object] = {"object": "sluice.restarted", "request_id": event.request_id}
    else:
        sent = event.to_dict(mode="json")
    sys.stdout.write(json.dumps(sent) + "\n")  # ASCII: some readers take U+2028 for a line end
    sys.stdout.flush()


def note(text: str, *, only_terminal: bool = False) -> None:
    """A line about the answer, dim where it can be."""
    terminal = sys.stderr.isatty()
    if terminal or not only_terminal:
        sys.stderr.write(f"\x1b[2m{shown(text)}\x1b[0m\n" if terminal else f"{text}\n")
        sys.stderr.flush()


class Stopwatch:
    """From the request to the first text, and from there to the last."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._first: float | None = None
        self._last = self._began

    def text_came(self) -> None:
        self._last = time.monotonic()
        if self._first is None:
            self._first = self._last

    def phrases(self, output_tokens: int | None) -> list[str]:
        if self._first is None:
            return []
        found = [f"first token {self._first - self._began:.2f} s"]
        if output_tokens and output_tokens > 1 and self._last > self._first:
            found.insert(0, f"{(output_tokens - 1) / (self._last - self._first):.1f} tokens/s")
        return found


def footer(
    watch: Stopwatch,
    *,
    usage: CompletionUsage | None,
    finish_reason: str | None,
    request_id: str,
    answer: Answer | None = None,
) -> str:
    parts = []
    if usage is not None:
        parts.append(f"{usage.prompt_tokens} + {usage.completion_tokens} tokens")
    parts += watch.phrases(usage.completion_tokens if usage else None)
    if finish_reason == "length":
        parts.append("cut at the token limit")
    if finish_reason is None:
        parts.append("stopped")
    if answer is not None and answer.resumes:
        parts.append(f"resumed {answer.resumes} times")
    if answer is not None and answer.replayed:
        parts.append("replayed")
    return " · ".join([*parts, request_id] if request_id else parts)
