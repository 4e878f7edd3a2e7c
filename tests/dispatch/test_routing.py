"""Conversations over several replicas that compute, report what they hold, and forget the oldest of it."""

from collections import OrderedDict
from random import Random

import pytest

from gpuworker.wire.messages import RowKey, Run, pack_ids, unpack_ids
from policy.prefix import BLOCK_TOKENS, ROUTER_STRIDE, prefix_next, prefix_root
from tests.dispatch.peers import Inbox, report
from tests.dispatch.scene import PREFIX_SECRET, Scene

COST = [14.0, 0.132, 0.1, 30e-6, 0.0]
SIZES = {"blocks": 16_384, "max_tokens": 65_536, "max_rows": 64}
CONVERSATIONS, TURNS = 40, 6
STEP_MS = 200.0


def names_of(ids: list[int]) -> list[bytes]:
    key, names = prefix_root(PREFIX_SECRET, "t", "d1", "", "float32", ""), []
    for number, first in enumerate(range(0, len(ids) - BLOCK_TOKENS + 1, BLOCK_TOKENS), start=1):
        key = prefix_next(key, ids[first : first + BLOCK_TOKENS])
        if number % ROUTER_STRIDE == 0:
            names.append(key)
    return names


class Replicas:
    """Each begins what it is sent, ends it a little later, and keeps `most_names` of its prompts' names.
    `reports`: whether it tells which."""

    def __init__(self, scene: Scene, count: int, *, reports: bool = True, most_names: int = 10_000) -> None:
        self.scene, self.reports, self.most_names = scene, reports, most_names
        self.inboxes: dict[str, Inbox] = {f"w{n}": scene.worker(f"w{n}", **SIZES) for n in range(count)}
        self.held: dict[str, OrderedDict[bytes, None]] = {name: OrderedDict() for name in self.inboxes}
        self.seen = dict.fromkeys(self.inboxes, 0)
        self.running: dict[str, list[RowKey]] = {name: [] for name in self.inboxes}
        self.stuck: set[str] = set()  # those that compute nothing
        self.where: dict[int, str] = {}
        self.tell()

    def tell(self) -> None:
        """What came is computed, and what came before that ends."""
        for name, inbox in self.inboxes.items():
            runs = inbox.of(Run)[self.seen[name] :]
            self.seen[name] += len(runs)
            cached: list[bytes] = []
            for run in runs:
                self.where[run.submit.sid] = name
                cached += [
                    key for key in names_of(unpack_ids(run.submit.prompt)) if key not in self.held[name]
                ]
                self.held[name].update(dict.fromkeys(cached))
            evicted = []
            while len(self.held[name]) > self.most_names:
                evicted.append(self.held[name].popitem(last=False)[0])
            ended, prefilled = self.running[name], [RowKey("g", run.submit.sid) for run in runs]
            if name in self.stuck:
                ended, prefilled = [], []
            self.running[name] = prefilled
            told = report(
                9,
                free_blocks=SIZES["blocks"],
                pending=50_000 if name in self.stuck else 0,
                prefilled=prefilled,
                ended=ended,
                cached=cached if self.reports else [],
                evicted=evicted if self.reports else [],
                cost=COST,
                row_limit=60,
            )
            self.scene.dispatcher.report(name, told, self.scene.now)

    def holder(self, ids: list[int], part: float = 0.5) -> set[str]:
        """Those that hold at least so much of the prompt."""
        names = names_of(ids)
        return {
            name for name, held in self.held.items() if sum(n in held for n in names) >= part * len(names)
        }


def converse(scene: Scene, replicas: Replicas, rng: Random, conversations: int = CONVERSATIONS) -> float:
    """The part of the follow-up turns that began where their prefix was."""
    said = {number: [rng.randrange(32_000) for _ in range(600)] for number in range(conversations)}
    sid = hits = follow_ups = 0
    for turn in range(TURNS):
        for number in rng.sample(sorted(said), len(said)):
            sid += 1
            holders = replicas.holder(said[number])
            said[number] = said[number] + [rng.randrange(32_000) for _ in range(rng.randint(30, 300))]
            scene.submit(sid, prompt_ids=pack_ids(said[number]), max_tokens=100)
            if rng.random() < 0.5:  # several come between two reports
                scene.silent_for(STEP_MS / 10)
                replicas.tell()
            if turn:
                follow_ups += 1
                replicas.tell()
                hits += replicas.where[sid] in holders
        scene.silent_for(STEP_MS)
        replicas.tell()
    return hits / follow_ups


@pytest.mark.parametrize("count", [2, 8])
def test_nine_of_ten_turns_begin_where_their_prefix_is(count: int) -> None:
    scene = Scene()
    replicas = Replicas(scene, count)
    assert converse(scene, replicas, Random(5)) >= 0.9
    # Then every replica has its part of the conversations
    assert len(set(replicas.where.values())) == count


def test_turns_find_their_replica_though_it_does_not_say_what_it_holds() -> None:
    scene = Scene()
    assert converse(scene, Replicas(scene, 8, reports=False), Random(5)) >= 0.9


def test_with_one_replica_overloaded_the_others_are_used() -> None:
    # Given conversations that are all held by one replica, which is then sent a long prompt
    scene = Scene()
    replicas = Replicas(scene, 2)
    ids = {sid: [sid] * 700 for sid in range(1, 9)}
    for sid, prompt in ids.items():
        scene.submit(sid, prompt_ids=pack_ids(prompt))
        replicas.tell()
    loaded = replicas.where[1]
    others = [sid for sid, name in replicas.where.items() if name == loaded]
    replicas.stuck.add(loaded)
    scene.submit(100, prompt_ids=pack_ids(ids[1] + [9] * 40_000))
    replicas.tell()
    assert replicas.where[100] == loaded
    # When the next turns come
    for sid in others:
        scene.submit(200 + sid, prompt_ids=pack_ids(ids[sid] + [7] * 50))
        replicas.tell()
    # Then they do not wait for it
    assert {replicas.where[200 + sid] for sid in others} == set(replicas.inboxes) - {loaded}


def test_a_hit_that_spares_less_than_the_prompts_before_it_is_not_followed() -> None:
    # Given a replica that holds 64 tokens, and has 240 others to compute
    scene = Scene()
    replicas = Replicas(scene, 2)
    shared = list(range(64))
    scene.submit(1, prompt_ids=pack_ids(shared + [1] * 40))
    replicas.tell()
    scene.submit(2, prompt_ids=pack_ids(shared + [2] * 240))
    # When another prompt begins with these
    scene.submit(3, prompt_ids=pack_ids(shared + [3] * 40))
    replicas.tell()
    # Then it does not wait for the others
    assert replicas.where[1] == replicas.where[2] != replicas.where[3]


def test_replicas_that_keep_no_prefixes_still_get_what_begins_alike() -> None:
    scene = Scene()
    workers = {f"w{number}": scene.worker(f"w{number}", **SIZES, kv_dtype="") for number in range(8)}
    prompt = list(range(1_000))
    for turn in range(4):
        scene.submit(turn, prompt_ids=pack_ids(prompt + [turn] * 10))
        for name in workers:
            runs = [RowKey("g", run.submit.sid) for run in workers[name].of(Run)]
            scene.dispatcher.report(name, report(9, free_blocks=16_384, ended=runs), scene.now)
    assert sorted(len(inbox.of(Run)) for inbox in workers.values()) == [0] * 7 + [4]


def test_what_was_evicted_is_not_looked_for_there() -> None:
    scene = Scene()
    replicas = Replicas(scene, 2)
    prompt = list(range(700))
    scene.submit(1, prompt_ids=pack_ids(prompt))
    replicas.tell()
    home = replicas.where[1]
    replicas.most_names = 0
    replicas.tell()
    other = ({*replicas.inboxes} - {home}).pop()
    scene.dispatcher.report(
        other, report(9, free_blocks=16_384, cached=names_of(prompt), cost=COST), scene.now
    )
    scene.submit(2, prompt_ids=pack_ids([*prompt, *range(100)]))
    replicas.tell()
    assert replicas.where[2] == other


def test_another_tenants_prefix_is_nobodys_hit() -> None:
    scene = Scene()
    replicas = Replicas(scene, 8)
    prompt = pack_ids(list(range(1_000)))
    scene.submit(1, prompt_ids=prompt)
    replicas.tell()
    for number in range(40):
        scene.submit(10 + number, prompt_ids=prompt, tenant=f"tenant {number}")
        scene.silent_for(STEP_MS)
        replicas.tell()
    assert len({replicas.where[10 + number] for number in range(40)}) >= 4
