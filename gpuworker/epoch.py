"""How often a worker was started on this folder: a number that only grows, for people and for order in time.

The fence does not need it: an incarnation is never used twice. The folder is the journal's, which one process
holds at a time.
"""

import os
from pathlib import Path

from gpuworker.wire.journal import JournalFailed

FILE = "epoch"


def epoch_next(folder: Path) -> int:
    """From 1. Raises JournalFailed when it cannot be kept, or what is kept is no number."""
    path, fresh = folder / FILE, folder / f"{FILE}.new"
    try:
        epoch = int(path.read_text(encoding="ascii")) + 1 if path.exists() else 1
        with fresh.open("w", encoding="ascii") as file:
            file.write(f"{epoch}\n")
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
    except (OSError, ValueError) as error:
        raise JournalFailed(f"{path}: {error}") from error
    return epoch
