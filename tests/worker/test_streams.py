"""A worker runs what the dispatcher sends and streams each row's own text to the gateway that asked."""

import asyncio
from itertools import pairwise
from pathlib import Path

from gpuworker.wire.messages import Pause, Resume, RowFlow, Sampling
from policy.prefix import ROUTER_STRIDE
from tests.worker.conftest import Stage


async def test_every_row_of_every_gateway_gets_its_own_text(stage: Stage) -> None:
    await stage.start("--step-ms", "2")
    gateways = [await stage.gateway() for _ in range(3)]
    for sid in range(10):
        for number, gateway in enumerate(gateways):
            stage.run(gateway, sid, f"<{number}:{sid}>", max_tokens=40)
    for number, gateway in enumerate(gateways):
        await gateway.until_ended(*range(10))
        for sid in range(10):
            assert gateway.text(sid) == (f"<{number}:{sid}>" * 20)[:40]
            end = gateway.ends[sid]
            assert (end.reason, end.prompt_tokens, end.output_tokens) == ("length", 5, 40)
    await stage.dispatcher.until_idle()
    assert sorted(stage.dispatcher.ended) == sorted(g.row(sid) for g in gateways for sid in range(10))
    prefilled = [row for report in stage.dispatcher.reports for row in report.prefilled]
    assert sorted(prefilled) == sorted(stage.dispatcher.ended)
    assert max(report.batch_rows for report in stage.dispatcher.reports) > 16


async def test_one_message_per_step_per_gateway(stage: Stage) -> None:
    await stage.start("--step-ms", "5")
    left, right = await stage.gateway(), await stage.gateway()
    first_step = stage.dispatcher.reports[-1].step
    for sid in range(8):
        stage.run(left, sid, "left", max_tokens=50)
        stage.run(right, sid, "right", max_tokens=50)
    await left.until_ended(*range(8))
    await right.until_ended(*range(8))
    last_step = (await stage.dispatcher.until_idle()).step
    for gateway in (left, right):
        steps = [frame.step for frame in gateway.frames]
        assert steps == sorted(set(steps)), "two messages for one step"
        assert len(steps) <= last_step - first_step
        assert sum(sum(frame.counts) for frame in gateway.frames) == 8 * 50
        assert max(len(frame.sids) for frame in gateway.frames) == 8


async def test_a_gateway_that_connects_late_gets_every_token(stage: Stage) -> None:
    await stage.start("--step-ms", "1")
    gateway = stage.absent_gateway()
    stage.run(gateway, 1, "early bird", max_tokens=200)
    stage.run(gateway, 2, "done before anybody came", max_tokens=3)
    await stage.dispatcher.until(lambda: gateway.row(2) in stage.dispatcher.ended)
    await gateway.connect()
    await gateway.until_ended(1, 2)
    assert gateway.text(1) == ("early bird" * 20)[:200]
    assert gateway.text(2) == "don"


async def test_rows_go_on_while_the_dispatcher_is_away_and_are_announced_to_the_next(stage: Stage) -> None:
    await stage.start("--step-ms", "20")
    gateway = await stage.gateway()
    of_tenant = {"tenant": "acme", "klass": "batch_urgent", "weight": 0.5}
    stage.run(gateway, 1, "steady", max_tokens=100, n=2, **of_tenant)
    stage.run(gateway, 2, "short", max_tokens=10)
    await gateway.until(lambda: gateway.text(1))
    await stage.dispatcher.stop()
    await gateway.until_ended(2)
    reports = len(stage.dispatcher.reports)
    await stage.dispatcher.start()
    await stage.dispatcher.until(lambda: len(stage.dispatcher.reports) > reports)
    assert stage.dispatcher.hellos[-1].running == [gateway.row(1)]
    assert stage.dispatcher.hellos[-1].choices == [2]
    assert stage.dispatcher.hellos[-1].flows == [RowFlow("acme", "batch_urgent", 0.5)]
    assert stage.dispatcher.reports[reports].prefilled == [gateway.row(1)]
    await gateway.until_ended(1)
    assert gateway.text(1) == ("steady" * 20)[:100]
    await stage.dispatcher.until_idle()
    assert gateway.row(1) in stage.dispatcher.ended


async def test_a_long_step_does_not_silence_the_worker(stage: Stage) -> None:
    await stage.start("--step-ms", "600")
    gateway = await stage.gateway()
    seen = len(stage.dispatcher.reports)
    stage.run(gateway, 1, "slow", max_tokens=2)
    await gateway.until_ended(1)
    times = stage.dispatcher.report_times[seen:]
    assert max(later - earlier for earlier, later in pairwise(times)) < 0.55


async def test_text_of_a_character_arrives_whole_and_stop_strings_never_show(stage: Stage) -> None:
    await stage.start()
    gateway = await stage.gateway()
    stage.run(gateway, 1, "€😀!", max_tokens=8)
    stage.run(gateway, 2, "abcSTOPdef", max_tokens=30, stop=["STOP"])
    await gateway.until_ended(1, 2)
    assert gateway.text(1) == "€😀!"
    assert gateway.text(2) == "abc"
    assert gateway.ends[2].reason == "stop"
    texts = [text for frame in gateway.frames for text in frame.texts]
    assert not any("\ufffd" in text for text in texts)


async def test_the_same_row_sent_twice_runs_once(stage: Stage) -> None:
    await stage.start("--step-ms", "5")
    gateway = await stage.gateway()
    stage.run(gateway, 1, "once", max_tokens=20)
    stage.run(gateway, 1, "once", max_tokens=20)
    await gateway.until_ended(1)
    assert gateway.text(1) == "once" * 5
    await stage.dispatcher.until_idle()
    assert stage.dispatcher.refused == []


async def test_an_idle_worker_burns_no_processor_time(stage: Stage) -> None:
    await stage.start()
    process = stage.worker.process
    assert process is not None

    def ticks() -> int:
        fields = Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return int(fields[11]) + int(fields[12])

    before = ticks()
    await asyncio.sleep(1)
    assert ticks() - before <= 10, "more than a tenth of a core while idle"


async def test_each_choice_has_its_own_stream_and_all_are_billed_as_one(stage: Stage) -> None:
    await stage.start()
    gateway = await stage.gateway()
    stage.run(gateway, 1, "three of them", max_tokens=30, n=3, stop=["of"])
    stage.run(gateway, 2, "one", max_tokens=6)
    await gateway.until_ended(1, 2)
    assert [gateway.text(1, choice) for choice in range(3)] == ["three "] * 3
    ends = [end for frame in gateway.frames for end in frame.choice_ends]
    assert {(end.sid, end.choice, end.reason) for end in ends} == {(1, choice, "stop") for choice in range(3)}
    end = gateway.ends[1]
    assert (end.prompt_tokens, end.output_tokens) == (13, sum(each.output_tokens for each in ends))
    assert gateway.text(2) == "oneone"
    assert all(frame.choices == [] for frame in gateway.frames if 1 not in frame.sids)
    await stage.dispatcher.until_idle()


async def test_logprobs_stand_beside_the_tokens_of_those_who_asked(stage: Stage) -> None:
    await stage.start()
    gateway = await stage.gateway()
    asked = Sampling(temperature=0.0, logprobs=1, prompt_logprobs=0)
    stage.run(gateway, 1, "asked", max_tokens=20, sampling=asked)
    stage.run(gateway, 2, "not", max_tokens=20)
    await gateway.until_ended(1, 2)
    tokens, prompt = [], []
    for frame in gateway.frames:
        assert frame.logprobs == [] or len(frame.logprobs) == len(frame.sids)
        for sid, logprobs in zip(frame.sids, frame.logprobs, strict=False):
            assert bool(logprobs) == (sid == 1)
            tokens += [entry.token for entry in logprobs]
        prompt += [(entry.first, len(entry.tokens)) for entry in frame.prompts if entry.sid == 1]
    assert bytes(tokens).decode() == gateway.text(1)
    assert prompt == [(1, 4)]


async def test_a_paused_row_goes_on_where_it_was(stage: Stage) -> None:
    await stage.start("--step-ms", "10")
    gateway, other = await stage.gateway(), await stage.gateway()
    stage.run(gateway, 1, "paused", max_tokens=60)
    await gateway.until(lambda: gateway.text(1))
    other.send(Pause(sid=1))  # the same number, another gateway
    gateway.send(Pause(sid=1))
    gateway.send(Pause(sid=99))
    await asyncio.sleep(0.2)
    shown = gateway.text(1)
    await asyncio.sleep(0.3)
    assert gateway.text(1) == shown
    stage.run(gateway, 2, "mate", max_tokens=8)
    await gateway.until_ended(2)
    gateway.send(Resume(sid=1))
    await gateway.until_ended(1)
    assert gateway.text(1) == "paused" * 10
    await stage.dispatcher.until_idle()


async def test_the_router_hears_what_came_into_the_cache_and_what_went(stage: Stage) -> None:
    await stage.start("--kv-blocks", "40")
    gateway = await stage.gateway()
    held: set[bytes] = set()

    def told() -> set[bytes]:
        held.clear()
        for report in stage.dispatcher.reports:
            if report.cache_reset:
                held.clear()
            held.difference_update(report.evicted)
            held.update(report.cached)
        return held

    stage.run(gateway, 1, "a" * 320, max_tokens=2)
    await gateway.until_ended(1)
    await stage.dispatcher.until(lambda: len(told()) == 20 // ROUTER_STRIDE)
    first = set(held)
    stage.run(gateway, 2, "b" * 600, max_tokens=2)
    await gateway.until_ended(2)
    await stage.dispatcher.until(lambda: told() and not first <= held)
    await stage.dispatcher.until_idle()
    known = set(told())
    await stage.dispatcher.stop()
    seen = len(stage.dispatcher.reports)
    await stage.dispatcher.start()
    await stage.dispatcher.until(lambda: len(stage.dispatcher.reports) > seen)
    again = stage.dispatcher.reports[seen]
    assert again.cache_reset
    assert set(again.cached) == known


async def test_without_a_prefix_cache_nothing_is_shared_or_told(stage: Stage) -> None:
    await stage.start("--prefix-cache", "off")
    gateway = await stage.gateway()
    for sid in (1, 2):
        stage.run(gateway, sid, "c" * 320, max_tokens=2)
        await gateway.until_ended(sid)
        assert gateway.ends[sid].cached_tokens == 0
    await stage.dispatcher.until_idle()
    assert stage.dispatcher.hellos[0].kv_dtype == ""
    assert not any(report.cached for report in stage.dispatcher.reports)


async def test_a_report_knows_of_every_prompt_received_before_it(stage: Stage) -> None:
    await stage.start("--step-ms", "400", "--target-itl-ms", "off")
    gateway = await stage.gateway()
    for sid in range(3):
        stage.run(gateway, sid, "l" * 2000, max_tokens=1, tenant=f"tenant {sid}")
    await stage.dispatcher.until(lambda: stage.dispatcher.reports[-1].runs == 3)
    first = next(report for report in stage.dispatcher.reports if report.runs == 3)
    assert first.pending_prefill_tokens >= 6_000 - 512, "one step at most was made"
    await gateway.until_ended(0, 1, 2)
    await stage.dispatcher.until_idle()
