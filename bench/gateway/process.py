"""Starts the measured process on its core, and reads what it costs from the kernel."""

import http.client
import json
import os
import resource
import secrets
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Final

from bench.gateway.loop import BenchFailed
from tenants.keys import key_generate
from tests.gateway.harness import MODEL, NO_POSTGRES
from tests.gateway.weights import CONTEXT_TOKENS

LIMITS: Final = {"max_open_requests": 20_000, "settle_s": 2.0}
_NO_VALKEY = "redis://127.0.0.1:1/0"  # only requests that opted in to resume write there
_BACKLOG = 4096
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def cores_split() -> tuple[int, set[int]]:
    """The measured process's core, and those of everything else. Raises BenchFailed on a single core."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        raise BenchFailed("this bench needs two cores: one for the gateway, one for its peers")
    return cores[0], set(cores[1:])


def descriptors_allow(number: int) -> int:
    """Raise the limit on open files as far as allowed; how many connections then fit, at most `number`."""
    spare = 200
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = number + spare if hard == resource.RLIM_INFINITY else min(number + spare, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return wanted - spare


class ServerProcess:
    """`kind`: see `bench.gateway.server`. Inherits the limit on open files."""

    def __init__(
        self,
        kind: str,
        folder: Path,
        core: int,
        *,
        digest: str,
        dispatch: str,
        wire_secret: str,
        profile: str,
    ) -> None:
        pepper = secrets.token_bytes(32)
        self.key = key_generate()
        self._log = folder / f"{kind}.log"
        os.environ["SLUICE_KEY_PEPPER"] = pepper.hex()
        snapshot = {
            "keys": [{"key": self.key, "max_open_requests": 20_000}],
            "routes": {MODEL: digest},
            "context_tokens": CONTEXT_TOKENS,
        }
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join(sys.path),
            "SLUICE_STATE": str(folder),
            "SLUICE_SPOOL": str(folder / "spool"),
            "SLUICE_WEIGHTS": str(folder / "weights"),
            "SLUICE_DISPATCH": dispatch,
            "SLUICE_WIRE_SECRET": wire_secret,
            "SLUICE_MASTER_KEY": secrets.token_hex(32),
            "SLUICE_DB_GATEWAY": NO_POSTGRES,
            "REDIS_URL": _NO_VALKEY,
            "TEST_LIMITS": json.dumps(LIMITS),
            "TEST_SNAPSHOT": json.dumps(snapshot),
        }
        with socket.socket() as listener, self._log.open("wb") as log:
            listener.bind(("127.0.0.1", 0))
            listener.listen(_BACKLOG)
            self.port: int = listener.getsockname()[1]
            arguments = [kind, str(listener.fileno()), str(core), *([profile] if profile else [])]
            self._process = subprocess.Popen(
                [sys.executable, "-m", "bench.gateway.server", *arguments],
                env=environment,
                pass_fds=[listener.fileno()],
                stdout=log,
                stderr=log,
            )

    @property
    def is_ready(self) -> bool:
        """Raises BenchFailed when it has ended."""
        if self._process.poll() is not None:
            raise BenchFailed("the server has ended")
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=1)
        try:
            connection.request("GET", "/readyz")
            return connection.getresponse().status == 200
        except OSError:
            return False
        finally:
            connection.close()

    def last_words(self) -> str:
        """The end of its log, on lines of their own."""
        text = self._log.read_text(errors="replace").strip()
        return f"\n{text[-2000:]}" if text else ""

    def cpu_s(self) -> float:
        """User and system time of all its threads; a hundredth of a second is the resolution."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rsplit(") ", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S

    def waited_s(self) -> float:
        """How long its first thread could have run and had to wait for the core: others used it."""
        fields = Path(f"/proc/{self._process.pid}/schedstat").read_text().split()
        return int(fields[1]) / 1e9

    def resident_bytes(self) -> int:
        return int(Path(f"/proc/{self._process.pid}/statm").read_text().split()[1]) * _PAGE_BYTES

    def stop(self) -> None:
        """A profile is written before it returns."""
        self._process.send_signal(signal.SIGINT)  # after SIGTERM uvicorn ends by that signal
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def request_bytes(key: str, *, stream: bool, max_tokens: int, headers: tuple[str, ...] = ()) -> bytes:
    """A chat completion of 128 prompt tokens, as an SDK sends it."""
    content = "x" * (128 - 12)  # the template adds 12 tokens around it
    messages = [{"role": "user", "content": content}]
    fields = {"model": MODEL, "messages": messages, "stream": stream, "max_tokens": max_tokens}
    body = json.dumps(fields).encode()
    lines = [
        "POST /v1/chat/completions HTTP/1.1",
        "host: 127.0.0.1",
        "accept: application/json",
        "accept-encoding: gzip, deflate",
        "content-type: application/json",
        "user-agent: OpenAI/Python",
        f"authorization: Bearer {key}",
        *headers,
        f"content-length: {len(body)}",
    ]
    return "\r\n".join([*lines, "", ""]).encode() + body
