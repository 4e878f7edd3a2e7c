"""What went wrong, in words that say what to do, and the exit code for it."""

import contextlib
import json
import sys
from dataclasses import dataclass

import openai

from sluice_client.cli.terminal import note, shown
from sluice_client.client import Sluice
from sluice_client.errors import ConfigurationError, NoApiKey, StreamError, StreamLost

FAILED, USAGE, KEY, CONNECTION, REFUSED, LATER = 1, 2, 3, 4, 5, 6
INTERRUPTED = 130


class CommandError(Exception):
    """The command itself cannot go on."""

    def __init__(self, message: str, exit_code: int = USAGE) -> None:
        super().__init__(message)
        self.exit_code = exit_code


@dataclass(frozen=True, slots=True)
class Failure:
    exit_code: int
    message: str
    code: str
    request_id: str = ""


def failure_of(error: CommandError | openai.OpenAIError, client: Sluice | None) -> Failure:
    """`client` is asked for the models there are, where one was named that is not."""
    if isinstance(error, CommandError):
        return Failure(error.exit_code, str(error), "usage")
    if isinstance(error, NoApiKey):
        return Failure(KEY, "no API key, or none that can be one: set SLUICE_API_KEY", "no_api_key")
    if isinstance(error, ConfigurationError):
        return Failure(USAGE, str(error), "usage")
    if isinstance(error, StreamLost):
        how = f"--idempotency-key {error.idempotency_key} fetches the answer without a second bill"
        return Failure(CONNECTION, f"{error.message}; {how}", "connection_lost", error.request_id)
    if isinstance(error, StreamError):
        return Failure(FAILED, error.message, error.code or "error", error.request_id)
    if isinstance(error, openai.APIConnectionError):
        where = client.openai.base_url if client else "the server"
        cause = str(error.__cause__ or error.message)
        return Failure(CONNECTION, f"cannot reach {where}: {cause}; is SLUICE_BASE_URL right?", "no_server")
    if isinstance(error, openai.APIStatusError):
        return _refusal(error, client)
    return Failure(FAILED, str(error), "error")


def failure_write(failure: Failure, *, as_json: bool) -> None:
    if as_json:
        error = {"code": failure.code, "message": failure.message, "request_id": failure.request_id or None}
        sys.stderr.write(json.dumps({"error": error}) + "\n")
        return
    sys.stderr.write(f"sluice: {shown(failure.message)}\n")
    if failure.request_id:
        note(f"request {failure.request_id}")


def _refusal(error: openai.APIStatusError, client: Sluice | None) -> Failure:
    code, request_id = error.code or f"http_{error.status_code}", error.request_id or ""
    details = error.body.get("message") if isinstance(error.body, dict) else None
    message = str(details or f"the server answered {error.status_code}")
    if error.status_code in (401, 403):
        message = f"{message}; SLUICE_API_KEY holds the key that was refused"
        return Failure(KEY, message, code, request_id)
    if error.status_code == 429:
        wait = error.response.headers.get("retry-after")
        return Failure(LATER, f"{message}; try again in {wait} s" if wait else message, code, request_id)
    if error.status_code >= 500:
        return Failure(FAILED, message, code, request_id)
    if error.code == "model_not_found" and client is not None:
        with contextlib.suppress(openai.OpenAIError):  # the refusal itself is what matters
            message = f"{message}; there are: {', '.join(model_names(client)) or 'none for this key'}"
    return Failure(REFUSED, message, code, request_id)


def model_names(client: Sluice) -> list[str]:
    return [model.id for model in client.models.list()]
