"""The `sluice` command as a process, of the source tree, alone or on a terminal of its own."""

import contextlib
import os
import pty
import re
import subprocess
import sys
import termios
import threading
from pathlib import Path

from tests.client.server import ScriptedServer

CLIENT = Path(__file__).parents[2] / "client"
COMMAND = [sys.executable, "-m", "sluice_client"]


def environment(server: ScriptedServer) -> dict[str, str]:
    return {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(CLIENT),
        "PYTHONUTF8": "1",
        "SLUICE_BASE_URL": server.base_url,
        "SLUICE_API_KEY": "sk-slc-test",
        "SLUICE_MODEL": "tiny",
    }


class Terminal:
    """A pseudo terminal that is the command's controlling one, so that Ctrl-C is typed."""

    def __init__(self, server: ScriptedServer, *arguments: str) -> None:
        self._ours, theirs = pty.openpty()
        settings = termios.tcgetattr(theirs)
        settings[3] &= ~termios.ECHO
        termios.tcsetattr(theirs, termios.TCSANOW, settings)
        self.process = subprocess.Popen(
            [sys.executable, "-c", self._LAUNCH, *arguments],
            env={**environment(server), "TERM": "dumb"},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)
        self.screen = ""
        self._changed = threading.Condition()
        threading.Thread(target=self._read, daemon=True).start()

    _LAUNCH = (
        "import fcntl, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0)\n"
        "from sluice_client.cli.main import main; sys.exit(main(sys.argv[1:]))"
    )

    def _read(self) -> None:
        with contextlib.suppress(OSError):  # the other side was closed
            while data := os.read(self._ours, 4096):
                with self._changed:
                    self.screen += data.decode(errors="replace")
                    self._changed.notify_all()

    def type(self, keys: str) -> None:
        os.write(self._ours, keys.encode())

    def shows(self, pattern: str) -> None:
        """Waits for it, and forgets what was shown until then."""

        def found() -> re.Match[str] | None:
            return re.search(pattern, self.screen)

        with self._changed:
            assert self._changed.wait_for(found, 10), f"{pattern} in {self.screen!r}"
            match = found()
            assert match is not None
            self.screen = self.screen[match.end() :]

    def interrupted(self) -> int:
        """Ctrl-C at the prompt; the exit code. Readline misses one just after its prompt."""
        for _ in range(10):
            self.type("\x03")
            with contextlib.suppress(subprocess.TimeoutExpired):
                return self.process.wait(1)
        raise AssertionError(f"it goes on: {self.screen!r}")

    def close(self) -> None:
        self.process.kill()
        self.process.wait(5)
        os.close(self._ours)
