"""A replica dies under a request: another one runs it, once, and it is one row of usage."""

import asyncio

import pytest

from gateway.upstream.failover import MOVES_MOST
from gateway.upstream.quarantine import LOST_WITH
from gpuworker.wire.messages import WorkerDown
from tests.gateway.harness import GatewayProcess
from tests.gateway.losing import BODY, begin, content, doomed
from tests.gateway.peers import WAIT_S

pytestmark = pytest.mark.asyncio(loop_scope="package")


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("announce", [True, False])
async def test_a_request_without_tokens_runs_elsewhere(
    gateway: GatewayProcess, announce: bool, stream: bool
) -> None:
    # Given a request that was placed and never heard of
    worker = await doomed(gateway, f"a{announce:d}{stream:d}")
    said = f"{announce} {stream}"  # for the same one would be taken for what they die of
    messages = [{"role": "user", "content": said}]
    task, first = await begin(gateway, stream=stream, messages=messages)
    gateway.dispatcher.place(first, worker)
    await asyncio.sleep(0.1)
    # When its replica dies
    await gateway.dispatcher.lose(worker, announce=announce, crashed=True)
    # Then it is submitted again, with its age, under another number
    second = await gateway.dispatcher.submitted()
    assert second.sid != first.sid
    assert (second.request_id, second.attempt, second.prompt) == (
        first.request_id, first.attempt, first.prompt,
    )  # fmt: skip
    assert (second.moves, second.emitted) == (1, 0)
    # Where it must not be run again before the dispatcher has noticed the loss, too
    assert second.lost_on in ((worker.incarnation, "") if announce else (worker.incarnation,))
    assert second.waited_ms >= 100
    assert second.deadline_ms < first.deadline_ms
    # And another one serves it
    gateway.dispatcher.place(second, gateway.worker)
    gateway.worker.emit(second.sid, 0, 1, "unharmed")
    gateway.worker.finish(second.sid, "stop", output=1)
    response = await task
    assert response.status == 200
    assert b"unharmed" in response.body
    record = gateway.usage_of(first.request_id)
    assert (record.outcome, record.prompt_tokens, record.output_tokens) == ("completed", 7, 1)
    assert record.worker_incarnation == gateway.worker.incarnation
    assert (record.replica_attempts, record.recomputed_tokens) == (2, 0)
    # Its connection's end and the dispatcher's word come in either order, or the one alone
    assert record.lost_cause in (("crashed", "disconnected") if announce else ("disconnected",))
    if not announce:
        gateway.dispatcher.send(WorkerDown(id=worker.name, incarnation=worker.incarnation, cause="killed"))


async def test_the_cause_is_what_the_dispatcher_says_where_no_connection_ended(
    gateway: GatewayProcess,
) -> None:
    # Given a request on a replica that says nothing more, and one on another that crashes
    silent, crashing = await doomed(gateway, "s0"), await doomed(gateway, "s1")
    submits = []
    for worker, cause, crashed in ((silent, "silent for too long", False), (crashing, "reset", True)):
        task, submit = await begin(gateway, max_tokens=11)
        gateway.dispatcher.place(submit, worker)
        await asyncio.sleep(0.1)
        # When the dispatcher gives the replica up
        gateway.dispatcher.send(
            WorkerDown(id=worker.name, incarnation=worker.incarnation, cause=cause, crashed=crashed)
        )
        submits.append((task, await gateway.dispatcher.submitted()))
        await gateway.dispatcher.lose(worker, announce=False)
    causes = []
    for task, submit in submits:
        gateway.dispatcher.place(submit, gateway.worker)
        gateway.worker.emit(submit.sid, 0, 1, "x")
        gateway.worker.finish(submit.sid, "stop", output=1)
        assert (await task).status == 200
        causes.append(gateway.usage_of(submit.request_id).lost_cause)
    assert causes == ["silent", "crashed"]


async def test_it_is_tried_no_more_than_a_few_times(gateway: GatewayProcess) -> None:
    task, submit = await begin(gateway, stream=True)
    for number in range(MOVES_MOST + 1):
        worker = await doomed(gateway, f"b{number}")
        gateway.dispatcher.place(submit, worker)
        await asyncio.sleep(0.05)
        await gateway.dispatcher.lose(worker)
        if number < MOVES_MOST:
            submit = await gateway.dispatcher.submitted()
            assert submit.moves == number + 1
    response = await asyncio.wait_for(task, WAIT_S)
    assert (response.status, response.json()["error"]["code"]) == (503, "replica_lost")
    record = gateway.usage_of(submit.request_id)
    assert (record.outcome, record.prompt_tokens, record.output_tokens) == ("replica_lost", 0, 0)
    assert record.replica_attempts == MOVES_MOST + 1
    assert record.lost_cause in ("disconnected", "silent")  # the one or the other was heard first


async def test_a_request_that_replicas_crash_of_is_not_run_again(gateway: GatewayProcess) -> None:
    # Given a request with which two replicas crash, and another that dies with them once
    poison = {"max_tokens": 13, "messages": [{"role": "user", "content": "poison"}]}
    task, submit = await begin(gateway, **poison)
    bystander, other = await begin(gateway)
    for number in range(LOST_WITH):
        worker = await doomed(gateway, f"q{number}")
        gateway.dispatcher.place(submit, worker)
        if number == 0:
            gateway.dispatcher.place(other, worker)
        await asyncio.sleep(0.05)
        await gateway.dispatcher.lose(worker, crashed=True)  # its connection's end may be noticed first
        if number == 0:
            again = [await gateway.dispatcher.submitted() for _ in range(2)]
            submit, other = sorted(again, key=lambda one: one.request_id != submit.request_id)
        elif number < LOST_WITH - 1:
            submit = await gateway.dispatcher.submitted()
    # Then with the third it is over
    response = await asyncio.wait_for(task, WAIT_S)
    assert (response.status, response.json()["error"]["code"]) == (422, "request_quarantined")
    # And it is not run again, whoever sends it
    again_sent = await gateway.post("/v1/chat/completions", {**BODY, **poison})
    assert (again_sent.status, again_sent.json()["error"]["code"]) == (422, "request_quarantined")
    assert gateway.dispatcher.submits.empty()
    # While others are
    gateway.dispatcher.place(other, gateway.worker)
    gateway.worker.emit(other.sid, 0, 1, "fine")
    gateway.worker.finish(other.sid, "stop", output=1)
    assert content(await bystander) == "fine"
    record = gateway.usage_of(other.request_id)
    assert (record.replica_attempts, record.lost_cause) == (2, "crashed")


async def test_what_the_lost_replica_still_says_is_nobodys(gateway: GatewayProcess) -> None:
    # Given a replica that lost the gateway, but not its life
    worker = await doomed(gateway, "g")
    task, first = await begin(gateway, stream=True)
    gateway.dispatcher.place(first, worker)
    await asyncio.sleep(0.1)
    assert worker.connection is not None
    worker.connection.abort("cut")
    second = await gateway.dispatcher.submitted()
    assert (await asyncio.wait_for(gateway.dispatcher.cancels.get(), WAIT_S)).sid == first.sid
    # When it is back, and goes on
    await asyncio.wait_for(worker.hello, WAIT_S)
    worker.emit(first.sid, 0, 1, "wrong")
    # Then it is stopped, and the client sees the other one's words alone
    assert (await asyncio.wait_for(worker.cancels.get(), WAIT_S)).sid == first.sid
    gateway.dispatcher.place(second, gateway.worker)
    gateway.worker.emit(second.sid, 0, 1, "right")
    gateway.worker.finish(second.sid, "stop", output=1)
    response = await task
    assert b"right" in response.body
    assert b"wrong" not in response.body
    await gateway.dispatcher.lose(worker)


async def test_a_replica_that_dies_after_the_deadline_moves_nothing(gateway: GatewayProcess) -> None:
    worker = await doomed(gateway, "h")
    task = asyncio.create_task(
        gateway.post("/v1/chat/completions", BODY, gateway.authorization(), "x-request-deadline-ms: 300")
    )
    submit = await gateway.dispatcher.submitted()
    gateway.dispatcher.place(submit, worker)
    await asyncio.sleep(0.5)
    await gateway.dispatcher.lose(worker)
    assert (await task).status in (503, 504)
    assert gateway.dispatcher.submits.empty()
