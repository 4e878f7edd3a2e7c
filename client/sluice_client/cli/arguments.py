"""What the command line may say."""

import argparse
from collections.abc import Sequence

from sluice_client import __version__

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


def arguments_parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="sluice",
        description="Talk to a Sluice server.",
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    common = argparse.ArgumentParser(add_help=False)
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
    chat.add_argument("--system", metavar="TEXT", help="instructions for the whole conversation")
    complete = commands.add_parser(
        "complete",
        parents=[common, generation],
        help="go on from a text",
        description="Goes on from PROMPT, from what is piped in, or from both.",
    )
    for command in (chat, complete):
        command.add_argument("prompt", nargs="?", metavar="PROMPT")
    commands.add_parser("models", parents=[common], help="list the models that the key may use")
    usage = commands.add_parser("usage", parents=[common], help="what a finished request used")
    usage.add_argument("request_id", metavar="REQUEST_ID", help="as in the footer, or an answer's id")
    return parser.parse_args(argv)


def _generation() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("-m", "--model", help="else SLUICE_MODEL, else the only one there is")
    parser.add_argument("--no-stream", action="store_true", help="print the answer when it is complete")
    parser.add_argument("--max-tokens", type=int, metavar="N")
    parser.add_argument("--temperature", type=float, metavar="T", help="0 always takes the likeliest token")
    parser.add_argument("--stop", action="append", metavar="TEXT", help="end before this text; up to four")
    parser.add_argument("--seed", type=int, metavar="N")
    parser.add_argument(
        "--idempotency-key", metavar="KEY", help="the same key gets the same answer again, for one bill"
    )
    return parser


def parameters(arguments: argparse.Namespace) -> dict[str, object]:
    """The parameters that were given."""
    names = ("max_tokens", "temperature", "stop", "seed", "idempotency_key")
    return {name: value for name in names if (value := getattr(arguments, name)) is not None}
