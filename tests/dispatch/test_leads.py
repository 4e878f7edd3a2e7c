"""Who was given more than others does not begin anew when another dispatcher takes over."""

from random import Random

import pytest

from dispatch.dispatcher import Dispatcher
from dispatch.leads import MOST_FLOWS, NO_LEADS, Leads, leads_read, leads_write
from dispatch.limits import Limits
from gpuworker.wire.messages import RowFlow, RowKey, Run
from policy.flow import Flow
from tests.dispatch.peers import Inbox, hello, report, submit
from tests.dispatch.scene import PREFIX_SECRET, Scene

RUNNING = RowKey("g", 99)


def served_first(leads: Leads) -> str:
    """Of two whose requests wait at a new dispatcher, the greedy one's first, who gets the place."""
    dispatcher = Dispatcher(Limits(), PREFIX_SECRET, 0.0, Random(1), leads)
    gateway, worker = Inbox(), Inbox()
    greeting = hello(
        "worker", "w", "w", max_rows=1, running=[RUNNING], flows=[RowFlow("other", "interactive")]
    )
    dispatcher.worker_joined(greeting, worker, 10.0)
    dispatcher.report("w", report(1), 10.0)
    dispatcher.gateway_joined(hello("gateway", "gateway-0", "g"), gateway, 20.0)
    dispatcher.submit("g", submit(1, tenant="greedy"), 20.0)
    dispatcher.submit("g", submit(2, tenant="modest"), 21.0)
    assert not worker.of(Run)
    dispatcher.report("w", report(2, ended=[RUNNING]), 100.0)
    (run,) = worker.of(Run)
    return run.submit.tenant


def test_who_was_given_more_waits_for_the_others_at_the_next_dispatcher_too() -> None:
    # Given one whose row runs, and one that was given five meanwhile
    scene = Scene()
    worker = scene.worker("w", max_rows=2)
    scene.submit(1, tenant="modest")
    for sid in range(2, 7):
        scene.submit(sid, tenant="greedy")
        row = RowKey("g", sid)
        scene.dispatcher.report("w", report(sid, prefilled=[row], ended=[row]), scene.now)
    assert len(worker.of(Run)) == 6
    # Then its lead counts where it is known, and all are equal where it is not
    left = leads_write(scene.dispatcher.leads())
    assert served_first(leads_read(left)) == "modest"
    assert served_first(NO_LEADS) == "greedy"


def test_what_is_written_is_read_and_bounded() -> None:
    leads = {
        "d1": {Flow("t", "batch"): 7, Flow("u", "interactive"): 0},
        "d2": {Flow(f"t{number}", "interactive"): number + 10 for number in range(MOST_FLOWS)},
    }
    read = leads_read(leads_write(leads))
    assert sum(map(len, read.values())) == MOST_FLOWS
    assert "d1" not in read
    assert leads_read(leads_write({"d1": leads["d1"]})) == {"d1": leads["d1"]}


@pytest.mark.parametrize("text", ["", "[", "{}", '[["d","t","k","7"]]', "[[1,2]]"])
def test_what_nobody_can_read_is_nothing(text: str) -> None:
    assert leads_read(text) == {}
