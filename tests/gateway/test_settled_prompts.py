"""A prompt that has ended stays ended, whatever is said of it while others of its request still run."""

import asyncio

import pytest

from gpuworker.wire.messages import Cancel, Ended
from tests.gateway.harness import MODEL, GatewayProcess
from tests.gateway.peers import WAIT_S

pytestmark = pytest.mark.asyncio(loop_scope="package")


async def test_what_a_restarted_dispatcher_says_of_it_ends_nothing(gateway: GatewayProcess) -> None:
    """It did not know that the prompt had ended, so it had it run again."""
    worker = gateway.worker
    asked = asyncio.create_task(gateway.post("/v1/completions", {"model": MODEL, "prompt": ["a", "b"]}))
    first, second = [await gateway.dispatcher.submitted() for _ in range(2)]
    for submit in (first, second):
        gateway.dispatcher.place(submit, worker)
    worker.emit(first.sid, 0, 1, "one")
    worker.finish(first.sid, "stop", output=1)
    worker.emit(first.sid, 0, 1, "one")
    assert await asyncio.wait_for(worker.cancels.get(), WAIT_S) == Cancel(sid=first.sid, reason="error")
    gateway.dispatcher.send(Ended(sid=first.sid, code="overloaded", message="no replica"))
    await asyncio.sleep(0.05)
    worker.emit(second.sid, 0, 1, "two")
    worker.finish(second.sid, "stop", output=1)
    answer = await asked
    assert answer.status == 200, answer.body
    assert [choice["text"] for choice in answer.json()["choices"]] == ["one", "two"]
    assert [gateway.usage_of(submit.request_id).outcome for submit in (first, second)] == ["completed"] * 2
