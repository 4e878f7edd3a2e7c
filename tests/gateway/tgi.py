"""TGI's three endpoints without a gateway: requests translated, and scripted answers put into words."""

import json
from typing import Any

from gateway.answer_parts import Row
from gateway.dialects.base import Dialect
from gateway.dialects.tgi.generate import COMPAT, GENERATE, GENERATE_STREAM
from gpuworker.wire.messages import TokenLogprobs
from tests.gateway.dialect_server import BYTES, END, DialectServer, Script

EOS = Row(0, 1, "", [TokenLogprobs(END, -0.1, [(END, -0.1), (65, -3.0)])])


def server_make() -> DialectServer:
    return DialectServer({"/": COMPAT, "/generate": GENERATE, "/generate_stream": GENERATE_STREAM})


def parsed(dialect: Dialect = GENERATE, *, inputs: str = "Hello", **parameters: Any) -> Any:
    return dialect.parse(json.dumps({"inputs": inputs, "parameters": parameters}).encode())


def answer_of(script: Script, **parameters: Any) -> Any:
    renderer = GENERATE.renderer(parsed(**parameters).options, script.head, BYTES)
    return json.loads(renderer.whole(script.whole()))


def events_of(script: Script, **parameters: Any) -> list[Any]:
    renderer = GENERATE_STREAM.renderer(parsed(GENERATE_STREAM, **parameters).options, script.head, BYTES)
    return [json.loads(data) for _, data in script.events(renderer)]
