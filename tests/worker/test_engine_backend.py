"""The engine's thread: one bad step costs a row, a dead engine costs the process, and neither goes unsaid."""

import asyncio
import sys
import threading
from pathlib import Path

import pytest

from gpuworker.backends.base import BackendError, BackendStep
from gpuworker.backends.engine_backend import MAX_UNDELIVERED_STEPS, EngineBackend
from gpuworker.engine.engine import CacheOptions, Engine
from gpuworker.engine.plan import Runner, Sampled, StepPlan
from gpuworker.engine.scripted_runner import ScriptedRunner
from gpuworker.server import Settings, WorkerFailed, WorkerServer
from gpuworker.usage_journal import UsageJournal, WorkerIdentity
from gpuworker.wire.journal import Journal
from gpuworker.wire.messages import RowKey
from policy.pacing import StepPacer
from tests.engine.support import tokenizer_file
from tests.worker.peers import DispatcherEnd, GatewayEnd
from tests.worker.support import SECRET, Waiter, submit_make


class FaultyRunner(ScriptedRunner):
    """Echoes, until a row's prompt begins with a token that says how to fail."""

    FAIL, DIE = 1, 2

    def __init__(self) -> None:
        super().__init__(vocab_size=257)

    def run(self, plan: StepPlan) -> list[Sampled]:
        for start in plan.starts:
            if start.tokens[0] == self.FAIL:
                raise ValueError("a bad row")
            if start.tokens[0] == self.DIE:
                raise SystemExit("the end")
        return super().run(plan)


class Steps(Waiter):
    def __init__(self) -> None:
        super().__init__()
        self.steps: list[BackendStep] = []
        self.death: BaseException | None = None

    def stepped(self, step: BackendStep) -> None:
        self.steps.append(step)
        self.notify()

    def died(self, error: BaseException) -> None:
        self.death = error
        self.notify()

    @property
    def ended(self) -> list[RowKey]:
        return [row for step in self.steps for row in step.output.ended]


def backend_make(folder: Path, runner: Runner, *, pacer: StepPacer | None = None) -> EngineBackend:
    engine = Engine(
        runner,
        tokenizer_file(folder),
        blocks=64,
        max_rows=8,
        max_context_tokens=512,
        pacer=pacer,
        eos_ids=frozenset({256}),
        cache=CacheOptions(secret=b"a secret", kv_dtype="scripted"),
    )
    return EngineBackend(engine, max_rows=8)


async def test_a_row_whose_step_raises_fails_alone(tmp_path: Path) -> None:
    backend, steps = backend_make(tmp_path, FaultyRunner()), Steps()
    await backend.start(steps.stepped, steps.died)
    backend.submit(RowKey("g", 1), submit_make(1, "good"))
    backend.submit(RowKey("g", 2), submit_make(2, "\x01bad"))
    await steps.until(lambda: len(steps.ended) == 2)
    reasons = {end.sid: end.reason for step in steps.steps for end in step.output.gateways["g"].ends}
    assert reasons == {1: "length", 2: "error"}
    assert steps.death is None
    await backend.stop()


async def test_asking_for_the_capacity_does_not_touch_the_running_engine(tmp_path: Path) -> None:
    backend, steps = backend_make(tmp_path, ScriptedRunner(vocab_size=257)), Steps()
    await backend.start(steps.stepped, steps.died)
    switch_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for sid in range(2_000):
            backend.submit(RowKey("g", sid), submit_make(sid, "row", max_tokens=1))
            assert backend.capacity.max_rows == 8
    finally:
        sys.setswitchinterval(switch_s)
    await steps.until(lambda: len(steps.ended) == 2_000)
    await backend.stop()


async def test_an_engine_that_dies_says_so(tmp_path: Path) -> None:
    backend, steps = backend_make(tmp_path, FaultyRunner()), Steps()
    await backend.start(steps.stepped, steps.died)
    backend.submit(RowKey("g", 1), submit_make(1, "\x02"))
    await steps.until(lambda: steps.death)
    assert isinstance(steps.death, SystemExit)
    await backend.stop()


async def test_an_engine_that_dies_while_warming_up_never_serves(tmp_path: Path) -> None:
    class BrokenRunner(FaultyRunner):
        def run(self, plan: StepPlan) -> list[Sampled]:
            raise SystemExit("no device")

    backend, steps = backend_make(tmp_path, BrokenRunner()), Steps()
    with pytest.raises(BackendError, match="no device"):
        await backend.start(steps.stepped, steps.died)
    await backend.stop()


async def test_the_server_ends_when_its_engine_died(folder: Path) -> None:
    journal = Journal.open(folder / "spool")
    identity = WorkerIdentity("worker-0", "i", "echo", "d")
    settings = Settings(f"unix:{folder}/d.sock", f"unix:{folder}/w.sock", SECRET, drain_s=30)
    dispatcher = await DispatcherEnd(settings.dispatch).start()
    server = WorkerServer(
        settings, identity, backend_make(folder, FaultyRunner()), UsageJournal(journal, identity)
    )
    serving = asyncio.create_task(server.serve(asyncio.Event()))
    await dispatcher.until(lambda: dispatcher.reports and not dispatcher.reports[-1].warming)
    gateway = await GatewayEnd(settings.listen).connect()
    dispatcher.send(gateway.run(1, "\x02", digest="d"))
    with pytest.raises(WorkerFailed, match="the engine died: SystemExit: the end"):
        await serving
    await gateway.until(lambda: gateway.closed)
    await dispatcher.until(lambda: dispatcher.worker is None)
    await dispatcher.stop()
    await journal.close()


async def test_a_loop_that_falls_behind_slows_the_engine_instead_of_filling_memory(tmp_path: Path) -> None:
    runner, steps = ScriptedRunner(vocab_size=257), Steps()
    backend = backend_make(tmp_path, runner)
    before = await backend.start(steps.stepped, steps.died)
    backend.submit(RowKey("g", 1), submit_make(1, "long", max_tokens=400))
    loop = asyncio.get_running_loop()
    deadline = loop.time() + 0.3
    while loop.time() < deadline:
        pass  # the loop is busy; the engine could do all 400 steps
    assert backend._engine.stats().step == before.step + MAX_UNDELIVERED_STEPS
    await steps.until(lambda: steps.ended)
    await backend.stop()


class HangingRunner(ScriptedRunner):
    """Computes nothing while it is held."""

    def __init__(self) -> None:
        super().__init__(vocab_size=257)
        self.goes = threading.Event()
        self.goes.set()

    def run(self, plan: StepPlan) -> list[Sampled]:
        self.goes.wait()
        return super().run(plan)


async def test_a_step_that_hangs_is_reported_and_the_dispatcher_left_alone_until_it_passes(
    folder: Path,
) -> None:
    # Given a worker whose steps are predicted, and one of them that never ends
    runner = HangingRunner()
    journal = Journal.open(folder / "spool")
    identity = WorkerIdentity("worker-0", "i", "echo", "d")
    settings = Settings(f"unix:{folder}/d.sock", f"unix:{folder}/w.sock", SECRET, drain_s=30)
    dispatcher = await DispatcherEnd(settings.dispatch).start()
    backend = backend_make(folder, runner, pacer=StepPacer(40))
    server, stop = WorkerServer(settings, identity, backend, UsageJournal(journal, identity)), asyncio.Event()
    serving = asyncio.create_task(server.serve(stop))
    await dispatcher.until(lambda: dispatcher.reports and not dispatcher.reports[-1].warming)
    gateway = await GatewayEnd(settings.listen).connect()
    runner.goes.clear()
    dispatcher.send(gateway.run(1, "abc", digest="d", max_tokens=9))
    began = asyncio.get_running_loop().time()
    # Then the dispatcher hears of it after a second and a heartbeat or two, not before
    await dispatcher.until(lambda: dispatcher.reports[-1].hung)
    assert 1.0 <= asyncio.get_running_loop().time() - began <= 2.0
    # And as it lets the worker go, that does not come back before the step has passed
    assert dispatcher.worker is not None
    dispatcher.worker.abort("a step of it hangs")
    await asyncio.sleep(2.5)
    assert len(dispatcher.hellos) == 1
    runner.goes.set()
    await dispatcher.until(lambda: len(dispatcher.hellos) == 2)
    await gateway.until_ended(1)
    await dispatcher.until(lambda: not dispatcher.reports[-1].hung)
    stop.set()
    await serving
    await gateway.close()
    await dispatcher.stop()
    await journal.close()


async def test_a_long_step_that_was_predicted_is_no_fault(tmp_path: Path) -> None:
    class SlowPacer(StepPacer):
        def predict_ms(self, *_: int) -> float:
            return 600.0

    runner, steps = HangingRunner(), Steps()
    backend = backend_make(tmp_path, runner, pacer=SlowPacer(40))
    await backend.start(steps.stepped, steps.died)
    runner.goes.clear()
    backend.submit(RowKey("g", 1), submit_make(1, "abc"))
    await asyncio.sleep(1.5)
    assert not backend.is_hung()
    runner.goes.set()
    await steps.until(lambda: steps.ended)
    assert not backend.is_hung()
    await backend.stop()
