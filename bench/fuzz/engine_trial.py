"""One trial: an engine of random size lives through random requests, cancels and pauses, and is checked.

What must hold: it never raises, hangs or loses a block; a request that is not taken is told why; every other
one ends exactly once; its text is what a plain reading of its ids gives, cut at the first stop string.
"""

import threading
from collections import Counter
from dataclasses import dataclass, field
from random import Random

import msgspec

from bench.fuzz.engine_model import Model, WatchedRunner
from bench.fuzz.engine_reading import expected_text, fits
from bench.fuzz.engine_requests import RequestMaker, is_absurd
from gpuworker.engine.engine import CacheOptions, Engine, Unservable
from gpuworker.engine.output import GatewayOutput, StepOutput
from gpuworker.engine.plan import SequenceKey
from gpuworker.wire.messages import RowKey, Submit, unpack_ids
from policy.pacing import StepPacer

GATEWAYS = ("aa", "bb")
MAX_STEPS = 20_000
GRAMMAR_TIMEOUT_S = 30.0
REASONS = {"stop", "length", "cancelled", "deadline", "error", "gateway_lost"}
DULL = {"sid", "request_id", "attempt", "model", "digest", "prompt", "sampling", "stop"}
SILENT = {"cancelled", "gateway_lost"}  # what was held back is not shown


@dataclass
class Shown:
    """What a gateway saw of one choice."""

    text: str = ""
    tokens: int = 0
    reason: str = ""


@dataclass
class Life:
    """One request as it went."""

    submit: Submit
    choices: dict[int, Shown] = field(default_factory=dict)
    ends: int = 0
    is_refused: bool = False
    reason: str = ""


class Trial:
    """`run` raises AssertionError, or whatever the engine raised; `log` then tells what was done."""

    def __init__(self, model: Model, seed: int) -> None:
        self.log: list[str] = []
        self._chance = chance = Random(seed)
        self._model = model
        self._now = 0.0
        blocks, host_blocks = chance.choice([3, 8, 64]), chance.choice([0, 0, 16])
        max_rows = chance.choice([1, 3, 16])
        self._runner = WatchedRunner(model.runner_make(blocks, host_blocks, max_rows))
        cache = CacheOptions(
            secret=b"fuzz",
            is_shared=chance.random() < 0.7,
            host_blocks=host_blocks,
            recovery=chance.choice(["auto", "recompute", "swap"]) if host_blocks else "auto",
        )
        self._engine = Engine(
            self._runner,
            model.tokenizer_path,
            blocks=blocks,
            max_rows=max_rows,
            max_context_tokens=model.max_context_tokens,
            pacer=StepPacer(chance.choice([20.0, 100.0])) if chance.random() < 0.5 else None,
            eos_ids=model.eos_ids,
            cache=cache,
            max_step_tokens=chance.choice([16, 48, 512]),
        )
        self._blocks = blocks
        self._woken = threading.Event()
        self._engine.wake = self._woken.set
        self._maker = RequestMaker(chance, model.vocabulary, longest=model.longest_output)
        self._coming = chance.randint(1, model.requests)
        self._lives: dict[RowKey, Life] = {}
        self._held: set[RowKey] = set()
        self._cancelled: set[RowKey] = set()
        self.log.append(f"engine: {blocks} blocks, {max_rows} rows, {cache}")

    @property
    def outcomes(self) -> Counter[str]:
        """How many requests ended in which way."""
        return Counter("refused" if life.is_refused else life.reason for life in self._lives.values())

    def run(self) -> None:
        try:
            for _ in range(MAX_STEPS):
                self._act()
                if not self._engine.has_work() and not self._wait():
                    break
                self._see(self._engine.step(self._clock, self._act))
                self._engine.check_integrity()
            else:
                raise AssertionError("the engine makes no progress")
            self._check()
        finally:
            self._engine.close()

    def _clock(self) -> float:
        self._now += self._chance.random() * 5
        return self._now

    def _wait(self) -> bool:
        """Something happens later although there is no work now. False at the end of the trial."""
        open_rows = [row for row, life in self._lives.items() if not life.ends and not life.is_refused]
        if self._coming or self._held.intersection(open_rows):
            return True
        if not open_rows:
            return False
        assert any(self._lives[row].submit.grammar for row in open_rows), "a row waits for nothing"
        assert self._woken.wait(GRAMMAR_TIMEOUT_S), "a grammar is never compiled"
        self._woken.clear()
        return True

    # -- what happens -------------------------------------------------------------------------------------

    def _act(self) -> None:
        chance = self._chance
        while self._coming and chance.random() < 0.4:
            self._coming -= 1
            self._submit()
        rows = [row for row, life in self._lives.items() if not life.ends]
        if rows and chance.random() < 0.01:
            row = chance.choice(rows)
            reason = chance.choice(["cancelled", "deadline", "error"])
            self.log.append(f"cancel {row}: {reason}")
            self._cancelled.add(row)
            self._engine.cancel(row, reason)
        if rows and chance.random() < 0.05:
            self._held.add(held := chance.choice(rows))
            self._engine.hold(held, True)
        if self._held and chance.random() < 0.2:
            self._engine.hold(self._held.pop(), False)
        if chance.random() < 0.0005:
            gateway = chance.choice(GATEWAYS)
            self.log.append(f"gateway {gateway} is lost")
            self._engine.cancel_gateway(gateway, "gateway_lost")

    def _submit(self) -> None:
        row = RowKey(self._chance.choice(GATEWAYS), len(self._lives))
        submit = self._maker.make(row.sid)
        if self._chance.random() < 0.03:
            self._runner.bad.add(row)
        life = self._lives[row] = Life(submit)
        self.log.append(f"submit {row}: {_brief(submit)}")
        before = self._engine.stats()
        problem = self._problem(row, submit)
        assert problem or not is_absurd(submit, self._model.vocabulary.size), "was taken"
        if problem:
            life.is_refused = True
            assert 5 < len(problem) < 500, problem
            after = self._engine.stats()
            assert (after.waiting, after.free_blocks) == (before.waiting, before.free_blocks)

    def _problem(self, row: RowKey, submit: Submit) -> str:
        try:
            self._engine.submit(row, submit, self._now)
        except Unservable as refusal:
            return str(refusal) or "?"
        return ""

    # -- what came of it ----------------------------------------------------------------------------------

    def _see(self, output: StepOutput) -> None:
        for row, code, message in output.refused:
            life = self._lives[row]
            assert not life.is_refused
            assert not life.choices
            assert code == "invalid_grammar"
            assert 5 < len(message) < 500, message
            life.is_refused = True
        for gateway, columns in output.gateways.items():
            self._see_gateway(gateway, columns)

    def _see_gateway(self, gateway: str, columns: GatewayOutput) -> None:
        choices = columns.choices or [0] * len(columns.sids)
        rows = zip(columns.sids, choices, columns.starts, columns.counts, columns.texts, strict=True)
        for sid, choice, start, count, text in rows:
            life = self._lives[RowKey(gateway, sid)]
            shown = life.choices.setdefault(choice, Shown())
            assert not life.is_refused
            assert not life.ends
            assert not shown.reason
            assert start == shown.tokens, "a gap"
            shown.tokens += count
            shown.text += text
        for end in columns.choice_ends:
            shown = self._lives[RowKey(gateway, end.sid)].choices.setdefault(end.choice, Shown())
            assert not shown.reason, "a choice ended twice"
            assert end.output_tokens == shown.tokens
            shown.reason = end.reason
        for ended in columns.ends:
            life = self._lives[RowKey(gateway, ended.sid)]
            life.ends += 1
            life.reason = ended.reason
            assert ended.reason in REASONS, ended
            assert ended.output_tokens == sum(shown.tokens for shown in life.choices.values())
            row = RowKey(gateway, ended.sid)
            if ended.reason == "error" and row not in self._cancelled:
                assert row in self._runner.bad, ended
                assert "the model failed" in ended.message, ended
            assert ended.output_tokens == 0 or life.submit.deadline_ms > 0, ended

    def _check(self) -> None:
        stats = self._engine.stats()
        assert (stats.running, stats.waiting, stats.free_blocks) == (0, 0, self._blocks), stats
        for row, life in self._lives.items():
            assert life.ends + life.is_refused == 1, f"{row} ended {life.ends} times"
            if life.is_refused:
                continue
            if life.submit.n == 1:
                life.choices.setdefault(0, Shown()).reason = life.reason
            assert len(life.choices) == life.submit.n
            for choice, shown in life.choices.items():
                self._check_text(SequenceKey(*row, choice), life.submit, shown)

    def _check_text(self, key: SequenceKey, submit: Submit, shown: Shown) -> None:
        prompt = unpack_ids(submit.prompt)
        positions = self._runner.ids.get(key, {})
        ids = [positions[len(prompt) + at] for at in range(shown.tokens)]
        is_cut = shown.reason != "stop" and shown.reason not in SILENT
        model = self._model
        before, own = expected_text(model.tokenizer, model.eos_ids, prompt, ids, submit, is_cut=is_cut)
        text = before + own
        if shown.reason in SILENT:
            assert text.startswith(shown.text), (key, shown, text)
            return
        if is_cut:  # a long run of bytes that are no characters was shown before the end was known
            assert shown.text.rstrip("\ufffd") == text.rstrip("\ufffd"), (key, shown, text)
        else:
            assert shown.text == text, (key, shown, text)
        if submit.grammar is not None and shown.reason == "stop" and not submit.stop and not submit.stop_ids:
            alone = msgspec.structs.replace(submit, echo=False)
            _, own = expected_text(self._model.tokenizer, self._model.eos_ids, prompt, ids, alone)
            assert fits(submit.grammar, own), (key, shown)


def _brief(submit: Submit) -> str:
    """What is not as usual."""
    parts = []
    for structure in (submit, submit.sampling):
        for named in msgspec.structs.fields(structure):
            value = getattr(structure, named.name)
            if named.name not in DULL and value != named.default and value not in ([], ""):
                parts.append(f"{named.name}={shortened(str(value))}")
    return ", ".join(
        [*parts, f"stop={list(map(shortened, submit.stop))}", f"prompt={unpack_ids(submit.prompt)}"]
    )


def shortened(text: str) -> str:
    return text if len(text) < 200 else f"{text[:40]}… {len(text)} characters"
