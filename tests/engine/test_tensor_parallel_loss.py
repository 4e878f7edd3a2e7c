"""A rank that dies, freezes or falls out of step ends the replica within the fleet's heartbeat."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from gpuworker.engine.plan import PlanRow, RowStart, SequenceKey, StepPlan
from gpuworker.engine.tensor_parallel import group
from gpuworker.engine.tensor_parallel.collectives import RankLost
from gpuworker.engine.tensor_parallel.group import RankGroup
from gpuworker.engine.tensor_parallel.runner import TensorParallelRunner
from gpuworker.wire.messages import DEAD_MS, Sampling
from tests.engine.processes import is_running
from tests.engine.sharded_models import LLAMA, model_save

DEAD_S = DEAD_MS / 1000


class Replica:
    """Two ranks, and when the loss of one was told."""

    def __init__(self, folder: Path) -> None:
        self.runner = TensorParallelRunner.load(
            folder, ranks=2, threads=2, blocks=16, max_rows=2, max_context_tokens=256, dtype="float32"
        )
        (self.pid,) = self.runner.rank_pids
        self.told: list[RankLost] = []
        self.told_at = 0.0
        self._is_told = threading.Event()
        self.runner.on_lost(self._lost)

    def _lost(self, error: RankLost) -> None:
        self.told.append(error)
        self.told_at = time.monotonic()
        self._is_told.set()

    def until_told(self) -> None:
        assert self._is_told.wait(2 * DEAD_S)

    def step_forever(self) -> NoReturn:
        while True:
            self.step()

    def step(self) -> None:
        row, ids = SequenceKey("aa", 1), list(range(200))
        start = RowStart(row, 0, ids, len(ids), Sampling(temperature=0.0), [])
        self.runner.run(StepPlan([PlanRow(row, 0, 0, ids, 0, list(range(13)), True)], [start]))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model_save(tmp_path_factory.mktemp("model"), LLAMA)


@pytest.fixture
def replica(folder: Path) -> Iterator[Replica]:
    replica = Replica(folder)
    yield replica
    replica.runner.close()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "frozen"])
def test_a_rank_that_never_loads_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, how: signal.Signals
) -> None:
    monkeypatch.setattr(group, "LOAD_S", 0.5)
    ranks = RankGroup(2)
    (pid,) = ranks.pids
    os.kill(pid, how)
    begun = time.monotonic()
    with pytest.raises(RankLost, match=r"rank 1 .*(signal 9|not loaded after 0.5 s)"):
        ranks.receive()
    assert time.monotonic() - begun < 0.5 + DEAD_S
    assert not is_running(pid)
    ranks.close()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "frozen"])
def test_the_loss_of_an_idle_rank_is_told(replica: Replica, how: signal.Signals) -> None:
    replica.step()
    os.kill(replica.pid, how)
    at = time.monotonic()
    replica.until_told()
    assert replica.told_at - at < DEAD_S
    assert not is_running(replica.pid)
    (error,) = replica.told
    assert "rank 1" in str(error)
    assert ("signal 9" if how is signal.SIGKILL else "no sign of life") in str(error)
    # Then nothing is computed any more, and nobody waits for it
    with pytest.raises(RankLost, match="rank 1"):
        replica.step()
    with pytest.raises(RankLost, match="rank 1"):
        replica.runner.read_blocks([1])


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "frozen"])
def test_a_step_that_waits_for_a_lost_rank_ends(replica: Replica, how: signal.Signals) -> None:
    timer = threading.Timer(0.1, os.kill, (replica.pid, how))
    timer.start()
    begun = time.monotonic()
    with pytest.raises(RankLost, match=r"rank 1 .*(signal 9|no sign of life)"):
        replica.step_forever()
    assert time.monotonic() - begun < 0.1 + DEAD_S
    assert not is_running(replica.pid)


def test_a_rank_stays_while_rank_0_does(replica: Replica, caplog: pytest.LogCaptureFixture) -> None:
    # When the whole group of processes is told to end, and has work for longer than a rank may be silent
    for number in (signal.SIGTERM, signal.SIGINT):
        os.kill(replica.pid, number)
    until = time.monotonic() + DEAD_S
    while time.monotonic() < until:
        replica.step()
    assert not replica.told
    # Then it ends, by itself, with rank 0
    replica.runner.close()
    assert not is_running(replica.pid)
    assert not caplog.records
