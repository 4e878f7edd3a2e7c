"""What the command line may say."""

import argparse
import math
from collections.abc import Sequence
from typing import NoReturn

from sluice_client import __version__
from sluice_client.call import idempotency_key_make
from sluice_client.cli.failures import USAGE
from sluice_client.cli.terminal import shown

EXIT_CODES = """exit codes:
  0    done
  1    the answer failed at the server
  2    the command line is wrong, or names no model where there are several
  3    no API key, or the server refuses it
  4    the server cannot be reached, or the connection was lost for good
  5    the server refuses the request
  6    too many requests, or the budget is used up
  130  interrupted by Ctrl-C, which also stops the answer at the server

environment: SLUICE_API_KEY, SLUICE_BASE_URL (http://127.0.0.1:8000/v1), SLUICE_MODEL"""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """As all other failures: one line."""
        self.exit(USAGE, f"{self.prog}: {shown(message)}; {self.prog} --help says more\n")


def arguments_parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = _Parser(
        prog="sluice",
        description="Talk to a Sluice server.",
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    common = _Parser(add_help=False)
    common.add_argument("--base-url", metavar="URL", help="instead of SLUICE_BASE_URL")
    common.add_argument(
        "--json", action="store_true", help="what the server sent, one JSON object a line; errors too"
    )
    generation = _generation()

    chat = commands.add_parser(
        "chat",
        parents=[common, generation],
        help="answer a prompt, or hold a conversation",
        description="Answers PROMPT, what is piped in, or both; with neither, holds a conversation.",
    )
    chat.add_argument("--system", type=_text, metavar="TEXT", help="instructions for the whole conversation")
    complete = commands.add_parser(
        "complete",
        parents=[common, generation],
        help="go on from a text",
        description="Goes on from PROMPT, from what is piped in, or from both.",
    )
    for command in (chat, complete):
        command.add_argument("prompt", nargs="?", type=_text, metavar="PROMPT")
    commands.add_parser("models", parents=[common], help="list the models that the key may use")
    usage = commands.add_parser("usage", parents=[common], help="what a finished request used")
    usage.add_argument("request_id", metavar="REQUEST_ID", help="as in the footer, or an answer's id")
    return parser.parse_args(argv)


def _generation() -> _Parser:
    parser = _Parser(add_help=False)
    parser.add_argument("-m", "--model", type=_text, help="else SLUICE_MODEL, else the only one there is")
    parser.add_argument("--no-stream", action="store_true", help="print the answer when it is complete")
    parser.add_argument("--max-tokens", type=_integer, metavar="N")
    parser.add_argument("--temperature", type=_number, metavar="T", help="0 always takes the likeliest token")
    parser.add_argument(
        "--stop", action="append", type=_text, metavar="TEXT", help="end before this text; up to four"
    )
    parser.add_argument("--seed", type=_integer, metavar="N")
    parser.add_argument(
        "--idempotency-key",
        type=_key,
        metavar="KEY",
        help="the same key gets the same answer again, for one bill",
    )
    return parser


def parameters(arguments: argparse.Namespace) -> dict[str, object]:
    """The parameters that were given."""
    names = ("max_tokens", "temperature", "stop", "seed", "idempotency_key")
    return {name: value for name in names if (value := getattr(arguments, name)) is not None}


def _number(given: str) -> float:
    try:
        number = float(given)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):  # JSON has no others
        raise argparse.ArgumentTypeError(f"{_shortened(given)} is no number")
    return number


def _integer(given: str) -> int:
    try:
        return int(given)
    except ValueError:  # also where it has thousands of digits
        raise argparse.ArgumentTypeError(f"{_shortened(given)} is no whole number") from None


def _text(given: str) -> str:
    if not is_utf8(given):
        raise argparse.ArgumentTypeError(f"{_shortened(given)} is not in UTF-8")
    return given


def is_utf8(text: str) -> bool:
    """Bytes that are not are kept by the interpreter as lone surrogates, which no JSON can hold."""
    return not any("\ud800" <= character <= "\udfff" for character in text)


def _key(given: str) -> str:
    try:
        return idempotency_key_make(given)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _shortened(given: str) -> str:
    return ascii(given) if len(given) <= 40 else f"{given[:40]!a}…"
