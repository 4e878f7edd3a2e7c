"""Which worker computes a prompt: the dispatcher's choice of a helper, and what it counts where."""

from collections.abc import Sequence

import pytest

from gpuworker.wire.messages import (
    Placed,
    Refused,
    RowKey,
    Run,
    Sampling,
    WorkerUp,
    pack_ids,
)
from policy.placement import LONG_PROMPT_TOKENS, PREFILL_BACKLOG_TOKENS, PREFILL_REMOTE_TOKENS
from policy.prefix import BLOCK_TOKENS, prefix_next, prefix_root, router_keeps
from tests.dispatch.peers import Inbox, hello, report
from tests.dispatch.scene import PREFIX_SECRET, Scene

LONG = PREFILL_REMOTE_TOKENS
SIZES = {"blocks": 4_096, "max_tokens": 65_536, "max_rows": 64}


def big(scene: Scene, name: str, **fields: object) -> Inbox:
    return scene.worker(name, **(SIZES | fields))


def helpers_of(inbox: Inbox) -> list[str]:
    return [run.prefill_from for run in inbox.of(Run)]


def said(scene: Scene, name: str, **fields: object) -> None:
    scene.dispatcher.report(name, report(9, **({"free_blocks": 4_096} | fields)), scene.now)  # type: ignore[arg-type]


def router_keys(ids: Sequence[int], *, tenant: str = "t", salt: str = "") -> list[bytes]:
    key, keys = prefix_root(PREFIX_SECRET, tenant, "d1", "", "float32", salt), []
    for depth in range(len(ids) // BLOCK_TOKENS):
        key = prefix_next(key, ids[depth * BLOCK_TOKENS : (depth + 1) * BLOCK_TOKENS])
        if router_keeps(depth):
            keys.append(key)
    return keys


def test_a_long_prompt_is_computed_elsewhere_and_a_short_one_is_not(scene: Scene) -> None:
    worker, helper = big(scene, "w"), big(scene, "p", serves="prefill")
    scene.submit(1, prompt=LONG - 1)
    said(scene, "w", prefilled=[RowKey("g", 1)])
    scene.submit(2, prompt=LONG)
    assert helpers_of(worker) == ["", "unix:/p"]
    assert helper.of(Run) == []
    assert {placed.worker for placed in scene.gateway.of(Placed)} == {"w"}


def test_a_prefill_worker_is_nothing_to_gateways_and_serves_no_model(scene: Scene) -> None:
    big(scene, "p", serves="prefill")
    scene.submit(1)
    scene.silent_for(100)
    for _ in range(130):
        said(scene, "p")
        scene.silent_for(250)
    assert scene.gateway.of(WorkerUp) == []
    assert scene.dispatcher.fleet_state(scene.now, 0).workers[0].serves == "prefill"
    assert sum(queue.depth for queue in scene.dispatcher.fleet_state(scene.now, 0).queues) == 0


def test_an_unknown_role_is_refused(scene: Scene) -> None:
    problem = scene.dispatcher.worker_problem(hello("worker", "w", "w", serves="everything"), scene.now)
    assert problem is not None
    assert problem[0] == "bad_role"


@pytest.mark.parametrize("serves", ["both", "decode"])
def test_only_prefill_workers_help(scene: Scene, serves: str) -> None:
    worker = big(scene, "w")
    big(scene, "other", serves=serves, blocks=2_000)
    scene.submit(1, prompt=LONG)
    assert helpers_of(worker) == [""]


@pytest.mark.parametrize(
    "helper", [{"digest": "d2"}, {"kv_dtype": "bfloat16"}, {"kv_dtype": ""}, {"max_tokens": LONG}]
)
def test_a_helper_computes_the_same_numbers_and_can_hold_the_prompt(
    scene: Scene, helper: dict[str, object]
) -> None:
    worker = big(scene, "w")
    big(scene, "p", **({"serves": "prefill"} | helper))
    scene.submit(1, prompt=LONG)
    assert helpers_of(worker) == [""]


def test_a_row_that_reads_no_prefixes_is_not_helped(scene: Scene) -> None:
    worker, _ = big(scene, "w"), big(scene, "p", serves="prefill")
    scene.submit(1, prompt=LONG, sampling=Sampling(prompt_logprobs=0))
    assert helpers_of(worker) == [""]


def test_a_worker_without_a_prefix_cache_is_not_helped(scene: Scene) -> None:
    worker, _ = big(scene, "w", kv_dtype=""), big(scene, "p", serves="prefill", kv_dtype="")
    scene.submit(1, prompt=LONG)
    assert helpers_of(worker) == [""]


def test_a_silent_helper_is_not_asked(scene: Scene) -> None:
    worker, _ = big(scene, "w"), big(scene, "p", serves="prefill")
    scene.silent_for(800)
    said(scene, "w")
    scene.submit(1, prompt=LONG)
    assert helpers_of(worker) == [""]


def test_what_the_worker_holds_already_is_not_computed_elsewhere(scene: Scene) -> None:
    ids = list(range(1_000))
    worker, _ = big(scene, "w"), big(scene, "p", serves="prefill")
    keys = router_keys(ids)
    said(scene, "w", cached=keys, cache_reset=True)
    scene.submit(1, prompt_ids=pack_ids(ids))
    scene.submit(2, prompt_ids=pack_ids(ids), tenant="another")
    scene.submit(3, prompt_ids=pack_ids(ids), cache_salt="s")
    said(scene, "w", evicted=keys[5:])
    scene.submit(4, prompt_ids=pack_ids(ids))
    said(scene, "w", cached=keys[5:])
    scene.submit(5, prompt_ids=pack_ids(ids))
    said(scene, "w", cache_reset=True)
    scene.submit(6, prompt_ids=pack_ids(ids))
    assert helpers_of(worker) == ["", "unix:/p", "unix:/p", "unix:/p", "", "unix:/p"]


def test_a_gap_in_what_it_holds_ends_the_prefix(scene: Scene) -> None:
    ids = list(range(1_000))
    worker, _ = big(scene, "w"), big(scene, "p", serves="prefill")
    said(scene, "w", cached=router_keys(ids)[1:])
    scene.submit(1, prompt_ids=pack_ids(ids))
    assert helpers_of(worker) == ["unix:/p"]


def test_helpers_take_turns_and_are_free_again_when_the_prompt_is_computed(scene: Scene) -> None:
    worker = big(scene, "w")
    big(scene, "p", serves="prefill")
    big(scene, "q", serves="prefill")
    for sid in (1, 2, 3):
        scene.submit(sid, prompt=1_000)
    assert helpers_of(worker) == ["unix:/p", "unix:/q", "unix:/p"]
    said(scene, "w", prefilled=[RowKey("g", 1)], ended=[RowKey("g", 3)])
    scene.submit(4, prompt=1_000)
    scene.dispatcher.refused("w", Refused(row=RowKey("g", 2), code="unservable", message=""), scene.now)
    scene.submit(5, prompt=1_000)
    assert helpers_of(worker)[3:] == ["unix:/p", "unix:/q"]
    scene.dispatcher.worker_lost("w", "gone")
    assert {w.pending_tokens for w in scene.dispatcher._members.workers.values()} == {0}


def test_a_helper_far_behind_is_not_asked_and_the_window_counts_again(scene: Scene) -> None:
    worker, _ = big(scene, "w"), big(scene, "p", serves="prefill")
    taken = -(-PREFILL_BACKLOG_TOKENS // 4_000)
    for sid in range(taken + 2):
        scene.submit(sid, prompt=4_000)
    assert helpers_of(worker) == ["unix:/p"] * taken + [""], "then the window is full"


def test_prompts_computed_elsewhere_do_not_fill_the_window_but_hold_blocks(scene: Scene) -> None:
    worker, _ = big(scene, "w", blocks=100), big(scene, "p", serves="prefill")
    for sid in (1, 2, 3):
        scene.submit(sid, prompt=LONG)
    assert helpers_of(worker) == ["unix:/p"] * 2, "33 blocks each"


def test_a_report_that_crossed_a_run_does_not_open_the_window(scene: Scene) -> None:
    worker = big(scene, "w")
    scene.submit(1, prompt=300)
    said(scene, "w", runs=0)
    scene.submit(2, prompt=300)
    assert len(worker.of(Run)) == 1
    said(scene, "w", runs=1, pending=300)
    assert len(worker.of(Run)) == 1
    said(scene, "w", runs=1, pending=200)
    assert len(worker.of(Run)) == 2


def test_choices_are_rows(scene: Scene) -> None:
    worker = scene.worker(max_rows=4)
    scene.submit(1, n=2)
    scene.submit(2, n=3)
    assert len(worker.of(Run)) == 1
    scene.dispatcher.report("w", report(2, ended=[RowKey("g", 1)]), scene.now)
    assert len(worker.of(Run)) == 2
    scene.dispatcher.report("w", report(3, ended=[RowKey("g", 2)]), scene.now)
    scene.submit(3, n=6)
    assert len(worker.of(Run)) == 3, "alone, whatever it needs"
    scene.submit(4)
    assert len(worker.of(Run)) == 3


def test_long_prompts_have_their_own_pool_while_it_has_room(scene: Scene) -> None:
    long, short = big(scene, "long", labels=["long_prompt"], max_rows=1), big(scene, "short", blocks=2_000)
    scene.submit(1, prompt=5)
    scene.submit(2, prompt=LONG_PROMPT_TOKENS)
    assert [run.submit.sid for run in long.of(Run)] == [2]
    assert [run.submit.sid for run in short.of(Run)] == [1]
    scene.submit(3, prompt=LONG_PROMPT_TOKENS)
    assert [run.submit.sid for run in short.of(Run)] == [1, 3], "no prompt waits for a pool"


def test_a_helper_that_drains_says_so_and_is_not_asked(scene: Scene) -> None:
    worker, _ = big(scene, "w"), big(scene, "p", serves="prefill")
    said(scene, "p", draining=True)
    scene.submit(1, prompt=LONG)
    assert helpers_of(worker) == [""]
    assert scene.dispatcher.fleet_state(scene.now, 0).workers[0].state == "draining"
    said(scene, "p")
    said(scene, "w", prefilled=[RowKey("g", 1)])
    scene.submit(2, prompt=LONG)
    assert helpers_of(worker)[1:] == [""], "a drain is not taken back"


def test_choices_of_rows_that_a_new_dispatcher_learns_of_are_rows(scene: Scene) -> None:
    running = [RowKey("elsewhere", 1), RowKey("elsewhere", 2)]
    worker = scene.worker(max_rows=6, running=running, choices=[3, 1])
    scene.submit(1, n=3)
    assert worker.of(Run) == []
    scene.dispatcher.report("w", report(2, ended=running[:1]), scene.now)
    assert len(worker.of(Run)) == 1
    scene.submit(2, n=3)
    assert len(worker.of(Run)) == 1, "one and three are there"
    odd = hello("worker", "x", "x", running=running, choices=[3])
    assert scene.dispatcher.worker_problem(odd, scene.now) is not None
