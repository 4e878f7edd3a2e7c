"""A worker process and what goes into it: weights without a model, greetings, requests."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from gpuworker.manifest import manifest_build, manifest_write
from gpuworker.wire.messages import (
    PROTOCOL_VERSION,
    Hello,
    Sampling,
    Submit,
    pack_ids,
)
from tests.engine.support import EOS, byte_tokenizer

SECRET = "a secret of this test"
TIMEOUT_S = 15.0
ROOT = Path(__file__).resolve().parents[2]


def weights_make(folder: Path, **config: object) -> str:
    """A verified weights folder without weights: bytes are tokens. Returns its digest."""
    folder.mkdir()
    byte_tokenizer().save(str(folder / "tokenizer.json"))
    base = {"vocab_size": EOS + 1, "max_position_embeddings": 4096, "eos_token_id": EOS}
    (folder / "config.json").write_text(json.dumps(base | config))
    manifest = manifest_build(folder)
    manifest_write(folder, manifest)
    return manifest.digest


class Waiter:
    """Wakes whoever waits for a condition each time something happened."""

    def __init__(self) -> None:
        self._happened = asyncio.Event()

    def notify(self) -> None:
        self._happened.set()

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(TIMEOUT_S):
            while not condition():
                self._happened.clear()
                await self._happened.wait()


def hello_make(role: str, incarnation: str, /, **changed: object) -> Hello:
    fields: dict[str, object] = {
        "version": PROTOCOL_VERSION,
        "role": role,
        "id": f"{role}-0",
        "incarnation": incarnation,
        "secret": SECRET,
    }
    return Hello(**(fields | changed))  # type: ignore[arg-type]


def submit_make(sid: int, text: str, **changed: object) -> Submit:
    fields: dict[str, object] = {
        "sid": sid,
        "request_id": f"request-{sid}",
        "attempt": 1,
        "tenant": "a tenant",
        "model": "echo",
        "digest": "",
        "klass": "interactive",
        "prompt": pack_ids(list(text.encode())),
        "max_tokens": 8,
        "sampling": Sampling(temperature=0.0),
    }
    return Submit(**(fields | changed))  # type: ignore[arg-type]


@dataclass
class WorkerProcess(Waiter):
    """`python -m gpuworker` on sockets in one folder."""

    folder: Path
    weights: Path
    name: str = "w"
    process: asyncio.subprocess.Process | None = None
    log: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        Waiter.__init__(self)

    @property
    def dispatch(self) -> str:
        return f"unix:{self.folder}/dispatch.sock"

    @property
    def address(self) -> str:
        return f"unix:{self.folder}/{self.name}.sock"

    @property
    def spool(self) -> Path:
        return self.folder / f"spool-{self.name}"

    async def start(
        self, *options: str, environment: dict[str, str] | None = None, wrap: tuple[str, ...] = ()
    ) -> Self:
        command = [
            *wrap,
            *(sys.executable, "-m", "gpuworker", "--id", f"worker-{self.name}", "--model", "echo"),
            *("--backend", "scripted", "--weights", str(self.weights), "--spool", str(self.spool)),
            *("--dispatch", self.dispatch, "--listen", self.address),
            *options,
        ]
        variables = {"PATH": os.environ["PATH"], "SLUICE_WIRE_SECRET": SECRET}
        self.process = await asyncio.create_subprocess_exec(
            *command,
            cwd=ROOT,
            env=variables if environment is None else environment,
            stderr=asyncio.subprocess.PIPE,
        )
        assert self.process.stderr is not None
        self._reader = asyncio.create_task(self._read(self.process.stderr))
        return self

    async def _read(self, stream: asyncio.StreamReader) -> None:
        async for line in stream:
            self.log.append(line.decode().rstrip())
            self.notify()

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    async def exit_status(self) -> int:
        assert self.process is not None
        async with asyncio.timeout(TIMEOUT_S):
            status = await self.process.wait()
            await self._reader
        return status

    async def kill(self) -> None:
        if self.process is not None and self.process.returncode is None:
            self.process.kill()
        if self.process is not None:
            await self.exit_status()
