"""First tokens of chats beside another tenant's long outputs, in predicted milliseconds of a CPU worker.

The clock moves by what the scheduler itself predicts, so the figures are exact: no machine is measured here.
"""

import random

import pytest

from gpuworker.engine.budget import PAUSE_MS
from gpuworker.engine.plan import Sampled, SequenceKey, StepResult
from gpuworker.engine.scripted_runner import ScriptedRunner
from gpuworker.engine.sequence import Sequence
from policy.flow import Flow
from policy.pacing import IDLE_FACTOR, StepPacer
from policy.step_cost import StepCost
from tests.engine.scheduler_bench import Bench

TARGET_MS, ALLOWED_MS = 100.0, 90.0
BASE_MS, TOKEN_MS, CONTEXT_MS = 8.0, 0.65, 0.001
CHAT_PROMPT_TOKENS, CHAT_OUTPUT_TOKENS = 256, 32
ALONE_MS = BASE_MS + TOKEN_MS * CHAT_PROMPT_TOKENS  # a chat's first token, when nobody else is there
NOISE_PROMPT_TOKENS, NOISE_OUTPUT_TOKENS, NOISE_ROWS = 64, 400, 50
SETTLED_MS = 3000.0
CHATTING = Flow("chatting", "interactive")


class KnownPacer(StepPacer):
    """Costs are given, not learnt."""

    def __init__(self, row_ms: float) -> None:
        super().__init__(TARGET_MS)
        self._known = StepCost(BASE_MS, row_ms, TOKEN_MS, context_ms=CONTEXT_MS)

    @property
    def cost(self) -> StepCost:
        return self._known

    def allowed_ms(self) -> float:
        return ALLOWED_MS

    def idle_ms(self) -> float:
        return IDLE_FACTOR * TARGET_MS - (TARGET_MS - ALLOWED_MS)


class NoisyBench(Bench):
    """One tenant's backlog never ends, chats of another come and go."""

    def __init__(self, row_ms: float) -> None:
        super().__init__(blocks=4000, max_rows=64, max_step_tokens=512, pacer=KnownPacer(row_ms))
        self.echo = ScriptedRunner()
        self.first_ms: list[float] = []  # after its arrival, of each chat
        self.noise_ms: dict[SequenceKey, float] = {}  # last token of each noisy row
        self.longest_gap_ms = 0.0  # between two of them
        self.noise_tokens = 0
        self.longest_step_ms = 0.0  # in which a chat decodes
        self._sid = self._noise = 0

    def ask(self, tenant: str, prompt_tokens: int, max_tokens: int, arrived_ms: float) -> None:
        self._sid += 1
        self.submit(self._sid, prompt_tokens, max_tokens, tenant=tenant).arrived_ms = arrived_ms

    def step(self) -> None:  # type: ignore[override]
        while self._noise < NOISE_ROWS:
            self._noise += 1
            self.ask("noisy", NOISE_PROMPT_TOKENS, NOISE_OUTPUT_TOKENS, self.now_ms)
        plan = self.scheduler.schedule(self.now_ms)
        took_ms = BASE_MS + sum(self.scheduler.costs.values())
        self.now_ms += took_ms
        if any(
            self.scheduler.sequence(row.key).flow == CHATTING and len(row.tokens) == 1 for row in plan.rows
        ):
            self.longest_step_ms = max(self.longest_step_ms, took_ms)
        sampled = dict(zip((row.key for row in plan.rows), self.echo.run(plan), strict=True))
        self.scheduler.apply(plan, StepResult(sampled, {}), self.now_ms, self)
        for row in self.scheduler.take_finished():
            self._noise -= row.flow.tenant == "noisy"

    def token(self, sequence: Sequence, sampled: Sampled) -> str:
        if sequence.flow.tenant == "noisy":
            last_ms = self.noise_ms.get(sequence.key, self.now_ms)
            self.longest_gap_ms = max(self.longest_gap_ms, self.now_ms - last_ms)
            self.noise_ms[sequence.key] = self.now_ms
            self.noise_tokens += 1
        elif sequence.output_len == 1:
            self.first_ms.append(self.now_ms - sequence.arrived_ms)
        return ""


def chats_run(row_ms: float, every_ms: float, chats: int, output_tokens: int) -> NoisyBench:
    """Chats that arrive at random moments of a step, one every `every_ms`."""
    choose = random.Random(5)
    bench = NoisyBench(row_ms)
    arrivals = [SETTLED_MS + every_ms * at + choose.uniform(0, TARGET_MS) for at in range(chats)]
    while len(bench.first_ms) < chats:
        while arrivals and arrivals[0] <= bench.now_ms:
            bench.ask("chatting", CHAT_PROMPT_TOKENS, output_tokens, arrivals.pop(0))
        bench.step()
    bench.first_ms.sort()
    return bench


def p95(values: list[float]) -> float:
    return values[int(0.95 * len(values))]


@pytest.mark.parametrize("row_ms", [2.0, 3.0, 4.0])
def test_a_lone_chat_waits_for_the_running_step_and_for_its_own_prompt(row_ms: float) -> None:
    bench = chats_run(row_ms, every_ms=4000, chats=60, output_tokens=CHAT_OUTPUT_TOKENS)
    assert p95(bench.first_ms) <= ALONE_MS + ALLOWED_MS + 5
    assert bench.first_ms[-1] <= ALONE_MS + ALLOWED_MS + 20


@pytest.mark.parametrize("row_ms", [2.0, 3.0, 4.0])
def test_chats_beside_chats_wait_for_two_steps_more_at_most_and_the_noise_has_the_rest(row_ms: float) -> None:
    # Given chats that overlap, so that a prompt comes in steps that another chat decodes in
    bench = chats_run(row_ms, every_ms=1000, chats=80, output_tokens=CHAT_OUTPUT_TOKENS)
    assert p95(bench.first_ms) <= ALONE_MS + 2 * ALLOWED_MS + 5
    assert bench.longest_step_ms <= ALLOWED_MS + 1e-6
    # Then noise has all the time that chats, and what steps cost in common, leave it
    left = 1 - (TOKEN_MS * CHAT_PROMPT_TOKENS + row_ms * CHAT_OUTPUT_TOKENS) / 1000 - BASE_MS / ALLOWED_MS
    prompt_ms = TOKEN_MS * NOISE_PROMPT_TOKENS / NOISE_OUTPUT_TOKENS
    token_ms = row_ms + prompt_ms + CONTEXT_MS * (NOISE_PROMPT_TOKENS + NOISE_OUTPUT_TOKENS / 2)
    assert bench.noise_tokens / bench.now_ms >= 0.95 * left / token_ms


@pytest.mark.parametrize(("every_ms", "output_tokens"), [(500, CHAT_OUTPUT_TOKENS), (200, 1)])
def test_a_paused_row_goes_on_within_a_second_or_so_however_many_prompts_come(
    every_ms: float, output_tokens: int
) -> None:
    # Given more chats than the machine can serve
    bench = chats_run(3.0, every_ms, chats=80, output_tokens=output_tokens)
    assert 250 < bench.longest_gap_ms <= PAUSE_MS + 10 * ALLOWED_MS
