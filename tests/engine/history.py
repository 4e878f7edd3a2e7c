"""Requests for random histories of the scheduler, and each of their choices as its client sees it."""

from functools import lru_cache
from itertools import product
from typing import NamedTuple

import hypothesis.strategies as st

from gpuworker.engine.sequence import Sequence
from gpuworker.wire.messages import RowKey, Sampling, Submit, pack_ids
from policy.prefix import prefix_root
from tests.engine.hashing_runner import expected_ids

STOP_IDS = frozenset({0, 1})
FOREVER_MS = 10**9
# Prompts begin alike, so that tenants find their own cached prefixes and must not find another's.
COMMON = [[3 + (base + at) % 50 for at in range(120)] for base in range(2)]


class Request(NamedTuple):
    common: int
    length: int
    tail: list[int]
    tenant: str
    klass: str
    weight: float
    deadline_ms: int
    choices: int
    max_tokens: int
    stop_ids: frozenset[int]
    seed: int
    prompt_logprobs: int

    @property
    def prompt(self) -> list[int]:
        return COMMON[self.common][: self.length] + self.tail

    def sequences(self, sid: int, *, max_servable_tokens: int, now_ms: float) -> list[Sequence]:
        row = RowKey("gateway", sid)
        submit = Submit(
            sid=sid,
            request_id="",
            attempt=1,
            tenant=self.tenant,
            model="",
            digest="",
            klass=self.klass,
            prompt=pack_ids(self.prompt),
            max_tokens=min(self.max_tokens, max_servable_tokens - len(self.prompt)),
            sampling=Sampling(seed=self.seed, prompt_logprobs=self.prompt_logprobs),
            weight=self.weight,
            n=self.choices,
            deadline_ms=self.deadline_ms,
        )
        made: list[Sequence] = []
        for choice in range(self.choices):
            made.append(
                Sequence(
                    row,
                    submit,
                    choice=choice,
                    parent=made[0] if made else None,
                    max_tokens=submit.max_tokens,
                    stop_ids=self.stop_ids,
                    chain_root=prefix_root(b"secret", self.tenant, "", "", ""),
                    now_ms=now_ms,
                )
            )
        return made


# One draw each: hypothesis is what a history costs most.
PROMPTS = [*product([0, 1], [1, 15, 16, 17, 32, 40, 48, 90], [[], [], [7], [2, 3, 4]])]
CLIENTS = [*product("abc", ["interactive", "interactive", "batch"], [1.0, 3.0], [FOREVER_MS] * 5 + [150, 0])]
OUTPUTS = [*product([1, 1, 2, 3], [1, 2, 20, 70], [frozenset(), STOP_IDS], range(3), [-1, -1, -1, 0])]
REQUESTS = st.builds(
    lambda prompt, client, output: Request(*prompt, *client, *output),
    st.sampled_from(PROMPTS),
    st.sampled_from(CLIENTS),
    st.sampled_from(OUTPUTS),
)


class Choice:
    def __init__(self, sequence: Sequence) -> None:
        self.sequence = sequence
        self.text = _text(
            tuple(sequence.prompt), sequence.sampling.seed, sequence.max_tokens, sequence.stop_ids
        )
        self.seen = 0
        self.cancelled = False
        self.paused_since_ms: float | None = None

    def is_due(self, now_ms: float) -> bool:
        """Whether a step must not find nothing to do."""
        row, parent = self.sequence, self.sequence.parent
        alive = not row.reason and row.deadline_ms > now_ms and not row.held
        return alive and (parent is None or parent.output_len > 0 or bool(parent.reason))

    def check_token(self, token: int) -> None:
        assert not self.cancelled
        assert token == self.text[self.seen], "a row's KV held something else than its own context"
        self.seen += 1

    def check_end(self, now_ms: float) -> None:
        row = self.sequence
        assert not row.block_table
        assert not row.host_blocks
        if row.reason == "cancelled":
            assert self.cancelled
        elif row.reason == "deadline":
            assert row.deadline_ms <= now_ms
        else:
            assert self.seen == len(self.text)
            assert row.reason == ("stop" if self.text[-1] in row.stop_ids else "length")
            assert row.sampling.prompt_logprobs < 0 or row.prompt_reported == row.prompt_len


@lru_cache(maxsize=4096)
def _text(prompt: tuple[int, ...], seed: int, max_tokens: int, stop_ids: frozenset[int]) -> list[int]:
    """All that a row samples when nobody ends it."""
    ids = expected_ids(prompt, seed, max_tokens)
    stops = [at for at, token in enumerate(ids) if token in stop_ids]
    return ids[: stops[0] + 1] if stops else ids
