"""Fuzzes the engine: random requests, cancels, pauses and failures, with a scripted runner or the demo model.

`python -m bench.fuzz.engine [--seconds N] [--seed S] [--model]`. The first trial has seed S, each further one
the next; a failure prints the seed, what was done, and what went wrong. A seed fixes all but how long the
compilation of a grammar takes.
"""

import argparse
import logging
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path

from bench.fuzz.engine_model import Model
from bench.fuzz.engine_requests import PIECES, Vocabulary
from bench.fuzz.engine_trial import Trial
from gpuworker.engine.plan import Runner
from gpuworker.engine.scripted_runner import ScriptedRunner
from tests.engine.support import byte_tokenizer

PROGRESS_S = 5.0
RUNS = [
    b" \xe2",
    b"\x82\xac \xe2",
    b"\xf0\x9f\x98",
    b"\x80b",
    b"\x80\x80",
    b'{"',
    b'": ',
    b"abab",
    b"\xe2\x80\x8d",
]
PADDING = 5  # ids of the model that the tokenizer does not know


def scripted_model(folder: Path) -> Model:
    """Tokens of bytes and of parts of characters; the output echoes the prompt, as far as masks allow."""
    tokenizer = byte_tokenizer(*RUNS)
    tokenizer.add_special_tokens(["<|stop|>", "<|tool|>"])
    path = folder / "tokenizer.json"
    tokenizer.save(str(path))
    vocab_size = tokenizer.get_vocab_size() + PADDING

    def runner_make(blocks: int, host_blocks: int, max_rows: int) -> Runner:
        return ScriptedRunner(vocab_size=vocab_size)

    return Model(
        tokenizer_path=path,
        tokenizer=tokenizer,
        vocabulary=Vocabulary(vocab_size, {piece: list(piece.encode()) for piece in PIECES}),
        eos_ids=frozenset(tokenizer.token_to_id(name) for name in ("<|end|>", "<|stop|>")),
        runner_make=runner_make,
        max_context_tokens=400,
        longest_output=60,
        requests=12,
    )


def fuzz(model: Model, seed: int, seconds: float) -> int:
    """Exit status: 1 when a trial failed."""
    begun = told = time.monotonic()
    trials = 0
    outcomes: Counter[str] = Counter()
    while (now := time.monotonic()) - begun < seconds:
        if now - told >= PROGRESS_S:
            told = now
            print(f"{now - begun:6.0f} s  {_summary(trials, outcomes, now - begun)}", flush=True)
        trial = None
        try:
            trial = Trial(model, seed + trials)
            trial.run()
        except Exception:
            print("\n".join(trial.log if trial is not None else []))
            print(traceback.format_exc())
            print(f"seed {seed + trials} failed; again: python -m bench.fuzz.engine --seed {seed + trials}")
            return 1
        trials += 1
        outcomes += trial.outcomes
    print(f"no failure, seeds {seed} to {seed + trials - 1}")
    print(_summary(trials, outcomes, time.monotonic() - begun))
    return 0


def _summary(trials: int, outcomes: Counter[str], elapsed_s: float) -> str:
    requests = outcomes.total()
    shares = ", ".join(f"{name} {count / max(1, requests):.0%}" for name, count in outcomes.most_common())
    return f"{trials} trials, {trials / elapsed_s:.1f}/s, {requests} requests: {shares}"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument(
        "--seed", type=int, default=None, help="of the first trial; by default from the clock"
    )
    parser.add_argument("--model", action="store_true", help="the demo model instead of the scripted runner")
    given = parser.parse_args(arguments)
    seed = time.time_ns() // 1_000_000 if given.seed is None else given.seed
    print(f"seed {seed}", flush=True)
    logging.disable(logging.ERROR)  # rows fail here by design
    with tempfile.TemporaryDirectory() as folder:
        if given.model:
            from bench.fuzz.engine_demo import demo_model  # torch: loaded only when it is asked for

            return fuzz(demo_model(), seed, given.seconds)
        return fuzz(scripted_model(Path(folder)), seed, given.seconds)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
