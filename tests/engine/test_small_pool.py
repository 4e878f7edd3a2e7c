"""A pool of 64 blocks under 40 requests that want much more: everybody finishes, with the same text."""

import dataclasses
import random
from pathlib import Path

import pytest

from gpuworker.engine.engine import Engine
from gpuworker.engine.output import StepOutput
from gpuworker.engine.preemption import RecoveryMode
from gpuworker.engine.scripted_runner import ScriptedRunner
from gpuworker.wire.messages import Submit
from tests.engine.support import (
    CACHE,
    ManualClock,
    key,
    submit_make,
    text_of,
    tokenizer_file,
)

REQUESTS, ROWS = 40, 16
LONGEST = 300  # output tokens of a choice
# Steps that a stream may stand still, until others have ended and made room. Batch waits for all interactive.
PATIENCE = {"interactive": 2 * LONGEST, "batch": REQUESTS * LONGEST}


def requests_make(seed: int) -> list[tuple[int, Submit]]:
    """(step of arrival, request): three tenants, some prompts shared, some with several choices."""
    randomness = random.Random(seed)
    shared = bytes(randomness.choices(range(97, 123), k=200))
    made = []
    for sid in range(REQUESTS):
        own = bytes(randomness.choices(range(97, 123), k=randomness.randint(1, 300)))
        prompt = shared[: randomness.randint(0, 200)] + own
        submit = submit_make(
            sid,
            list(prompt),
            max_tokens=randomness.randint(1, LONGEST),
            tenant=randomness.choice("abc"),
            klass=randomness.choice(["interactive", "interactive", "batch"]),
            n=randomness.choice([1, 1, 1, 2, 3]),
            deadline_ms=10**9,
        )
        made.append((randomness.randint(0, 400), submit))
    return sorted(made, key=lambda entry: entry[0])


def run(engine: Engine, requests: list[tuple[int, Submit]]) -> list[StepOutput]:
    """Steps until all have ended; checks that nobody stands still."""
    clock, waiting = ManualClock(), list(requests)
    outputs: list[StepOutput] = []
    moved: dict[int, int] = {}  # streams that have begun
    open_sids = set()
    patience = {submit.sid: PATIENCE[submit.klass] for _, submit in requests}
    while waiting or engine.has_work():
        step = len(outputs)
        while waiting and (waiting[0][0] <= step or not engine.has_work()):
            _, submit = waiting.pop(0)
            engine.submit(key(submit.sid), submit, clock())
            open_sids.add(submit.sid)
        output = engine.step(clock)
        outputs.append(output)
        if step % 8 == 0:
            engine.check_integrity()
        for columns in output.gateways.values():
            moved |= dict.fromkeys(columns.sids, step)
            for end in columns.ends:
                assert (end.reason, end.message) == ("length", "")
                del moved[end.sid]
                open_sids.remove(end.sid)
        assert [sid for sid, last in moved.items() if step - last > patience[sid]] == [], "starved"
    assert not open_sids
    return outputs


@pytest.mark.parametrize(("recovery", "seed"), [("recompute", 1), ("swap", 2), ("auto", 3)])
def test_all_finish_with_the_text_of_an_unlimited_pool(
    tmp_path: Path, recovery: RecoveryMode, seed: int
) -> None:
    requests = requests_make(seed)

    def texts(blocks: int, host_blocks: int) -> tuple[dict[tuple[int, int], str], Engine]:
        engine = Engine(
            ScriptedRunner(),
            tokenizer_file(tmp_path),
            blocks=blocks,
            max_rows=ROWS,
            max_context_tokens=64 * 16,
            pacer=None,
            eos_ids=frozenset(),
            cache=dataclasses.replace(CACHE, host_blocks=host_blocks, recovery=recovery),
        )
        outputs = run(engine, requests)
        assert engine.stats().free_blocks == blocks
        found = {
            (submit.sid, choice): text_of(outputs, key(submit.sid), choice)
            for _, submit in requests
            for choice in range(submit.n)
        }
        return found, engine

    small, engine = texts(64, 40)
    unlimited, _ = texts(10_000, 0)
    assert engine.stats().preemptions > 0
    assert (engine.stats().swaps > 0) == (recovery == "swap") or recovery == "auto"
    assert small == unlimited
    for _, submit in requests:
        assert all(len(small[submit.sid, choice]) == submit.max_tokens for choice in range(submit.n))
