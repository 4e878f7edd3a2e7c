"""What the client hears of the token that ended its answer: only of one that it had named itself."""

import asyncio

import msgspec
import pytest

from gpuworker.wire.messages import ChoiceEnd
from tests.gateway.harness import MODEL, GatewayProcess
from tests.gateway.peers import end, frame

pytestmark = pytest.mark.asyncio(loop_scope="package")

NAMED = 50
END_OF_TEXT = 2  # of the model


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize(
    ("stopped_by", "told"), [(NAMED, NAMED), (END_OF_TEXT, None), ("stop", "stop"), (None, None)]
)
async def test_the_models_own_end_is_null(
    gateway: GatewayProcess, n: int, stopped_by: str | int | None, told: str | int | None
) -> None:
    body = {"model": MODEL, "prompt": "a", "n": n, "stop": "stop", "stop_token_ids": [NAMED]}
    asked = asyncio.create_task(gateway.post("/v1/completions", body))
    submit = await gateway.dispatcher.submitted()
    gateway.dispatcher.place(submit, gateway.worker)
    last = msgspec.structs.replace(end(submit.sid, "stop"), stopped_by=stopped_by)
    choice_ends = [
        ChoiceEnd(sid=submit.sid, choice=choice, reason="stop", output_tokens=0, stopped_by=stopped_by)
        for choice in range(n)
    ]
    gateway.worker.send(
        msgspec.structs.replace(frame(ends=(last,)), choice_ends=choice_ends if n > 1 else [])
    )
    choices = (await asked).json()["choices"]
    assert [(choice["finish_reason"], choice["stop_reason"]) for choice in choices] == [("stop", told)] * n
