"""Machine time is told once, whatever is lost on the way, and what is remembered is bounded."""

from hypothesis import given, settings
from hypothesis import strategies as st

from gpuworker.flow_totals import EVERY_MS, FlowTotals
from gpuworker.wire.messages import FlowWork
from policy.flow import Flow

MAX_FLOWS = 8


def flow(name: int) -> Flow:
    return Flow(str(name), "interactive")


def told(name: int, total_us: int) -> FlowWork:
    return FlowWork(str(name), "interactive", total_us)


def test_only_what_changed_is_told_and_always_the_total() -> None:
    totals = FlowTotals(MAX_FLOWS)
    totals.add([(flow(1), 10), (flow(2), 5)])
    assert totals.take(0, everything=True) == [told(1, 10), told(2, 5)]
    totals.add([(flow(2), 7)])
    totals.add([(flow(2), 1)])
    assert totals.take(EVERY_MS, everything=False) == [told(2, 13)]
    assert totals.take(2 * EVERY_MS, everything=False) == []


def test_reports_in_quick_succession_do_not_repeat_it() -> None:
    totals = FlowTotals(MAX_FLOWS)
    totals.take(0, everything=True)
    totals.add([(flow(1), 10)])
    assert totals.take(EVERY_MS - 1, everything=False) == []
    assert totals.take(EVERY_MS, everything=False) == [told(1, 10)]


def test_a_tenth_of_a_second_of_machine_time_is_news() -> None:
    totals = FlowTotals(MAX_FLOWS)
    totals.add([(flow(1), 60_000), (flow(2), 39_999)])
    assert not totals.is_due
    totals.add([(flow(1), 1)])
    assert totals.is_due
    totals.take(0, everything=True)
    assert not totals.is_due


def test_flows_served_longest_ago_are_forgotten_once_told_and_that_is_said() -> None:
    # Given as many flows as are remembered, and one more
    totals = FlowTotals(MAX_FLOWS)
    totals.add([(flow(name), 1) for name in range(MAX_FLOWS)])
    totals.add([(flow(0), 1)])
    totals.take(0, everything=True)
    totals.add([(flow(0), 1), (flow(MAX_FLOWS), 1)])
    # Then the one that goes is one whose total was told, and not in the same breath
    assert totals.take(EVERY_MS, everything=False) == [told(0, 3), told(MAX_FLOWS, 1), told(1, 0)]
    # And if it comes again it begins anew
    totals.add([(flow(1), 4)])
    assert totals.take(2 * EVERY_MS, everything=False) == [told(1, 4), told(2, 0)]
    assert len(totals.take(3 * EVERY_MS, everything=True)) == MAX_FLOWS


def test_what_was_not_told_is_never_forgotten() -> None:
    totals = FlowTotals(MAX_FLOWS)
    totals.take(0, everything=True)
    totals.add([(flow(name), 1) for name in range(MAX_FLOWS + 5)])
    assert len(totals.take(EVERY_MS, everything=False)) == MAX_FLOWS + 5
    totals.add([(flow(0), 1)])
    after = totals.take(2 * EVERY_MS, everything=False)
    assert after == [told(0, 2), *(told(name, 0) for name in range(1, 6))]


class Listener:
    """Keeps the last total of each flow, and so knows what was added to it."""

    def __init__(self) -> None:
        self.heard_us = 0
        self._last_us: dict[Flow, int] = {}

    def hear(self, work: list[FlowWork]) -> None:
        for item in work:
            flow, total_us = Flow(item.tenant, item.klass), item.total_us
            last_us = self._last_us.pop(flow, 0)
            assert total_us >= last_us or total_us == 0
            self.heard_us += max(total_us - last_us, 0)
            if total_us:
                self._last_us[flow] = total_us


def steps_of(flows: int) -> st.SearchStrategy[list[list[tuple[int, int]]]]:
    """What each of some steps gave to which flow, in microseconds."""
    step = st.lists(st.tuples(st.integers(0, flows - 1), st.integers(0, 10**6)), max_size=4)
    return st.lists(step, max_size=20)


def worked(steps: list[list[tuple[int, int]]]) -> int:
    return sum(us for step in steps for _, us in step)


@settings(deadline=None)
@given(steps=steps_of(MAX_FLOWS), heard=st.lists(st.booleans(), min_size=20, max_size=20))
def test_a_report_that_is_lost_with_its_connection_costs_nothing(
    steps: list[list[tuple[int, int]]], heard: list[bool]
) -> None:
    totals, listener, everything = FlowTotals(MAX_FLOWS), Listener(), True
    for at, (step, is_heard) in enumerate(zip([*steps, []], [*heard[: len(steps)], True], strict=True)):
        totals.add([(flow(name), us) for name, us in step])
        report = totals.take(at * EVERY_MS, everything=everything)
        if is_heard:
            listener.hear(report)
        everything = not is_heard
    assert listener.heard_us == worked(steps)


@settings(deadline=None)
@given(steps=steps_of(3 * MAX_FLOWS))
def test_nothing_is_missing_when_flows_are_forgotten_and_come_again(
    steps: list[list[tuple[int, int]]],
) -> None:
    totals, listener = FlowTotals(MAX_FLOWS), Listener()
    for at, step in enumerate(steps):
        totals.add([(flow(name), us) for name, us in step])
        listener.hear(totals.take(at * EVERY_MS, everything=False))
        assert len(totals) <= MAX_FLOWS + len(step)
    assert listener.heard_us == worked(steps)
