"""A worker of two ranks as processes: it serves, drains, and never leaves a part of itself behind."""

import asyncio
import os
import signal
import time

import pytest

from gpuworker.manifest import manifest_build, manifest_write
from gpuworker.wire.messages import DEAD_MS, Sampling
from tests.devservices.processes import gone_within
from tests.engine.processes import children, is_running
from tests.engine.sharded_models import BAN, LLAMA, model_save
from tests.worker.conftest import Stage
from tests.worker.peers import GatewayEnd

SPLIT = (
    *("--backend", "native", "--tensor-parallel", "2", "--threads", "2", "--dtype", "float32"),
    *("--kv-blocks", "64", "--target-itl-ms", "off"),
)
GREEDY = Sampling(temperature=0.0, logit_bias=BAN)


async def start(stage: Stage) -> int:
    """Returns the process of the rank beside the worker's own."""
    folder = model_save(stage.worker.weights, LLAMA)
    manifest = manifest_build(folder)
    manifest_write(folder, manifest)
    stage.digest = manifest.digest
    await stage.start(*SPLIT)
    assert stage.worker.process is not None
    (rank,) = children(stage.worker.process.pid)
    return rank


async def begin_endless(stage: Stage) -> GatewayEnd:
    gateway = await stage.gateway()
    stage.run(gateway, 1, "endless", max_tokens=900, ignore_eos=True, sampling=GREEDY)
    await gateway.until(lambda: len(gateway.frames) > 3)
    return gateway


async def test_it_serves_and_drains(stage: Stage) -> None:
    rank = await start(stage)
    gateway = await stage.gateway()
    stage.run(gateway, 1, "a prompt", max_tokens=200, ignore_eos=True, sampling=GREEDY)
    await gateway.until(lambda: gateway.frames)
    # When the worker and its rank are told to end, as a supervisor tells a whole group
    os.kill(rank, signal.SIGTERM)
    stage.worker.signal(signal.SIGTERM)
    # Then the request ends first
    assert await stage.worker.exit_status() == 0
    await gateway.until_ended(1)
    assert (gateway.ends[1].reason, gateway.ends[1].output_tokens) == ("length", 200)
    assert not is_running(rank)
    assert not any("rank" in line for line in stage.worker.log)


@pytest.mark.parametrize(
    ("how", "busy"), [(signal.SIGKILL, False), (signal.SIGSTOP, True)], ids=["killed while idle", "frozen"]
)
async def test_it_fails_with_one_of_its_ranks(stage: Stage, how: signal.Signals, busy: bool) -> None:
    rank = await start(stage)
    if busy:
        await begin_endless(stage)
    os.kill(rank, how)
    at = time.monotonic()
    # Then the fleet knows within a heartbeat
    await stage.dispatcher.until(lambda: stage.dispatcher.worker is None)
    assert time.monotonic() - at < DEAD_MS / 1000
    assert not is_running(rank)
    assert await stage.worker.exit_status() == 1
    assert f"rank 1 (pid {rank})" in stage.worker.log[-1]
    assert "RankLost" in stage.worker.log[-1]


async def test_killed_it_takes_its_ranks_along(stage: Stage) -> None:
    rank = await start(stage)
    await begin_endless(stage)
    stage.worker.signal(signal.SIGKILL)
    assert await asyncio.to_thread(gone_within, rank, DEAD_MS / 1000)


async def test_a_model_that_does_not_divide_is_refused(stage: Stage) -> None:
    folder = model_save(stage.worker.weights, LLAMA)
    manifest_write(folder, manifest_build(folder))
    await stage.worker.start(*SPLIT, "--tensor-parallel", "3")
    assert await stage.worker.exit_status() == 2
    (line,) = stage.worker.log
    assert "kv_heads 4 does not divide over 3" in line
