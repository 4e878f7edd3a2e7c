"""A report covers whatever was received before it, and says each change once."""

from dataclasses import replace
from typing import Any

import pytest

from gpuworker.backends.base import BackendStep
from gpuworker.engine.output import StepOutput
from gpuworker.engine.stats import EngineStats
from gpuworker.load_report import PREEMPTIONS_WINDOW_MS, TOKENS_WINDOW_MS, LoadReport
from gpuworker.wire.messages import FlowWork, RowKey
from policy.flow import Flow
from policy.step_cost import StepCost

IDLE = EngineStats(
    running=0,
    waiting=0,
    pending_prefill_tokens=0,
    blocks=64,
    free_blocks=64,
    cached_blocks=0,
    step=4,
    step_ms=1.0,
    batch_rows=0,
    paused=0,
    preemptions=0,
    swaps=0,
    prompt_tokens=0,
    cached_tokens=0,
    output_tokens=0,
)


def step(
    *,
    taken: int = 0,
    cached: tuple[bytes, ...] = (),
    evicted: tuple[bytes, ...] = (),
    prefilled: tuple[RowKey, ...] = (),
    **stats: Any,
) -> BackendStep:
    output = StepOutput(1, prefilled=list(prefilled))
    return BackendStep(
        output,
        replace(IDLE, **stats),
        taken=taken,
        cached=list(cached),
        evicted=list(evicted),
    )


@pytest.fixture
def report() -> LoadReport:
    report = LoadReport(IDLE)
    report.take(0)
    return report


def test_a_prompt_counts_from_its_run_on_until_it_is_computed(report: LoadReport) -> None:
    for tokens in (100, 200):
        report.run_received()
        report.given(tokens)
    told = report.take(1)
    assert (told.runs, told.pending_prefill_tokens) == (2, 300)
    report.update(step(taken=1, pending_prefill_tokens=60))
    assert report.take(2).pending_prefill_tokens == 60 + 200
    report.update(step(taken=2, pending_prefill_tokens=210))
    assert report.take(3).pending_prefill_tokens == 210
    report.update(step(taken=2))
    assert report.take(4).pending_prefill_tokens == 0


def test_a_run_that_was_refused_counts_as_received(report: LoadReport) -> None:
    report.run_received()
    assert (report.take(1).runs, report.take(2).pending_prefill_tokens) == (1, 0)


def test_a_new_dispatcher_counts_runs_anew_and_hears_of_everything_held(report: LoadReport) -> None:
    report.run_received()
    report.update(step(cached=(b"a", b"b", b"c")))
    report.update(step(evicted=(b"b",), cached=(b"d",)))
    told = report.take(1)
    assert (sorted(told.cached), told.evicted, told.cache_reset) == ([b"a", b"c", b"d"], [b"b"], False)
    assert report.take(2).cached == report.take(2).evicted == []
    report.update(step(cached=(b"e",), evicted=(b"a",)))
    report.restart([RowKey("g", 1)])
    told = report.take(3)
    assert (sorted(told.cached), told.evicted, told.cache_reset) == ([b"c", b"d", b"e"], [], True)
    assert (told.runs, told.prefilled) == (0, [RowKey("g", 1)])
    assert not report.take(4).cache_reset


def test_rows_that_did_not_come_to_their_own_end_are_said_once_and_to_nobody_new(report: LoadReport) -> None:
    rows = [RowKey("g", 1), RowKey("g", 2)]
    for is_new in (False, True):
        ended = step()
        ended.output.ended += rows
        ended.output.cut += rows[:1]
        report.update(ended)
        if is_new:
            report.restart([])
        told = report.take(1)
        assert (told.ended, told.cut) == (([], []) if is_new else (rows, rows[:1]))
        assert report.take(2).cut == []


def test_the_first_report_of_all_is_a_whole_one() -> None:
    assert LoadReport(IDLE).take(0).cache_reset


def test_rates_are_of_their_windows(report: LoadReport) -> None:
    report.update(step(preemptions=6, output_tokens=300))
    told = report.take(TOKENS_WINDOW_MS)
    assert (told.tokens_per_s, told.preemptions, told.preemptions_per_min) == (100.0, 6, 120.0)
    assert report.take(2 * TOKENS_WINDOW_MS).tokens_per_s == 0.0
    assert report.take(PREEMPTIONS_WINDOW_MS).preemptions_per_min == 6.0
    assert report.take(PREEMPTIONS_WINDOW_MS + TOKENS_WINDOW_MS).preemptions_per_min == 0.0


def test_news_is_what_changes_a_placement(report: LoadReport) -> None:
    assert not report.has_news
    report.update(step(step=9))
    assert not report.has_news
    for changed in (step(free_blocks=3), step(prefilled=(RowKey("g", 1),)), step(waiting=1)):
        report.update(changed)
        assert report.has_news
        report.take(1)


def worked(tenant: str, us: int) -> BackendStep:
    return BackendStep(StepOutput(1, work=[(Flow(tenant, "interactive"), us)]), IDLE)


def test_machine_time_is_news_when_it_adds_up_and_a_new_dispatcher_hears_all_of_it(
    report: LoadReport,
) -> None:
    report.update(worked("a", 70_000))
    assert not report.has_news
    report.update(worked("b", 40_000))
    assert report.has_news
    assert report.take(1_000).work == [
        FlowWork("a", "interactive", 70_000),
        FlowWork("b", "interactive", 40_000),
    ]
    assert not report.has_news
    report.update(worked("b", 1))
    assert report.take(2_000).work == [FlowWork("b", "interactive", 40_001)]
    report.restart([])
    told = report.take(2_001)
    assert (told.cache_reset, len(told.work)) == (True, 2)


def test_what_steps_cost_is_told_when_it_is_measured(report: LoadReport) -> None:
    assert (report.take(1).cost, report.take(1).row_limit) == ([], 0)
    stats = replace(IDLE, cost=StepCost(5.0, 4.0, 3.0, 2.0, 1.0), row_limit=7)
    report.update(BackendStep(StepOutput(1), stats))
    told = report.take(2)
    assert StepCost(*told.cost) == stats.cost
    assert told.row_limit == 7
