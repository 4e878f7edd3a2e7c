"""Background tasks end, whatever they make of being cancelled."""

import asyncio

import pytest

from gpuworker.wire.tasks import tasks_end

WITHIN_S = 5.0


async def loses_the_first() -> None:
    """As `asyncio.wait_for` does where its result comes with the cancellation."""
    for _ in range(2):
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            continue
    await asyncio.sleep(60)


async def ends() -> None:
    return


async def fails() -> None:
    raise OSError("no")


async def test_a_task_that_loses_a_cancellation_ends_all_the_same() -> None:
    task = asyncio.create_task(loses_the_first())
    await asyncio.sleep(0)
    async with asyncio.timeout(WITHIN_S):
        await tasks_end([task])
    assert task.cancelled()


async def test_what_has_ended_already_is_left_alone() -> None:
    done, failed = asyncio.create_task(ends()), asyncio.create_task(fails())
    await asyncio.wait([done, failed])
    await tasks_end([done, failed])
    assert not done.cancelled()
    with pytest.raises(OSError, match="no"):
        failed.result()


async def test_nothing_to_end() -> None:
    await tasks_end([])
