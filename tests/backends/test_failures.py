"""What a worker makes of an upstream that fails: who is refused, who ends, and when it is asked again."""

import asyncio

import pytest

from gpuworker.wire.messages import Pause, Resume
from tests.backends.conftest import KEY, Bench

FAST = ("--upstream-first-token-s", "0.4", "--upstream-silence-s", "0.4", "--upstream-check-s", "0.2")


async def refusal(bench: Bench, sid: int) -> tuple[str, str]:
    await bench.dispatcher.until(lambda: any(found.row.sid == sid for found in bench.dispatcher.refused))
    found = next(found for found in bench.dispatcher.refused if found.row.sid == sid)
    return found.code, found.message


async def test_an_upstream_that_is_not_there_takes_nothing_until_it_is(bench: Bench) -> None:
    await bench.upstream.stop()
    await bench.start(*FAST, waits=False)
    bench.run(1, "early")
    assert (await refusal(bench, 1))[0] == "capacity"
    await bench.upstream.start()
    await bench.until_ready()
    bench.run(2, "later", max_tokens=5)
    assert (await bench.result(2))[0] == "later"


async def test_an_upstream_with_another_model_takes_nothing(bench: Bench) -> None:
    bench.upstream.script.model = "another"
    await bench.start(*FAST, waits=False)
    bench.run(1, "hello")
    assert (await refusal(bench, 1))[0] == "capacity"
    assert not bench.upstream.requests
    await bench.worker.until(lambda: any("'another', not 'echo-model'" in line for line in bench.worker.log))


async def test_a_model_that_changes_behind_the_same_address_is_noticed(bench: Bench) -> None:
    await bench.start("--upstream-check-s", "60")
    bench.run(1, "hello", max_tokens=3)
    await bench.result(1)
    # When another server takes the address, its first connection is looked at before it is trusted
    await bench.upstream.stop()
    bench.upstream.script.model = "another"
    await bench.upstream.start()
    await bench.until_full()


async def test_an_answer_of_another_model_gives_no_token(bench: Bench) -> None:
    gateway = await bench.start("--upstream-check-s", "60")
    bench.upstream.script.answers_as, seen = "another", len(bench.dispatcher.reports)
    bench.run(1, "hello", max_tokens=3)
    assert (await refusal(bench, 1))[0] == "capacity"
    assert not gateway.frames
    await bench.dispatcher.until(lambda: any(report.full for report in bench.dispatcher.reports[seen:]))


async def test_no_first_token_gives_the_row_back_and_the_second_time_ends_it(bench: Bench) -> None:
    await bench.start(*FAST)
    bench.upstream.script.hangs_before = bench.upstream.script.probes_answer = True
    seen = len(bench.dispatcher.reports)
    bench.run(1, "hello")
    code, message = await refusal(bench, 1)
    assert (code, message.partition(":")[0]) == ("capacity", "upstream_silent")
    await bench.upstream.until_left(1)
    await bench.until_back(seen)
    # And nobody pays for what nobody saw, though the upstream said that it had begun
    bench.upstream.script.hangs_before, bench.upstream.script.hangs_after = False, 0
    bench.run(1, "hello")
    _, end = await bench.result(1)
    assert end.reason == "deadline"
    assert end.message.startswith("upstream_silent")
    assert (end.prompt_tokens, end.output_tokens) == (0, 0)


async def test_a_hung_upstream_is_given_a_pause_and_used_again_when_it_answers(bench: Bench) -> None:
    await bench.start(*FAST)
    bench.upstream.script.hangs_before = True
    for sid in (1, 2, 3):
        bench.run(sid, "hello")
    await bench.until_full()
    for sid in (1, 2, 3):
        assert (await refusal(bench, sid))[0] == "capacity"
    # Then it stays so while only its list of models answers
    await asyncio.sleep(1.5)
    assert bench.dispatcher.reports[-1].full
    # And a probe, no client's request, finds that it answers again
    served = len(bench.upstream.served)
    bench.upstream.script.hangs_before = False
    await bench.until_ready()
    assert len(bench.upstream.served) == served
    bench.run(4, "again", max_tokens=5)
    assert (await bench.result(4))[0] == "again"


async def test_after_a_broken_connection_nothing_is_sent_before_the_model_is_known(bench: Bench) -> None:
    await bench.start("--upstream-check-s", "60")
    bench.upstream.script.drops_after = 2
    bench.upstream.script.health_hangs = True
    bench.run(1, "hello", max_tokens=9)
    await bench.result(1)
    async with asyncio.timeout(2):  # less than the list of models is waited for
        await bench.until_full()


async def test_a_pause_of_ours_is_no_silence_of_the_upstream(bench: Bench) -> None:
    # Given a stream whose client does not keep up, for longer than an upstream may be silent
    gateway = await bench.start("--upstream-silence-s", "0.6")
    bench.upstream.script.hangs_after = 3
    bench.run(1, "hello", max_tokens=9)
    await gateway.until(lambda: len(gateway.text(1)) == 3)
    gateway.send(Pause(sid=1))
    await asyncio.sleep(1.0)
    assert not gateway.ends
    # When it goes on, the upstream has its whole time again
    gateway.send(Resume(sid=1))
    await asyncio.sleep(0.3)
    assert not gateway.ends
    assert (await bench.result(1))[1].message.startswith("upstream_silent")


@pytest.mark.parametrize(
    ("fault", "kind"), [("hangs_after", "silent"), ("drops_after", "broken"), ("fails_after", "broken")]
)
async def test_a_stream_that_breaks_is_left_to_another_replica_with_what_it_gave(
    bench: Bench, fault: str, kind: str
) -> None:
    await bench.start(*FAST)
    setattr(bench.upstream.script, fault, 4)
    bench.run(1, "hello", max_tokens=50)
    text, end = await bench.result(1)
    assert (text, end.output_tokens, end.reason) == ("hell", 4, "moved")
    assert end.message.startswith(f"upstream_{kind}")


async def test_a_deadline_ends_the_row_and_the_upstreams_work(bench: Bench) -> None:
    bench.upstream.script.step_s = 0.02
    await bench.start()
    bench.run(1, "hello", max_tokens=3000, deadline_ms=300)
    text, end = await bench.result(1)
    assert (end.reason, end.output_tokens) == ("deadline", len(text))
    await bench.upstream.until_left(1)


@pytest.mark.parametrize(
    ("status", "code", "words"),
    [
        (400, "unservable", "HTTP 400"),
        (422, "unservable", "HTTP 422"),
        (429, "capacity", ""),
        (503, "capacity", ""),
        (401, "capacity", ""),
        (404, "capacity", ""),
    ],
)
async def test_a_status_says_whose_fault_it_is(bench: Bench, status: int, code: str, words: str) -> None:
    await bench.start()
    bench.upstream.script.status, bench.upstream.script.error = status, f"bad {KEY} request"
    bench.run(1, "hello")
    found, message = await refusal(bench, 1)
    assert found == code
    assert words in message
    # And what the server said, which may quote key or prompt, is told to nobody
    assert KEY not in message
    assert not any(KEY in line for line in bench.worker.log)


async def test_a_server_error_ends_the_row_the_second_time(bench: Bench) -> None:
    await bench.start("--upstream-check-s", "0.2")
    bench.upstream.script.status, seen = 500, len(bench.dispatcher.reports)
    bench.run(1, "hello")
    assert (await refusal(bench, 1))[0] == "capacity"
    await bench.until_back(seen)
    bench.run(1, "hello")
    _, end = await bench.result(1)
    assert (end.reason, end.output_tokens) == ("error", 0)


async def test_a_restarted_upstream_is_used_again(bench: Bench) -> None:
    await bench.start(*FAST)
    bench.run(1, "hello", max_tokens=5)
    await bench.result(1)
    await bench.upstream.stop()
    await bench.until_full()
    await bench.upstream.start()
    await bench.until_ready()
    bench.run(2, "hello", max_tokens=5)
    assert (await bench.result(2))[0] == "hello"
