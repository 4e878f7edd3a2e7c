"""One answer on the screen, of either endpoint, in a stream or in one piece."""

from dataclasses import dataclass
from typing import Any

from sluice_client.answer import Restarted
from sluice_client.cli.terminal import Stopwatch, footer, note, write, write_json
from sluice_client.client import Sluice


@dataclass(frozen=True, slots=True)
class Outcome:
    text: str
    interrupted: bool  # by Ctrl-C: the text is what had arrived, and the server has stopped


@dataclass(frozen=True, slots=True)
class Asking:
    """How to ask, and what to show of the answer."""

    client: Sluice
    parameters: dict[str, Any]  # the model, sampling, perhaps an idempotency key
    json: bool
    stream: bool

    def chat(self, messages: list[dict[str, str]]) -> Outcome:
        return self._answer(self.client.chat, {"messages": messages})

    def complete(self, prompt: str) -> Outcome:
        return self._answer(self.client.completions, {"prompt": prompt})

    def _answer(self, endpoint: Any, what: dict[str, Any]) -> Outcome:
        return (self._streamed if self.stream else self._whole)(endpoint, {**self.parameters, **what})

    def _whole(self, endpoint: Any, parameters: dict[str, Any]) -> Outcome:
        watch = Stopwatch()
        try:
            whole = endpoint.create(**parameters)
        except KeyboardInterrupt:
            return Outcome("", interrupted=True)
        choice = whole.choices[0]
        text = str((choice.message.content if "messages" in parameters else choice.text) or "")
        if self.json:
            write_json(whole)
        else:
            write(text if text.endswith("\n") else f"{text}\n")
        line = footer(
            watch, usage=whole.usage, finish_reason=choice.finish_reason, request_id=whole._request_id or ""
        )
        note(line, only_terminal=True)
        return Outcome(text, interrupted=False)

    def _streamed(self, endpoint: Any, parameters: dict[str, Any]) -> Outcome:
        watch = Stopwatch()
        stream = endpoint.stream(**parameters, stream_options={"include_usage": True})
        answer = stream.answer
        interrupted = False
        try:
            self._print(stream, watch)
        except KeyboardInterrupt as error:
            # A second one, while the server was being told, is for the command.
            if isinstance(error.__context__, KeyboardInterrupt):
                raise
            interrupted = True
        finally:
            if not self.json and answer.pieces and not answer.pieces[-1].endswith("\n"):
                write("\n")
        line = footer(
            watch,
            usage=answer.usage,
            finish_reason=answer.finish_reason,
            request_id=answer.request_id,
            answer=answer,
        )
        note(line, only_terminal=True)
        return Outcome(answer.text, interrupted)

    def _print(self, stream: Any, watch: Stopwatch) -> None:
        pieces = 0  # that were printed
        with stream:
            for event in stream:
                if isinstance(event, Restarted):
                    self._restarted(event, midway=pieces > 0)
                    pieces = 0
                    continue
                if self.json:
                    write_json(event)
                new = stream.answer.pieces[pieces:]
                if new:
                    watch.text_came()
                    pieces += len(new)
                    if not self.json:
                        write("".join(new))

    def _restarted(self, event: Restarted, *, midway: bool) -> None:
        if self.json:
            write_json(event)
        else:
            write("\n" if midway else "")
            note("the server lost this answer; it begins again:")
