"""Builders for engine tests: tokenizers made of bytes, submissions, and a runner with real paged memory."""

from collections.abc import Callable, Sequence
from pathlib import Path

from tokenizers import Tokenizer, decoders, models

from gpuworker.engine.block_pool import BLOCK_SIZE
from gpuworker.engine.engine import Engine
from gpuworker.engine.output import StepOutput
from gpuworker.engine.plan import Runner, StepPlan
from gpuworker.wire.messages import RowKey, Sampling, Submit, pack_ids

EOS = 256
GATEWAY = "aa"
GREEDY = Sampling(temperature=0.0)


def byte_tokenizer(*runs: bytes) -> Tokenizer:
    """Token i is byte i, the way GPT-2 spells bytes; 256 and on are `runs`, then a special end token."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    letters = {byte: chr(byte) for byte in printable}
    letters |= {byte: chr(256 + index) for index, byte in enumerate(others)}
    spelled = [letters[byte] for byte in range(256)]
    spelled += ["".join(letters[byte] for byte in run) for run in runs]
    tokenizer = Tokenizer(models.BPE({letter: index for index, letter in enumerate(spelled)}, []))
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|end|>"])
    return tokenizer


def sentencepiece_tokenizer() -> Tokenizer:
    """The way Llama 2 and Mistral decode: words with a leading space, bytes as a fallback."""
    words = ["▁the", "▁cat", "s", "▁", "é", "na", "▁日"]
    vocabulary = {f"<0x{byte:02X}>": byte for byte in range(256)}
    vocabulary |= {word: 257 + index for index, word in enumerate(words)} | {"<unk>": 256}
    tokenizer = Tokenizer(models.BPE(vocabulary, [], byte_fallback=True, unk_token="<unk>"))
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(steps)
    return tokenizer


def tokenizer_file(folder: Path) -> Path:
    path = folder / "tokenizer.json"
    byte_tokenizer().save(str(path))
    return path


def submit_make(
    sid: int,
    prompt: Sequence[int] | str,
    *,
    max_tokens: int = 8,
    sampling: Sampling = GREEDY,
    stop: Sequence[str] = (),
    ignore_eos: bool = False,
    deadline_ms: int = 600_000,
) -> Submit:
    ids = list(prompt.encode()) if isinstance(prompt, str) else list(prompt)
    return Submit(
        sid=sid,
        request_id=f"request-{sid}",
        attempt=1,
        tenant="tenant",
        model="model",
        digest="digest",
        klass="interactive",
        prompt=pack_ids(ids),
        max_tokens=max_tokens,
        sampling=sampling,
        stop=list(stop),
        ignore_eos=ignore_eos,
        deadline_ms=deadline_ms,
    )


def key(sid: int, gateway: str = GATEWAY) -> RowKey:
    return RowKey(gateway, sid)


class ManualClock:
    def __init__(self) -> None:
        self.ms = 0.0

    def __call__(self) -> float:
        return self.ms


class PagedEchoRunner:
    """Echoes prompts like ScriptedRunner, but reads them back from paged memory it wrote plan by plan.

    A block given to two rows, a position never computed or a stale table shows as a wrong context here.
    """

    vocab_size = 1 << 31

    def __init__(self, blocks: int) -> None:
        self._memory = [-1] * (blocks * BLOCK_SIZE)
        self._tables: dict[int, list[int]] = {}
        self._prompts: dict[int, list[int]] = {}

    def run(self, plan: StepPlan) -> list[int]:
        for start in plan.starts:
            self._tables[start.slot], self._prompts[start.slot] = [], start.prompt
        for row in plan.rows:
            table = self._tables[row.slot]
            table[row.block_offset :] = row.new_blocks
            for position, token in enumerate(row.tokens, row.start):
                self._memory[self._at(table, position)] = token
        return [self._next(row.slot, row.start + len(row.tokens)) if row.sample else -1 for row in plan.rows]

    def _next(self, slot: int, length: int) -> int:
        context = [self._memory[self._at(self._tables[slot], position)] for position in range(length)]
        prompt = self._prompts[slot]
        expected = [prompt[position % len(prompt)] for position in range(length)]
        assert context == expected, "a row's KV holds something else than its own ids"
        return prompt[length % len(prompt)]

    @staticmethod
    def _at(table: list[int], position: int) -> int:
        return table[position // BLOCK_SIZE] * BLOCK_SIZE + position % BLOCK_SIZE


class RecordingRunner:
    """Passes plans on and keeps what was planned and sampled."""

    def __init__(self, runner: Runner, *, before: Callable[[StepPlan], None] = lambda plan: None) -> None:
        self._runner = runner
        self._before = before
        self.plans: list[StepPlan] = []
        self.outputs: dict[RowKey, dict[int, int]] = {}  # token by position

    @property
    def vocab_size(self) -> int:
        return self._runner.vocab_size

    def run(self, plan: StepPlan) -> list[int]:
        self._before(plan)
        self.plans.append(plan)
        tokens = self._runner.run(plan)
        for row, token in zip(plan.rows, tokens, strict=True):
            if row.sample:
                self.outputs.setdefault(row.key, {})[row.start + len(row.tokens)] = token
        return tokens

    def ids(self, row: RowKey) -> list[int]:
        return [token for _, token in sorted(self.outputs[row].items())]


def run_until_idle(engine: Engine, clock: Callable[[], float], limit: int = 10_000) -> list[StepOutput]:
    outputs = []
    while engine.has_work():
        outputs.append(engine.step(clock))
        engine.check_integrity()
        assert len(outputs) < limit, "the engine makes no progress"
    return outputs


def text_of(outputs: Sequence[StepOutput], row: RowKey) -> str:
    """A row's whole text; checks that the frames are without gaps."""
    text, seen = "", 0
    for output in outputs:
        columns = output.gateways.get(row.gateway)
        if columns is None or row.sid not in columns.sids:
            continue
        at = columns.sids.index(row.sid)
        assert columns.starts[at] == seen
        seen += columns.counts[at]
        text += columns.texts[at]
    return text
