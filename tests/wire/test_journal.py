"""The journal keeps every durable record, in order, whatever happens to the process or the file's tail."""

import asyncio
import errno
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuworker.wire.journal import Journal, JournalFailed, JournalFull
from gpuworker.wire.records import record_encode

PAYLOADS = [b"first", b"s" * 300, b"\x00\x00\x00\x01", b"last"]


async def fill(folder: Path, payloads: list[bytes], **limits: int) -> list[int]:
    journal = Journal.open(folder, **limits)
    positions = [await journal.append(payload) for payload in payloads]
    await journal.close()
    return positions


async def contents(folder: Path) -> list[bytes]:
    journal = Journal.open(folder)
    payloads, position = journal.read(0, 1_000_000)
    assert position == journal.end
    await journal.close()
    return payloads


def log_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.log"))


async def test_reopened_journal_gives_back_every_record_in_order(tmp_path: Path) -> None:
    positions = await fill(tmp_path, PAYLOADS)
    assert positions == sorted(set(positions))
    assert await contents(tmp_path) == PAYLOADS


async def test_read_goes_on_from_the_position_it_returned(tmp_path: Path) -> None:
    positions = await fill(tmp_path, PAYLOADS, segment_bytes=20)
    assert len(log_files(tmp_path)) > 1
    journal = Journal.open(tmp_path, segment_bytes=20)
    seen: list[bytes] = []
    position = 0
    while (step := journal.read(position, 1))[0]:
        seen += step[0]
        position = step[1]
        assert position in positions
    assert seen == PAYLOADS
    assert journal.read(positions[0], 2) == (PAYLOADS[1:3], positions[2])
    assert journal.read(position, 10) == ([], position)
    await journal.close()


async def test_torn_tail_at_every_byte_keeps_the_whole_records_before_it(tmp_path: Path) -> None:
    ends = await fill(tmp_path / "whole", PAYLOADS)
    data = log_files(tmp_path / "whole")[0].read_bytes()
    for cut in range(len(data)):
        folder = tmp_path / str(cut)
        folder.mkdir()
        (folder / "00000000000000000000.log").write_bytes(data[:cut])
        whole = sum(end <= cut for end in ends)
        journal = Journal.open(folder)
        assert journal.read(0, 100)[0] == PAYLOADS[:whole]
        await journal.append(b"after")
        assert journal.read(0, 100)[0] == [*PAYLOADS[:whole], b"after"]
        await journal.close()
        assert await contents(folder) == [*PAYLOADS[:whole], b"after"]


async def test_tail_of_zeros_is_no_record(tmp_path: Path) -> None:
    await fill(tmp_path, PAYLOADS)
    with log_files(tmp_path)[0].open("ab") as file:
        file.write(bytes(64))
    assert await contents(tmp_path) == PAYLOADS


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_corrupted_byte_costs_only_its_own_record(data: st.DataObject) -> None:
    payloads = data.draw(st.lists(st.binary(min_size=1, max_size=40), min_size=1, max_size=12))
    records = [record_encode(payload) for payload in payloads]
    raw = bytearray(b"".join(records))
    at = data.draw(st.integers(0, len(raw) - 1))
    raw[at] ^= data.draw(st.integers(1, 255))
    damaged = next(i for i in range(len(records)) if at < sum(map(len, records[: i + 1])))
    with tempfile.TemporaryDirectory() as name:
        (Path(name) / "00000000000000000000.log").write_bytes(raw)
        survivors = asyncio.run(contents(Path(name)))
    assert survivors == payloads[:damaged] + payloads[damaged + 1 :]


async def test_damage_in_a_sealed_segment_does_not_hide_later_segments(tmp_path: Path) -> None:
    await fill(tmp_path, PAYLOADS, segment_bytes=1)
    first = log_files(tmp_path)[0]
    first.write_bytes(b"\xff" * first.stat().st_size)
    assert await contents(tmp_path) == PAYLOADS[1:]


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("append"), st.binary(min_size=1, max_size=60)),
            st.tuples(st.just("acknowledge"), st.integers(0, 20)),
            st.tuples(st.just("reopen"), st.none()),
        ),
        max_size=30,
    )
)
def test_any_history_reads_back_what_was_appended_and_not_acknowledged(
    history: list[tuple[str, bytes | int | None]],
) -> None:
    async def run(folder: Path) -> None:
        journal = Journal.open(folder, segment_bytes=64)
        model: list[tuple[bytes, int]] = []
        acknowledged = 0
        for action, argument in history:
            if action == "append":
                assert isinstance(argument, bytes)
                model.append((argument, await journal.append(argument)))
            elif action == "acknowledge" and model:
                assert isinstance(argument, int)
                acknowledged = max(acknowledged, model[argument % len(model)][1])
                journal.acknowledge(acknowledged)
            elif action == "reopen":
                await journal.close()
                journal = Journal.open(folder, segment_bytes=64)
            assert journal.acknowledged == acknowledged
            kept = [payload for payload, end in model if end > acknowledged]
            assert journal.read(acknowledged, 1000)[0] == kept
            assert journal.pending == (model[-1][1] if model else 0) - acknowledged
        end = await journal.append(b"the end")
        journal.acknowledge(end)
        assert len(log_files(folder)) == 1, "a segment wholly before the cursor was kept"
        await journal.close()

    with tempfile.TemporaryDirectory() as name:
        asyncio.run(run(Path(name)))


async def test_acknowledging_deletes_segments_and_positions_go_on(tmp_path: Path) -> None:
    ends = await fill(tmp_path, PAYLOADS, segment_bytes=1)
    journal = Journal.open(tmp_path, segment_bytes=1)
    journal.acknowledge(ends[-1])
    assert len(log_files(tmp_path)) == 1
    assert journal.pending == 0
    with pytest.raises(ValueError, match="past the journal's end"):
        journal.acknowledge(ends[-1] + 1)
    await journal.close()
    journal = Journal.open(tmp_path, segment_bytes=1)
    assert journal.acknowledged == ends[-1]
    assert await journal.append(b"more") > ends[-1]
    await journal.close()


async def test_quota_refuses_until_something_is_acknowledged(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path, quota_bytes=100)
    end = await journal.append(b"x" * 80)
    assert journal.used_fraction == pytest.approx(0.88)
    with pytest.raises(JournalFull):
        await journal.append(b"y" * 20)
    with pytest.raises(JournalFull):
        journal.append_nowait(b"y" * 20)
    journal.acknowledge(end)
    await journal.append(b"y" * 20)
    await journal.close()


async def test_full_disk_refuses_and_recovers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal.open(tmp_path)
    await journal.append(b"kept")
    real_write = os.write

    def half_write(fd: int, data: bytes) -> int:
        if len(data) > 8:
            return real_write(fd, data[:8])
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", half_write)
        with pytest.raises(JournalFull, match="disk full"):
            await journal.append(b"too much")
    await journal.append(b"later")
    assert journal.read(0, 10)[0] == [b"kept", b"later"]
    await journal.close()
    assert await contents(tmp_path) == [b"kept", b"later"]


async def test_a_disk_too_full_for_the_next_segment_refuses_and_recovers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = Journal.open(tmp_path, segment_bytes=10)
    await journal.append(b"fills the first segment")
    real_open = os.open

    def no_new_file(path: Any, flags: int, *rest: Any) -> int:
        if flags & os.O_CREAT:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real_open(path, flags, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", no_new_file)
        with pytest.raises(JournalFull, match="disk full"):
            await journal.append(b"too much")
    await journal.append(b"later")
    await journal.close()
    assert await contents(tmp_path) == [b"fills the first segment", b"later"]


async def test_failed_fsync_fails_everybody_and_is_never_retried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = Journal.open(tmp_path)
    await journal.append(b"durable")
    calls = []

    def broken_fsync(fd: int) -> None:
        calls.append(fd)
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", broken_fsync)
        results = await asyncio.gather(*(journal.append(b"lost") for _ in range(5)), return_exceptions=True)
        assert [type(result) for result in results] == [JournalFailed] * 5
    assert journal.failure
    with pytest.raises(JournalFailed):
        journal.append_nowait(b"later")
    with pytest.raises(JournalFailed):
        await journal.append(b"later")
    assert journal.read(0, 10)[0] == [b"durable"]
    await journal.close()
    assert len(calls) == 1


async def test_records_nobody_waits_for_become_durable_in_few_syncs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = Journal.open(tmp_path)
    real_fsync, syncs = os.fsync, []

    def counting_fsync(fd: int) -> None:
        syncs.append(fd)
        real_fsync(fd)

    monkeypatch.setattr(os, "fsync", counting_fsync)
    for number in range(60):
        journal.append_nowait(b"%d" % number)
    await journal.append(b"end")
    assert len(syncs) <= 3
    assert journal.read(0, 100)[0] == [*(b"%d" % number for number in range(60)), b"end"]
    await journal.close()


async def test_one_owner_at_a_time(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path)
    with pytest.raises(JournalFailed, match="another process"):
        Journal.open(tmp_path)
    await journal.close()
    with pytest.raises(JournalFailed, match="closed"):
        journal.append_nowait(b"late")
    await journal.close()
    await Journal.open(tmp_path).close()


async def test_a_cancelled_waiter_leaves_the_others_alone(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path)
    leaver = asyncio.ensure_future(journal.append(b"leaver"))
    stayer = asyncio.ensure_future(journal.append(b"stayer"))
    await asyncio.sleep(0)
    leaver.cancel()
    await stayer
    await journal.close()
    assert await contents(tmp_path) == [b"leaver", b"stayer"]


async def test_sync_records_survive_kill_9(tmp_path: Path) -> None:
    script = (
        "import asyncio, os, pathlib, signal, sys\n"
        "from gpuworker.wire.journal import Journal\n"
        "async def main():\n"
        "    journal = Journal.open(pathlib.Path(sys.argv[1]), segment_bytes=200)\n"
        "    for number in range(50):\n"
        "        await journal.append(b'record %d' % number)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "asyncio.run(main())\n"
    )
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", script, str(tmp_path))
    assert await process.wait() == -9
    assert await contents(tmp_path) == [b"record %d" % number for number in range(50)]
