"""How a worker process ends: drained on SIGTERM, loudly when it cannot go on, with its records intact."""

import asyncio
import signal
import sys
from pathlib import Path

import pytest

from gpuworker.wire.journal import Journal
from gpuworker.wire.messages import CHECKPOINT_TOKENS
from tests.worker.conftest import Stage
from tests.worker.peers import last_of_each, usage_collect, usage_until_ended


async def test_sigterm_lets_running_rows_finish_and_refuses_new_ones(stage: Stage) -> None:
    await stage.start("--step-ms", "10")
    gateway = await stage.gateway()
    stage.run(gateway, 1, "finish", max_tokens=60)
    await gateway.until(lambda: gateway.text(1))
    stage.worker.signal(signal.SIGTERM)
    await stage.worker.until(lambda: any("draining" in line for line in stage.worker.log))
    stage.run(gateway, 2, "too late", max_tokens=5)
    await stage.dispatcher.until(lambda: stage.dispatcher.refused)
    assert stage.dispatcher.refused[0].code == "draining"
    assert await stage.worker.exit_status() == 0
    await gateway.until_ended(1)
    assert gateway.text(1) == "finish" * 10
    assert gateway.row(1) in stage.dispatcher.ended


async def test_a_drain_waits_for_a_gateway_that_is_on_its_way(stage: Stage) -> None:
    await stage.start()
    gateway = stage.absent_gateway()
    stage.run(gateway, 1, "patience", max_tokens=8)
    await stage.dispatcher.until(lambda: stage.dispatcher.ended)
    stage.worker.signal(signal.SIGTERM)
    await stage.worker.until(lambda: any("draining" in line for line in stage.worker.log))
    await gateway.connect()
    await gateway.until_ended(1)
    assert gateway.text(1) == "patience"
    assert await stage.worker.exit_status() == 0


async def test_rows_that_outlast_the_drain_are_for_others_to_go_on_with(stage: Stage) -> None:
    await stage.start("--step-ms", "10", "--drain-s", "0.5")
    gateway = await stage.gateway()
    stage.run(gateway, 1, "endless", max_tokens=3000)
    await gateway.until(lambda: gateway.text(1))
    stage.worker.signal(signal.SIGTERM)
    assert await stage.worker.exit_status() == 0
    await gateway.until_ended(1)
    assert gateway.ends[1].reason == "moved"
    assert gateway.ends[1].output_tokens == len(gateway.text(1))


async def test_a_second_sigterm_exits_at_once(stage: Stage) -> None:
    await stage.start("--step-ms", "10")
    gateway = await stage.gateway()
    stage.run(gateway, 1, "endless", max_tokens=3000)
    await gateway.until(lambda: gateway.text(1))
    stage.worker.signal(signal.SIGTERM)
    await stage.worker.until(lambda: any("draining" in line for line in stage.worker.log))
    stage.worker.signal(signal.SIGTERM)
    assert await stage.worker.exit_status() == 128 + signal.SIGTERM
    await gateway.until(lambda: gateway.closed)


async def test_after_kill_9_the_records_are_still_there_for_the_controller(stage: Stage) -> None:
    await stage.start("--step-ms", "2")
    gateway = await stage.gateway()
    stage.run(gateway, 1, "ended", max_tokens=5)
    stage.run(gateway, 2, "running", max_tokens=3000)
    await gateway.until(lambda: len(gateway.text(2)) > 2 * CHECKPOINT_TOKENS + 30)
    stage.worker.signal(signal.SIGKILL)
    assert await stage.worker.exit_status() == -signal.SIGKILL
    first = stage.dispatcher.hellos[0].incarnation
    await stage.worker.start()
    await stage.dispatcher.until(lambda: len(stage.dispatcher.hellos) == 2)
    collected = await usage_collect(stage.worker.address)
    records = last_of_each(collected.records)
    assert records["request-1"].reason == "length"
    assert records["request-1"].output_tokens == 5
    open_record = records["request-2"]
    assert (open_record.reason, open_record.prompt_tokens) == ("", 7)
    assert open_record.output_tokens >= 2 * CHECKPOINT_TOKENS
    assert open_record.output_tokens % CHECKPOINT_TOKENS == 0
    assert open_record.gateway == gateway.incarnation
    assert open_record.worker_incarnation == first != stage.dispatcher.hellos[1].incarnation
    assert not collected.more


async def test_collecting_goes_on_where_it_stopped_and_survives_a_lost_answer(stage: Stage) -> None:
    await stage.start()
    gateway = await stage.gateway()
    for sid in range(20):
        stage.run(gateway, sid, "usage", max_tokens=2)
    await gateway.until_ended(*range(20))
    address = stage.worker.address
    await usage_until_ended(address, *(f"request-{sid}" for sid in range(20)))
    everything = await usage_collect(address)
    seen, after, more = [], 0, True
    while more:
        collected = await usage_collect(address, after, limit=7)
        seen += collected.records
        after, more = collected.position, collected.more
    assert seen == everything.records
    assert {record.request_id for record in seen} == {f"request-{sid}" for sid in range(20)}
    assert (await usage_collect(address, after)).records == []
    assert (await usage_collect(address, 0)).records == [], "acknowledged is acknowledged"
    stage.run(gateway, 99, "more", max_tokens=1)
    await gateway.until_ended(99)
    assert (await usage_until_ended(address, "request-99", after=after)).keys() == {"request-99"}
    for other in (
        await usage_collect(address, after, journal="another"),
        await usage_collect(address, 1 << 40),
    ):
        assert {record.request_id for record in other.records} == {"request-99"}, "nothing was acknowledged"


async def test_batch_that_became_urgent_is_billed_as_batch(stage: Stage) -> None:
    await stage.start()
    gateway = await stage.gateway()
    stage.run(gateway, 1, "late", max_tokens=2, klass="batch_urgent")
    await gateway.until_ended(1)
    records = await usage_until_ended(stage.worker.address, "request-1")
    assert records["request-1"].klass == "batch"


async def test_a_failing_disk_ends_the_process(stage: Stage) -> None:
    limited = (
        "import os, resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096));"
        "os.execv(sys.argv[1], sys.argv[1:])"
    )
    await stage.worker.start(wrap=(sys.executable, "-c", limited))
    await stage.dispatcher.until(lambda: stage.dispatcher.reports)
    gateway = await stage.gateway()
    for sid in range(40):
        stage.run(gateway, sid, "usage", max_tokens=1)
    assert await stage.worker.exit_status() == 1
    failures = [line for line in stage.worker.log if "CRITICAL" in line and "failed, exiting" in line]
    assert len(failures) == 1
    assert "File too large" in failures[0]


@pytest.mark.parametrize("damage", ["changed", "added", "missing"])
async def test_weights_that_differ_from_their_manifest_are_not_served(stage: Stage, damage: str) -> None:
    weights = stage.worker.weights
    if damage == "changed":
        (weights / "tokenizer.json").write_text((weights / "tokenizer.json").read_text() + " ")
    elif damage == "added":
        (weights / "extra.bin").write_bytes(b"x")
    else:
        (weights / "tokenizer.json").unlink()
    await stage.worker.start()
    assert await stage.worker.exit_status() == 2
    (line,) = stage.worker.log
    assert "cannot start" in line
    assert stage.dispatcher.hellos == []


async def test_no_secret_no_service(stage: Stage) -> None:
    await stage.worker.start(environment={})
    assert await stage.worker.exit_status() == 2
    assert "SLUICE_WIRE_SECRET" in stage.worker.log[0]


async def test_a_spool_in_use_is_not_shared(stage: Stage) -> None:
    journal = Journal.open(stage.worker.spool)
    await stage.worker.start()
    assert await stage.worker.exit_status() == 2
    assert "another process" in stage.worker.log[0]
    await journal.close()


async def test_an_address_in_use_ends_the_process(stage: Stage, unused_tcp_port: int) -> None:
    blocker = await asyncio.start_server(lambda *_: None, "127.0.0.1", unused_tcp_port)
    await stage.worker.start("--listen", f"tcp://127.0.0.1:{unused_tcp_port}")
    assert await stage.worker.exit_status() == 1
    assert "failed, exiting" in stage.worker.log[-1]
    blocker.close()


async def test_the_scripted_worker_needs_neither_torch_nor_django() -> None:
    script = (
        "import sys, gpuworker.__main__, gpuworker.backends.scripted\n"
        "print([name for name in ('torch', 'django', 'celery', 'channels') if name in sys.modules])"
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", script, cwd=Path(__file__).parents[2], stdout=asyncio.subprocess.PIPE
    )
    out, _ = await process.communicate()
    assert out == b"[]\n"
