"""A scripted text-generation-inference on a real socket."""

import json
from collections.abc import AsyncIterator
from typing import Any

from tests.backends.upstreams import Upstream


class TGIUpstream(Upstream):
    """`/generate_stream` and `/info`."""

    def identity(self) -> bytes:
        script = self.script
        return json.dumps(
            {
                "model_id": script.model,
                "model_sha": script.revision,
                "max_total_tokens": script.context_tokens,
            }
        ).encode()

    def is_probe(self, body: dict[str, Any]) -> bool:
        return bool(body["inputs"] == "1" and body["parameters"]["max_new_tokens"] == 1)

    def error_body(self, message: str) -> bytes:
        kinds = {429: "overloaded", 422: "validation"}
        return json.dumps(
            {"error": message, "error_type": kinds.get(self.script.status, "generation")}
        ).encode()

    async def events(self, body: dict[str, Any]) -> AsyncIterator[bytes]:
        parameters = body["parameters"]
        ids, most, said = list(body["inputs"].encode()), parameters["max_new_tokens"], ""
        for at in range(most):
            token = ids[at % len(ids)]
            said += chr(token)
            event: dict[str, Any] = {
                "token": {"id": token, "text": chr(token), "logprob": -0.5, "special": False},
                "generated_text": None,
                "details": None,
            }
            if top := parameters.get("top_n_tokens"):
                event["top_tokens"] = [
                    {
                        "id": token + other,
                        "text": chr(token + other),
                        "logprob": -0.5 - other,
                        "special": False,
                    }
                    for other in range(top)
                ]
            stop = any(said.endswith(stop) for stop in parameters.get("stop") or [])
            if stop or at + 1 == most:
                reason = "stop_sequence" if stop else "length"
                event |= {
                    "generated_text": said,
                    "details": {
                        "finish_reason": reason,
                        "generated_tokens": int((at + 1) * self.script.usage_factor),
                        "input_length": len(ids),
                        "seed": None,
                    },
                }
            yield json.dumps(event).encode()
            if stop:
                break
