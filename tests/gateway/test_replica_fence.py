"""Replicas that are not what was said of them, and those that stop before their requests do."""

import asyncio

import msgspec
import pytest

from tests.gateway.harness import GatewayProcess
from tests.gateway.peers import WAIT_S, WorkerPeer, socket_address
from tests.gateway.test_stream_errors import begin, events

pytestmark = pytest.mark.asyncio(loop_scope="package")


async def test_a_replica_that_was_named_wrongly_at_first_is_reached_when_it_is_named_right(
    gateway: GatewayProcess,
) -> None:
    worker = WorkerPeer("worker-7", socket_address(gateway.folder, "w7"), gateway.digest)
    await worker.start()
    gateway.dispatcher.send(msgspec.structs.replace(worker.up(), digest="e" * 64))
    await asyncio.wait_for(worker.hello, WAIT_S)
    gateway.dispatcher.workers.append(worker)
    gateway.dispatcher.send(worker.up())
    task, submit = await begin(gateway)
    gateway.dispatcher.place(submit, worker)
    worker.emit(submit.sid, 0, 1, "reached")
    worker.finish(submit.sid, "stop", output=1)
    assert (await task).json()["choices"][0]["message"]["content"] == "reached"
    await gateway.dispatcher.lose(worker)


async def test_what_a_stopping_replica_could_not_finish_goes_to_another(gateway: GatewayProcess) -> None:
    # Given a request without a token, on a replica that stops
    worker = WorkerPeer("worker-6", socket_address(gateway.folder, "w6"), gateway.digest)
    await gateway.dispatcher.add(worker)
    task, submit = await begin(gateway)
    gateway.dispatcher.place(submit, worker)
    # When its time is over, then it is submitted again
    worker.finish(submit.sid, "moved", output=0)
    again = await gateway.dispatcher.submitted()
    assert (again.moves, again.request_id) == (1, submit.request_id)
    gateway.dispatcher.place(again, gateway.worker)
    gateway.worker.emit(again.sid, 0, 1, "whole")
    gateway.worker.finish(again.sid, "stop", output=1)
    assert (await task).json()["choices"][0]["message"]["content"] == "whole"
    # And one that has shown tokens, and may not go on, ends with a word
    task, submit = await begin(gateway, stream=True)
    gateway.dispatcher.place(submit, worker)
    worker.emit(submit.sid, 0, 1, "begun")
    worker.finish(submit.sid, "moved", output=1)
    assert events(await task)[-1]["error"]["code"] == "replica_lost"
    record = gateway.usage_of(submit.request_id)
    assert (record.outcome, record.output_tokens) == ("replica_lost", 1)
    await gateway.dispatcher.lose(worker)
