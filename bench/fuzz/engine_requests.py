"""Random requests: mostly sensible, some at the edge of what is allowed, some far outside."""

import json
import math
from collections.abc import Sequence
from random import Random

from gpuworker.engine.grammar_source import MAX_TEXT_BYTES
from gpuworker.engine.stop_matcher import MAX_STOP_CHARACTERS, MAX_STOPS
from gpuworker.wire.messages import Grammar, Sampling, Submit, pack_ids, unpack_ids

TENANTS = ("one", "two", "three")
PIECES = [
    "a",
    "b",
    "abab",
    "é",
    "日本",
    "😀",
    "👩‍👩‍👧",
    "e\u0301\u0323",
    "🏳️‍🌈",
    " \n",
    "\ufffd",
    '{"a": 1}',
    "\0",
]
WILD_FLOATS = [math.nan, math.inf, -math.inf, -1.0, -0.0, 1e-308, 1e308, 2.0, -2.0, 1e-7]
WILD_COUNTS = [-(2**63), -1, 0, 1, 2**31, 2**63 - 1]
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "array", "items": {"enum": ["x", None]}}},
    "required": ["a"],
    "additionalProperties": False,
}
GRAMMARS = [
    Grammar(kind="json_object"),
    Grammar(kind="json_schema", text=json.dumps(SCHEMA)),
    Grammar(kind="json_schema", text='{"type": "string", "maxLength": 5}'),
    Grammar(kind="regex", text=r"[a-c]{2,6}|é+😀"),
    Grammar(kind="regex", text=r"(.|\n)*"),
    Grammar(kind="regex", text=""),
    Grammar(kind="choice", text='["yes", "yes please", "日本😀"]'),
]
NO_GRAMMARS = [
    Grammar(kind="xml"),
    Grammar(kind="json_schema", text="{"),
    Grammar(kind="json_schema", text='{"$ref": "#"}'),
    Grammar(kind="json_schema", text='{"type": "integer", "multipleOf": 999983}'),
    Grammar(kind="json_schema", text='{"items":' * 3_000 + "{}" + "}" * 3_000),
    Grammar(kind="regex", text="(" * 300),
    Grammar(kind="regex", text=r"(a{1,999}){1,999}\b"),
    Grammar(kind="regex", text="x" * (MAX_TEXT_BYTES + 1)),
    Grammar(kind="choice", text="[]"),
]


class RequestMaker:
    """`encode` gives ids of a text; ids of `vocab_size` and above do not exist."""

    def __init__(self, chance: Random, vocabulary: "Vocabulary", *, longest: int) -> None:
        self._chance = chance
        self._vocabulary = vocabulary
        self._longest = longest

    def make(self, sid: int) -> Submit:
        chance = self._chance
        grammar = self._grammar()
        return Submit(
            sid=sid,
            request_id=f"fuzz-{sid}",
            attempt=1,
            tenant=chance.choice(TENANTS),
            model="fuzz",
            digest="fuzz",
            klass=chance.choice(["interactive", "interactive", "batch", "unheard-of"]),
            prompt=pack_ids(self._prompt()),
            max_tokens=self._count(chance.randint(1, self._longest)),
            sampling=self._sampling([0] if grammar else [0, 0, 0, 2, 9]),
            stop=self._stops(),
            stop_ids=self._ids(chance.choice([0, 0, 0, 1, 3])),
            ignore_eos=chance.random() < 0.3,
            deadline_ms=chance.choice([600_000] * 12 + [0, -1, 1, chance.randrange(400)]),
            n=chance.choice([1, 1, 1, 1, 1, 2, 3, 5]) if chance.random() < 0.97 else self._count(129),
            echo=chance.random() < 0.2,
            grammar=grammar,
            weight=self._float(chance.choice([0.5, 1.0, 4.0])),
            cache_salt=chance.choice(["", "", "salt"]),
        )

    def _sampling(self, min_tokens: list[int]) -> Sampling:
        chance = self._chance
        return Sampling(
            temperature=self._float(chance.choice([0.0, 0.7, 1.0, 1.8])),
            top_p=self._float(chance.choice([1.0, 0.9, 0.01])),
            top_k=self._count(chance.choice([0, 1, 40])),
            seed=chance.choice([42, chance.getrandbits(64), -1, 0, 2**70]),
            min_p=self._float(chance.choice([0.0, 0.1])),
            repetition_penalty=self._float(chance.choice([1.0, 1.2])),
            presence_penalty=self._float(chance.choice([0.0, 0.5])),
            frequency_penalty=self._float(chance.choice([0.0, -0.5])),
            logit_bias=[
                (token, self._float(chance.uniform(-100, 100)))
                for token in self._ids(chance.choice([0, 0, 0, 2]))
            ],
            min_tokens=self._count(chance.choice(min_tokens)),
            logprobs=self._count(chance.choice([-1, -1, -1, 0, 5, 20])),
            prompt_logprobs=self._count(chance.choice([-1, -1, -1, -1, 0, 3])),
        )

    def _prompt(self) -> list[int]:
        """Random ids, and texts cut anywhere between their tokens."""
        chance = self._chance
        size = (
            chance.choice([1, 2, 7, 16, 17, 40, 100]) if chance.random() < 0.97 else chance.choice([0, 5_000])
        )
        ids: list[int] = []
        while len(ids) < size:
            if chance.random() < 0.3:
                ids += self._ids(1)
            else:
                piece = self._vocabulary.encode(chance.choice(PIECES))
                ids += piece[chance.randrange(len(piece)) if chance.random() < 0.3 else 0 :]
        return ids[:size]

    def _ids(self, count: int) -> list[int]:
        vocab_size = self._vocabulary.size
        wild = [0, vocab_size - 1, vocab_size, 2**32 - 1]
        ids = (self._chance.randrange(vocab_size) for _ in range(count))
        return [self._chance.choice(wild) if self._chance.random() < 0.001 else token for token in ids]

    def _stops(self) -> list[str]:
        chance = self._chance
        if chance.random() < 0.5:
            return []
        if chance.random() < 0.02:
            return chance.choice([["x"] * (MAX_STOPS + 1), ["x" * (MAX_STOP_CHARACTERS + 1)]])
        stops = [
            "".join(chance.choices(PIECES, k=chance.choice([1, 1, 1, 1, 2, 3])))
            for _ in range(chance.randint(1, 4))
        ]
        long = (stops[0] * MAX_STOP_CHARACTERS)[: MAX_STOP_CHARACTERS - 1] + "!"
        return chance.choice([stops, stops, [*stops, ""], [*stops, long], [long] * MAX_STOPS])

    def _grammar(self) -> Grammar | None:
        if self._chance.random() < 0.75:
            return None
        return self._chance.choice(GRAMMARS if self._chance.random() < 0.85 else NO_GRAMMARS)

    def _float(self, sensible: float) -> float:
        return self._chance.choice(WILD_FLOATS) if self._chance.random() < 0.004 else sensible

    def _count(self, sensible: int) -> int:
        return self._chance.choice(WILD_COUNTS) if self._chance.random() < 0.007 else sensible


def is_absurd(submit: Submit, vocab_size: int) -> bool:
    """Whether no engine may take it."""
    prompt, sampling = unpack_ids(submit.prompt), submit.sampling
    floats = [sampling.temperature, sampling.top_p, sampling.min_p, submit.weight]
    floats += [sampling.repetition_penalty, sampling.presence_penalty, sampling.frequency_penalty]
    ids = [*prompt, *submit.stop_ids, *(token for token, _ in sampling.logit_bias)]
    return (
        not prompt
        or max(ids) >= vocab_size
        or not all(map(math.isfinite, [*floats, *(bias for _, bias in sampling.logit_bias)]))
        or min(floats[:4]) < 0
        or min(submit.max_tokens, submit.n, sampling.min_tokens, sampling.top_k) < 0
        or len(submit.stop) > MAX_STOPS
        or max(map(len, submit.stop), default=0) > MAX_STOP_CHARACTERS
    )


class Vocabulary:
    def __init__(self, size: int, encoded: dict[str, Sequence[int]]) -> None:
        self.size = size
        self._encoded = encoded

    def encode(self, piece: str) -> Sequence[int]:
        """One of PIECES."""
        return self._encoded[piece]
