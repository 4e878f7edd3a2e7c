"""Three external replicas behind a real dispatcher, of which one hangs: nobody's request is lost with it."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.backends.upstreams import Upstream
from tests.worker.fleet import Fleet
from tests.worker.peers import GatewayEnd
from tests.worker.support import weights_make

NAMES = ("a", "b", "c")
FAST = ("--upstream-first-token-s", "0.5", "--upstream-silence-s", "0.5", "--upstream-check-s", "0.2")


@pytest.fixture
async def upstreams() -> AsyncIterator[dict[str, Upstream]]:
    made = {name: await Upstream().start() for name in NAMES}
    yield made
    for upstream in made.values():
        await upstream.stop()


@pytest.fixture
async def fleet(folder: Path, upstreams: dict[str, Upstream]) -> AsyncIterator[Fleet]:
    digest = weights_make(folder / "weights")
    fleet = await Fleet(folder, folder / "weights", digest).start()
    for name, upstream in upstreams.items():
        options = ("--backend", "openai", "--upstream-flavour", "vllm", "--upstream-model", "echo-model")
        await fleet.worker_start(name, "both", "--upstream-url", upstream.url, *options, *FAST)
    await fleet.until(lambda: all(not is_full(fleet, name) for name in NAMES))
    yield fleet
    await fleet.stop()


def is_full(fleet: Fleet, name: str) -> bool:
    view = fleet.view(name)
    assert view is not None
    return view.full


async def ended(fleet: Fleet, sid: int) -> GatewayEnd:
    """Where its tokens came from; it may have been placed elsewhere before."""

    def ends() -> list[GatewayEnd]:
        return [gateway for gateway in fleet.gateways.values() if sid in gateway.ends]

    await fleet.until(lambda: sid in fleet.ended or ends())
    assert sid not in fleet.ended, fleet.ended[sid]
    (gateway,) = ends()
    return gateway


async def test_with_one_of_three_hung_every_request_is_answered(
    fleet: Fleet, upstreams: dict[str, Upstream]
) -> None:
    # Given one upstream that takes requests and says nothing
    upstreams["b"].script.hangs_before = True
    for upstream in upstreams.values():
        upstream.script.step_s = 0.03
    # When requests come, more than one replica would take
    for sid in range(1, 31):
        await fleet.submit(sid, f"request {sid:02}", max_tokens=10, deadline_ms=10_000)
        await asyncio.sleep(0.01)
    # Then all are answered in full, by the others where it had them first
    for sid in range(1, 31):
        gateway = await ended(fleet, sid)
        assert (gateway.text(sid), gateway.ends[sid].output_tokens) == (f"request {sid:02}", 10)
    # And the hung one was tried, is left alone, and leaves nothing running
    assert upstreams["b"].served
    await fleet.until(lambda: is_full(fleet, "b"))
    await upstreams["b"].until_left(1)
    served = len(upstreams["b"].served)
    for sid in range(40, 46):
        await fleet.run(sid, "meanwhile", max_tokens=4)
    assert len(upstreams["b"].served) == served
    # And it is used again when it answers
    upstreams["b"].script.hangs_before = False
    await fleet.until(lambda: not is_full(fleet, "b"))
    for sid in range(50, 70):
        await fleet.submit(sid, "again", max_tokens=30)
    await fleet.until(lambda: len(upstreams["b"].served) > served)


async def test_with_all_hung_a_request_ends_at_its_deadline(
    fleet: Fleet, upstreams: dict[str, Upstream]
) -> None:
    for upstream in upstreams.values():
        upstream.script.hangs_before = True
    await fleet.submit(1, "nobody answers", deadline_ms=3_000)
    await fleet.until(lambda: 1 in fleet.ended or any(1 in g.ends for g in fleet.gateways.values()))
    ends = [g.ends[1].reason for g in fleet.gateways.values() if 1 in g.ends]
    assert ends == ["deadline"] or fleet.ended[1].code == "deadline_exceeded"
