"""Starts processes in order, starts again what dies, stops them in order; knows nothing of what they are.

Until `running` is called a process that ends is a failed start; from then on it is started again.
"""

import asyncio
import contextlib
import os
import secrets
import signal
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from devservices.child import Child, ProcessSpec
from devservices.guardian import MARK_VARIABLE, Guardian
from devservices.paths import FolderError
from devservices.processes import ServerError, group_kill, log_tail

FIRST_DELAY_S = 0.2
LONGEST_DELAY_S = 10.0
STEADY_S = 30.0
READY_POLL_S = 0.1


class StartFailed(Exception):
    """A process did not come up; the message names its log and quotes its end."""


class AlreadyTold(StartFailed):
    """A process whose errors went to our terminal did not succeed: it has said why itself."""


class Supervisor:
    def __init__(
        self, *, on_change: Callable[[], None], report: Callable[[str], None], keep_open: Sequence[int]
    ) -> None:
        self._on_change = on_change
        self._report = report
        self._keep_open = tuple(keep_open)
        self._folders: list[Path] = []
        self._mark = secrets.token_hex(8)
        self._children: dict[str, Child] = {}
        self._keepers: dict[str, asyncio.Task[None]] = {}
        self._restarts = False
        self._stopping = False
        self.failed: asyncio.Future[StartFailed] = asyncio.get_running_loop().create_future()
        self._guardian = self._guardian_start()

    @property
    def pids(self) -> dict[str, int]:
        """Of the processes that are running now."""
        return {name: child.pid for name, child in self._children.items() if not child.ended.is_set()}

    async def start(self, spec: ProcessSpec) -> None:
        """Returns when the process is ready. Raises StartFailed."""
        child = await self._spawn(spec)
        self._keepers[spec.name] = asyncio.create_task(self._keep(spec, child))
        await self._ready_wait(spec, child)

    async def run_once(self, spec: ProcessSpec, *, shown: bool = False) -> str:
        """Run to its end and return what it printed; `shown`: its errors and progress go to our terminal."""
        with tempfile.TemporaryFile() as output:
            child = await self._spawn(spec, stdout=output.fileno(), stderr=2 if shown else None)
            await child.ended.wait()
            output.seek(0)
            text = output.read().decode(errors="replace")
        self._forget(child)
        if child.process.returncode != 0:
            told = shown and child.process.returncode > 0  # one that was killed has said nothing
            raise (AlreadyTold if told else StartFailed)(self._failure(child))
        return text

    def remove_at_end(self, folder: Path) -> None:
        """Should we be killed, the guardian removes `folder` once everything has ended."""
        self._folders.append(folder)
        self._guardian.remove([folder])

    def running(self) -> None:
        """The start is over: from now on processes that end are started again."""
        self._restarts = True

    async def stop(self, stages: Sequence[Sequence[str]], hurry: asyncio.Event) -> None:
        """Stop the named processes stage by stage, then whatever else is left. A hurry waits for nobody."""
        self._stopping = True
        for keeper in self._keepers.values():
            keeper.cancel()
        await asyncio.gather(*self._keepers.values(), return_exceptions=True)
        named = {name for stage in stages for name in stage}
        rest = [name for name in self._children if name not in named]
        for stage in [rest, *stages]:
            present = [self._children[name] for name in stage if name in self._children]
            await asyncio.gather(*(self._stop_child(child, hurry) for child in present))
        await asyncio.to_thread(self._guardian.sweep)

    # -- inner parts --------------------------------------------------------------------------------------

    async def _spawn(self, spec: ProcessSpec, stdout: int | None = None, stderr: int | None = None) -> Child:
        if spec.before_start is not None:
            await asyncio.to_thread(spec.before_start)
        if self._stopping:
            raise asyncio.CancelledError
        try:
            child = Child(spec, {MARK_VARIABLE: self._mark}, stdout, stderr)
        except (OSError, subprocess.SubprocessError) as error:
            raise StartFailed(f"{spec.name} cannot be started: {error}") from error
        self._guardian.watch(child.pid, spec.stop_signal)
        self._children[spec.name] = child
        self._on_change()
        return child

    async def _ready_wait(self, spec: ProcessSpec, child: Child) -> None:
        if spec.is_ready is None:
            return
        loop = asyncio.get_running_loop()
        deadline = loop.time() + spec.ready_timeout_s
        while not await asyncio.to_thread(spec.is_ready, child.pid):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(READY_POLL_S):
                    await child.ended.wait()
            if child.ended.is_set() or loop.time() > deadline:
                raise StartFailed(self._failure(child))

    async def _keep(self, spec: ProcessSpec, child: Child) -> None:
        delay_s = FIRST_DELAY_S
        while True:
            await child.ended.wait()
            group_kill(child.pid)
            self._guardian.forget(child.pid)
            if not self._restarts:
                if not self.failed.done():
                    self.failed.set_result(StartFailed(self._failure(child)))
                return
            steady = asyncio.get_running_loop().time() - child.started_at > STEADY_S
            delay_s = FIRST_DELAY_S if steady else delay_s
            started = None
            while started is None:
                self._report(
                    f"{spec.name} ended ({child.outcome}), again in {delay_s:.1f} s; log: {spec.log}"
                )
                await asyncio.sleep(delay_s)
                delay_s = min(delay_s * 2, LONGEST_DELAY_S)
                try:
                    started = await self._spawn(spec)
                except (StartFailed, ServerError, FolderError) as error:
                    self._report(f"{spec.name}: {error}")
            child = started

    async def _stop_child(self, child: Child, hurry: asyncio.Event) -> None:
        if not child.ended.is_set():
            child.process.send_signal(child.spec.stop_signal)
            if not await _ends(child, child.spec.stop_timeout_s, hurry) and child.spec.hurry_timeout_s > 0:
                await _ends(child, child.spec.hurry_timeout_s, None)
            if not child.ended.is_set():
                if not hurry.is_set():  # else it was asked for
                    self._report(f"{child.spec.name} did not stop in time and is killed")
                child.process.send_signal(signal.SIGKILL)
                await child.ended.wait()
        self._forget(child)

    def _forget(self, child: Child) -> None:
        group_kill(child.pid)
        self._guardian.forget(child.pid)
        if self._children.get(child.spec.name) is child:
            del self._children[child.spec.name]
        self._on_change()

    def _failure(self, child: Child) -> str:
        head = f"{child.spec.name} did not start ({child.outcome})"
        return f"{head}; its log {child.spec.log} ends with:\n{log_tail(child.spec.log)}"

    def _guardian_start(self) -> Guardian:
        """The guardian is watched as well: without it a kill -9 of ours would leave orphans."""
        guardian = Guardian.start(self._mark, self._keep_open)
        loop = asyncio.get_running_loop()
        handle = os.pidfd_open(guardian.pid)

        def ended() -> None:
            loop.remove_reader(handle)
            os.close(handle)
            guardian.sweep()  # nothing left to wait for: takes its status, closes its pipe
            if not self._stopping:
                self._report("the guardian ended; starting another")
                self._guardian = self._guardian_start()
                for child in self._children.values():
                    self._guardian.watch(child.pid, child.spec.stop_signal)
                self._guardian.remove(self._folders)

        loop.add_reader(handle, ended)
        return guardian


async def _ends(child: Child, patience_s: float, hurry: asyncio.Event | None) -> bool:
    """Whether the process ends within the time; a hurry cuts the time short."""
    waits = [asyncio.create_task(event.wait()) for event in (child.ended, hurry) if event is not None]
    await asyncio.wait(waits, timeout=patience_s, return_when=asyncio.FIRST_COMPLETED)
    for wait in waits:
        wait.cancel()
    return child.ended.is_set()
