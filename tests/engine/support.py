"""Builders for engine tests: tokenizers made of bytes, submissions, and a runner with real paged memory."""

from collections.abc import Callable, Sequence
from pathlib import Path

from tokenizers import Tokenizer, decoders, models

from gpuworker.engine.engine import CacheOptions, Engine
from gpuworker.engine.output import StepOutput
from gpuworker.engine.plan import Moves, Runner, Sampled, SequenceKey, StepPlan
from gpuworker.engine.scripted_runner import ScriptedRunner
from gpuworker.wire.messages import Grammar, RowKey, Sampling, Submit, pack_ids

EOS = 256
GATEWAY = "aa"
GREEDY = Sampling(temperature=0.0)
CACHE = CacheOptions(secret=b"test", digest="digest", kv_dtype="test")


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
    tenant: str = "tenant",
    klass: str = "interactive",
    weight: float = 1.0,
    n: int = 1,
    echo: bool = False,
    grammar: Grammar | None = None,
    stop_ids: Sequence[int] = (),
    cache_salt: str = "",
) -> Submit:
    ids = list(prompt.encode()) if isinstance(prompt, str) else list(prompt)
    return Submit(
        sid=sid,
        request_id=f"request-{sid}",
        attempt=1,
        tenant=tenant,
        model="model",
        digest="digest",
        klass=klass,
        prompt=pack_ids(ids),
        max_tokens=max_tokens,
        sampling=sampling,
        stop=list(stop),
        ignore_eos=ignore_eos,
        deadline_ms=deadline_ms,
        stop_ids=list(stop_ids),
        n=n,
        echo=echo,
        grammar=grammar,
        weight=weight,
        cache_salt=cache_salt,
    )


def key(sid: int, gateway: str = GATEWAY) -> RowKey:
    return RowKey(gateway, sid)


class ManualClock:
    def __init__(self) -> None:
        self.ms = 0.0

    def __call__(self) -> float:
        return self.ms


class PagedEchoRunner(ScriptedRunner):
    """Checks, besides echoing, the whole context of a row whenever it samples.

    A block given to two rows, a position never computed or a stale table shows as a wrong context here.
    """

    def __init__(self, *, vocab_size: int = 1 << 31) -> None:
        super().__init__(vocab_size=vocab_size)
        self._histories: dict[int, list[int]] = {}  # by slot

    def run(self, plan: StepPlan) -> list[Sampled]:
        for start in plan.starts:
            self._histories[start.slot] = list(start.tokens)
        sampled = super().run(plan)
        for row in plan.rows:
            history = self._histories[row.slot]
            end = row.start + len(row.tokens)
            history[row.start : end] = row.tokens
            context = [self._at(row.slot, position) for position in range(end)]
            assert context == history[:end], "a row's KV holds something else than its own ids"
        return sampled


class RecordingRunner:
    """Passes plans on and keeps what was planned and sampled."""

    def __init__(self, runner: Runner, *, before: Callable[[StepPlan], None] = lambda plan: None) -> None:
        self._runner = runner
        self._before = before
        self.plans: list[StepPlan] = []
        self.moves: list[Moves] = []
        self.outputs: dict[SequenceKey, dict[int, int]] = {}  # token by position

    @property
    def vocab_size(self) -> int:
        return self._runner.vocab_size

    def move(self, moves: Moves) -> None:
        self.moves.append(moves)
        self._runner.move(moves)

    def run(self, plan: StepPlan) -> list[Sampled]:
        self._before(plan)
        self.plans.append(plan)
        results = self._runner.run(plan)
        for row, result in zip(plan.rows, results, strict=True):
            if row.sample:
                self.outputs.setdefault(row.key, {})[row.start + len(row.tokens)] = result.token
        return results

    def read_blocks(self, blocks: list[int]) -> list[bytes]:
        return self._runner.read_blocks(blocks)

    def write_blocks(self, blocks: list[int], contents: list[bytes]) -> None:
        self._runner.write_blocks(blocks, contents)

    def ids(self, row: RowKey, choice: int = 0) -> list[int]:
        return [token for _, token in sorted(self.outputs[SequenceKey(*row, choice)].items())]


def run_until_idle(engine: Engine, clock: Callable[[], float], limit: int = 10_000) -> list[StepOutput]:
    outputs = []
    while engine.has_work():
        outputs.append(engine.step(clock))
        engine.check_integrity()
        assert len(outputs) < limit, "the engine makes no progress"
    return outputs


def text_of(outputs: Sequence[StepOutput], row: RowKey, choice: int = 0) -> str:
    """A choice's whole text; checks that the frames are without gaps."""
    text, seen = "", 0
    for output in outputs:
        columns = output.gateways.get(row.gateway)
        if columns is None:
            continue
        choices = columns.choices or [0] * len(columns.sids)
        for at, entry in enumerate(zip(columns.sids, choices, strict=True)):
            if entry == (row.sid, choice):
                assert columns.starts[at] == seen
                seen += columns.counts[at]
                text += columns.texts[at]
    return text
