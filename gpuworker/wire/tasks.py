"""Background tasks of a process: ended for certain."""

import asyncio
from collections.abc import Iterable
from typing import Any

_AGAIN_S = 0.5


async def tasks_end(tasks: Iterable["asyncio.Task[Any]"]) -> None:
    """Cancels them until each has ended; what they raise is theirs to be asked for.

    Once is not enough: before Python 3.12 `asyncio.wait_for` loses a cancellation that comes with its
    result (python/cpython#86296), and client libraries use it.
    """
    pending = {task for task in tasks if not task.done()}
    while pending:
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=_AGAIN_S)
