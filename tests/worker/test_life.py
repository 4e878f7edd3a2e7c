"""A process is one thing, its folder and its address are others: epochs count, and who means the process
before is sent away without harm to who means this one."""

from pathlib import Path

import pytest

from gpuworker.epoch import FILE, epoch_next
from gpuworker.wire.journal import JournalFailed
from gpuworker.wire.messages import CancelRow, Refusal, new_incarnation
from tests.worker.conftest import Stage


async def test_the_epoch_says_how_often_a_worker_was_started_on_its_folder(stage: Stage) -> None:
    await stage.start()
    await stage.worker.kill()
    await stage.worker.start()
    await stage.dispatcher.until(lambda: len(stage.dispatcher.hellos) == 2)
    first, second = stage.dispatcher.hellos
    assert (first.epoch, second.epoch) == (1, 2)
    assert first.incarnation != second.incarnation
    assert first.id == second.id


def test_an_epoch_that_cannot_be_read_is_not_begun_anew(tmp_path: Path) -> None:
    assert [epoch_next(tmp_path), epoch_next(tmp_path)] == [1, 2]
    (tmp_path / FILE).write_text("two\n")
    with pytest.raises(JournalFailed, match="epoch"):
        epoch_next(tmp_path)
    assert (tmp_path / FILE).read_text() == "two\n"


async def test_a_visitor_who_means_another_process_takes_nobodys_place(stage: Stage) -> None:
    # Given a gateway that is here, and its row
    await stage.start("--step-ms", "20")
    gateway = await stage.gateway()
    stage.run(gateway, 1, "row", max_tokens=20)
    await gateway.until(lambda: gateway.frames)
    # When it comes once more, for the process that was at this address before
    again = stage.absent_gateway()
    again.incarnation = gateway.incarnation
    await again.connect(to=new_incarnation())
    # Then that one is refused, and the first goes on
    await again.until(lambda: again.closed)
    (answer,) = again.answers
    assert isinstance(answer, Refusal)
    assert answer.code == "other_process"
    await gateway.until_ended(1)
    assert gateway.closed == ""


async def test_a_visitor_who_means_this_process_is_welcome(stage: Stage) -> None:
    await stage.start()
    gateway = stage.absent_gateway()
    await gateway.connect(to=stage.dispatcher.hellos[0].incarnation)
    stage.run(gateway, 1, "fine", max_tokens=4)
    await gateway.until_ended(1)
    assert gateway.text(1) == "fine"


async def test_a_row_that_another_replica_has_by_now_ends_as_moved(stage: Stage) -> None:
    """Its gateway, should it still listen to this one, submits it again."""
    await stage.start("--step-ms", "20")
    gateway = await stage.gateway()
    stage.run(gateway, 1, "row", max_tokens=500)
    await gateway.until(lambda: gateway.frames)
    stage.dispatcher.send(CancelRow(row=gateway.row(1), reason="moved"))
    await gateway.until_ended(1)
    (end,) = gateway.ends.values()
    assert end.reason == "moved"
