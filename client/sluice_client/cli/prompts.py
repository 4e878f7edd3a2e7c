"""Where the prompt comes from: the command line, a pipe, or both."""

import os
import stat
import sys

from sluice_client.cli.failures import CommandError

MAX_BYTES = 4 * 1024 * 1024  # no server takes a larger body


def prompt_read(given: str | None) -> str | None:
    """The argument, then what is piped in, an empty line between them. None where there is neither."""
    piped = _piped(given is not None)
    if piped is not None and not piped.strip() and given is None:
        raise CommandError("there is no prompt: what was piped in is empty")
    parts = [part for part in (given, piped) if part]
    return "\n\n".join(parts) if parts else None


def _piped(optional: bool) -> str | None:
    if sys.stdin.isatty():
        return None
    # With a prompt of its own, a command under a supervisor must not wait for a stdin that never ends.
    if optional and not _has_content(sys.stdin.fileno()):
        return None
    data = sys.stdin.buffer.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise CommandError(f"what is piped in is over {MAX_BYTES // 1024 // 1024} MiB")
    return data.decode(errors="replace")


def _has_content(descriptor: int) -> bool:
    mode = os.fstat(descriptor).st_mode
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode)
