"""`sluice models` and `sluice usage`: what can be asked of a server without generating."""

import json
import re
import sys
import uuid

from sluice_client.cli.failures import CommandError
from sluice_client.cli.terminal import write, write_json
from sluice_client.client import Sluice

_ANSWER_ID = re.compile(r"(?:[a-z]+[-_])?([0-9a-f]{32})")


def models_show(client: Sluice, *, as_json: bool) -> None:
    models = list(client.models.list())
    if as_json:
        for model in models:
            write_json(model)
        return
    width = max((len(model.id) for model in models), default=0)
    for model in models:
        context = (model.model_extra or {}).get("max_model_len")
        write(f"{model.id:{width}}  {context} tokens of context\n" if context else f"{model.id}\n")


def usage_show(client: Sluice, named: str, *, as_json: bool) -> None:
    usage = client.usage(str(request_id(named)))
    if as_json:
        sys.stdout.write(json.dumps(usage) + "\n")
        return
    lines = dict(_flat("", usage))
    width = max(map(len, lines), default=0)
    for name, value in lines.items():
        write(f"{name:{width}}  {value}\n")


def request_id(named: str) -> uuid.UUID:
    """Of a request id, or of an answer's id, which is the same number: `chatcmpl-…`."""
    match = _ANSWER_ID.fullmatch(named.strip().lower())
    try:
        return uuid.UUID(match[1] if match else named.strip())
    except ValueError:
        raise CommandError(f"{named!r} is no request id; one stands below each answer") from None


def _flat(prefix: str, value: object) -> list[tuple[str, object]]:
    if not isinstance(value, dict):
        return [(prefix, value)]
    return [
        pair
        for name, inner in value.items()
        for pair in _flat(f"{prefix}.{name}" if prefix else str(name), inner)
    ]
