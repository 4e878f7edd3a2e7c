"""A slow reader of an answer to many prompts: those that are placed while it is behind pause as well."""

import asyncio
import json

import pytest

from gpuworker.wire.messages import Pause, Resume
from tests.gateway.harness import MODEL, GatewayProcess
from tests.gateway.peers import WAIT_S
from tests.gateway.slow_client import slow_client

pytestmark = pytest.mark.asyncio(loop_scope="package")

ROW = "x" * 8 * 1024
BUFFERED_ROWS = 128  # more than both kernels' buffers and the pause's bound hold


async def test_a_prompt_placed_late_pauses_too(gateway: GatewayProcess) -> None:
    data = json.dumps({"model": MODEL, "prompt": ["a", "b"], "stream": True}).encode()
    lines = ["POST /v1/completions HTTP/1.1", "host: x", gateway.authorization()]
    head = "\r\n".join([*lines, f"content-length: {len(data)}", "", ""]).encode()
    worker = gateway.worker
    async with slow_client(gateway.port, head + data) as client:
        early, late = [await gateway.dispatcher.submitted() for _ in range(2)]
        gateway.dispatcher.place(early, worker)
        for sent in range(BUFFERED_ROWS):
            worker.emit(early.sid, sent, 1, ROW)
            await asyncio.sleep(0.002)
            if not worker.pauses.empty():
                break
        assert worker.pauses.get_nowait() == Pause(sid=early.sid)
        gateway.dispatcher.place(late, worker)
        worker.emit(late.sid, 0, 1, "late")
        assert await asyncio.wait_for(worker.pauses.get(), WAIT_S) == Pause(sid=late.sid)

        reading = asyncio.create_task(client.read_to_the_end())
        told = [await asyncio.wait_for(worker.pauses.get(), WAIT_S) for _ in range(2)]
        assert told == [Resume(sid=early.sid), Resume(sid=late.sid)]
        worker.finish(early.sid, "stop", output=sent + 1)
        worker.finish(late.sid, "stop", output=1)
        await asyncio.wait_for(reading, WAIT_S)
        assert b'"late"' in client.received
        assert client.received.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
