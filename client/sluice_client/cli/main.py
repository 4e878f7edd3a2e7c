"""The command: signals, the client, the chosen command, and an exit code for whatever happens."""

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from types import FrameType

import openai

from sluice_client.cli.answers import Asking
from sluice_client.cli.arguments import arguments_parse, is_utf8, parameters
from sluice_client.cli.conversation import converse
from sluice_client.cli.failures import (
    INTERRUPTED,
    CommandError,
    failure_of,
    failure_write,
    model_names,
)
from sluice_client.cli.lookups import models_show, usage_show
from sluice_client.cli.prompts import prompt_read
from sluice_client.client import Sluice
from sluice_client.errors import ConfigurationError

READER_GONE = 141  # as when SIGPIPE had ended it


def main(argv: Sequence[str] | None = None) -> int:
    arguments = arguments_parse(argv)
    # Ended by any of them, the answer is stopped at the server as well.
    for name in ("SIGTERM", "SIGHUP"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), _exit)
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    try:
        with Sluice(arguments.base_url) as client:
            try:
                return _run(arguments, client)
            except (CommandError, openai.OpenAIError) as error:
                return _failed(error, client, arguments)
    except ConfigurationError as error:
        return _failed(error, None, arguments)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # Else the interpreter would complain when it flushes.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return READER_GONE


def _run(arguments: argparse.Namespace, client: Sluice) -> int:
    if arguments.command == "models":
        models_show(client, as_json=arguments.json)
        return 0
    if arguments.command == "usage":
        usage_show(client, arguments.request_id, as_json=arguments.json)
        return 0
    prompt = prompt_read(arguments.prompt)
    if prompt is None and arguments.command == "complete":
        raise CommandError("there is no prompt: name one, or pipe one in")
    asking = Asking(
        client=client,
        parameters={"model": _model(arguments, client), **parameters(arguments)},
        json=arguments.json,
        stream=not arguments.no_stream,
    )
    if arguments.command == "complete":
        assert prompt is not None
        outcome = asking.complete(prompt)
    else:
        messages = [{"role": "system", "content": arguments.system}] if arguments.system else []
        if prompt is None:
            return converse(asking, messages)
        outcome = asking.chat([*messages, {"role": "user", "content": prompt}])
    return INTERRUPTED if outcome.interrupted else 0


def _failed(
    error: CommandError | openai.OpenAIError, client: Sluice | None, arguments: argparse.Namespace
) -> int:
    failure = failure_of(error, client)
    failure_write(failure, as_json=arguments.json)
    return failure.exit_code


def _model(arguments: argparse.Namespace, client: Sluice) -> str:
    named = arguments.model or os.environ.get("SLUICE_MODEL")
    if named and not is_utf8(named):
        raise CommandError("SLUICE_MODEL is not in UTF-8")
    if named:
        return str(named)
    names = model_names(client)
    if len(names) == 1:
        return names[0]
    there_are = f"there are: {', '.join(names)}" if names else "this key may use none"
    raise CommandError(f"which model? Name one by --model or SLUICE_MODEL; {there_are}")


def _exit(number: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + number)
