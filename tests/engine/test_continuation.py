"""A row goes on in another engine after any of its tokens: text, reason and counts are those of one that was
never cut."""

import dataclasses
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from gpuworker.engine.engine import Engine, Unservable
from gpuworker.wire.messages import End, Grammar, Submit, pack_ids, unpack_ids
from tests.engine.support import (
    CACHE,
    EOS,
    GATEWAY,
    GREEDY,
    ManualClock,
    PagedEchoRunner,
    key,
    submit_make,
    tokenizer_file,
)

ROW = key(1)
CLOCK = ManualClock()
Make = Callable[[], Engine]


class Part(NamedTuple):
    text: str
    ids: list[int]
    end: End | None


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Make:
    path: Path = tokenizer_file(tmp_path_factory.mktemp("continuation"))

    def build() -> Engine:
        return Engine(
            PagedEchoRunner(),
            path,
            blocks=64,
            max_rows=4,
            max_context_tokens=800,
            pacer=None,
            eos_ids=frozenset({EOS}),
            cache=dataclasses.replace(CACHE),
        )

    return build


def part(engine: Engine, submit: Submit, tokens: int | None = None) -> Part:
    """Until the row's end, or until it lost its replica after so many tokens."""
    engine.submit(ROW, submit, 0)
    text, ids = "", list[int]()
    while tokens is None or len(ids) < tokens:
        output = engine.step(CLOCK)
        engine.check_integrity()
        columns = output.gateways.get(GATEWAY)
        if columns is None:
            time.sleep(0.001)  # a grammar is compiled on another thread
            continue
        for start, count, piece, packed in zip(
            columns.starts,
            columns.counts,
            columns.texts,
            columns.ids or [b""] * len(columns.sids),
            strict=True,
        ):
            assert start == submit.emitted + len(ids)
            assert len(packed) == 4 * count
            ids += unpack_ids(packed)
            text += piece
        if columns.ends:
            return Part(text, ids, columns.ends[0])
    return Part(text, ids, None)


def continued(submit: Submit, ids: list[int]) -> Submit:
    prompt = pack_ids([*unpack_ids(submit.prompt), *ids])
    return replace(submit, prompt=prompt, emitted=len(ids))


def wanting_ids(prompt: str | list[int], **fields: object) -> Submit:
    return replace(submit_make(1, prompt, **fields), wants_ids=True)  # type: ignore[arg-type]


def check(make: Make, submit: Submit, cuts: list[int]) -> None:
    whole = part(make(), submit)
    assert whole.end is not None
    text, ids = "", list[int]()
    for cut in [*cuts, None]:
        if cut is not None and cut >= len(whole.ids):
            continue
        if cut is None or cut > len(ids):
            rest = None if cut is None else cut - len(ids)
            gone_on = part(make(), continued(submit, ids) if ids else submit, rest)
            text, ids, end = text + gone_on.text, ids + gone_on.ids, gone_on.end
    assert (text, ids) == (whole.text, whole.ids)
    assert end is not None
    told = [(e.reason, e.stopped_by, e.prompt_tokens, e.output_tokens) for e in (end, whole.end)]
    assert told[0] == told[1]


texts = st.lists(
    st.sampled_from(
        ["a", "stop", "st", "op", "é", "日", "👩\u200d👩\u200d👧", "🏳️\u200d🌈", "\u0301", "שלום", "\n", " "]
    ),
    min_size=1,
    max_size=12,
).map("".join)


@settings(max_examples=150, deadline=None)
@given(
    texts,
    st.lists(st.integers(1, 40), max_size=3).map(sorted),
    st.sampled_from([(), ("stop",), ("opst", "日\n"), ("👩",)]),
    st.integers(1, 40),
    st.sampled_from([0, 5, 17]),
)
def test_it_says_what_it_would_have_said(
    make: Make, text: str, cuts: list[int], stop: tuple[str, ...], max_tokens: int, min_tokens: int
) -> None:
    sampling = replace(GREEDY, min_tokens=min(min_tokens, max_tokens))
    check(make, wanting_ids(text, stop=stop, max_tokens=max_tokens, sampling=sampling), cuts)


@pytest.mark.parametrize("cut", [1, 2, 7, 12])
def test_a_grammar_goes_on_where_it_was(make: Make, cut: int) -> None:
    grammar = Grammar(kind="regex", text="(ab|cd){6}xy")
    submit = wanting_ids("abcd", max_tokens=40, grammar=grammar)
    whole = part(make(), submit)
    first = part(make(), submit, cut)
    second = part(make(), continued(submit, first.ids))
    assert first.text + second.text == whole.text
    assert second.end is not None
    assert (second.end.reason, second.end.output_tokens) == ("stop", len(whole.ids))


@pytest.mark.parametrize(
    ("prompt", "fields"),
    [
        ([65, 66], {"emitted": 2}),
        ([65, 66], {"emitted": 3}),
        ([65, 66], {"emitted": -1}),
        ([65, 66, 67], {"emitted": 1, "n": 2}),
        ([65, 66, 67], {"emitted": 1, "echo": True}),
        ([65, 66, 67], {"emitted": 2, "max_tokens": 2}),
    ],
)
def test_what_cannot_be_gone_on_with_is_refused(
    make: Make, prompt: list[int], fields: dict[str, object]
) -> None:
    engine = make()
    with pytest.raises(Unservable):
        engine.submit(ROW, replace(submit_make(1, prompt, max_tokens=5), **fields), 0)
    assert not engine.has_work()


def test_a_row_that_nobody_wants_ids_of_has_none(make: Make) -> None:
    engine = make()
    engine.submit(ROW, submit_make(1, "abc", max_tokens=4), 0)
    while engine.has_work():
        for columns in engine.step(CLOCK).gateways.values():
            assert columns.ids == []
