"""Output under a grammar is always what was asked for."""

import json
import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from gpuworker.engine.grammar import GrammarCompiler, GrammarError
from tests.engine.grammars import (
    CHOICES,
    END,
    EOS_IDS,
    PERSON,
    SCHEMAS,
    STOP,
    TOKENIZER,
    TOOL,
    TREE,
    VOCAB_SIZE,
    allowed,
    compiled,
    conforms,
    follow,
    sample,
)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    TOKENIZER.save(str(path))
    return path


@pytest.fixture(scope="module")
def compiler(path: Path) -> Iterator[GrammarCompiler]:
    compiler = GrammarCompiler(path, VOCAB_SIZE, EOS_IDS)
    yield compiler
    compiler.close()


# -- JSON -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("schema", SCHEMAS, ids=range(len(SCHEMAS)))
def test_anything_sampled_under_a_schema_conforms_to_it(
    compiler: GrammarCompiler, schema: dict[str, Any]
) -> None:
    state = compiled(compiler, "json_schema", json.dumps(schema))
    for seed in range(25):
        chance = random.Random(seed)
        ids = sample(state.copy(), chance, chance.randrange(60))
        assert conforms(json.loads(TOKENIZER.decode(ids)), schema)


def test_schemas_may_refer_to_themselves(compiler: GrammarCompiler) -> None:
    state = compiled(compiler, "json_schema", json.dumps(TREE))
    for seed in range(25):
        value = json.loads(TOKENIZER.decode(sample(state.copy(), random.Random(seed), 40)))
        while value is not None:
            assert set(value) == {"v", "next"}
            value = value["next"]


def test_a_json_object_is_always_an_object(compiler: GrammarCompiler) -> None:
    state = compiled(compiler, "json_object")
    for seed in range(50):
        assert isinstance(json.loads(TOKENIZER.decode(sample(state.copy(), random.Random(seed), 40))), dict)


@pytest.mark.parametrize("seed", range(15))
def test_a_text_that_was_cut_off_could_have_gone_on(compiler: GrammarCompiler, seed: int) -> None:
    # Given an output under a schema
    chance = random.Random(seed)
    state = compiled(compiler, "json_schema", json.dumps(PERSON))
    ids = sample(state.copy(), chance, 50)
    # When it is cut at any token
    for cut in range(0, len(ids), 3):
        rest = sample(follow(state.copy(), ids[:cut]), chance, 5)
        # Then some end makes it whole
        assert conforms(json.loads(TOKENIZER.decode(ids[:cut] + rest)), PERSON)


def test_blanks_between_json_tokens_are_few(compiler: GrammarCompiler) -> None:
    state = compiled(compiler, "json_schema", json.dumps(PERSON))
    follow(state.copy(), list(b'{\n        "name": "x",\n        "age": 1'))
    for blanks in (b"{  ", b"{\n\n", b"{\n" + b" " * 65):
        with pytest.raises(GrammarError):
            follow(state.copy(), list(blanks))


# -- expressions and choices ------------------------------------------------------------------------------

EXPRESSIONS = [
    r"\d{4}-\d\d-\d\d",
    r"(yes|no)( please)?",
    r"a/b\n\"c",
    "[^a]{3}",
    r"é+😀?",
    r"^x[yz]*$",
    r".{0,5}",
]


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_the_whole_output_matches_an_expression(compiler: GrammarCompiler, expression: str) -> None:
    state = compiled(compiler, "regex", expression)
    for seed in range(25):
        text = TOKENIZER.decode(sample(state.copy(), random.Random(seed), 12))
        assert re.fullmatch(expression, text), text


def test_the_output_is_one_of_the_choices_and_can_be_each(compiler: GrammarCompiler) -> None:
    state = compiled(compiler, "choice", json.dumps(CHOICES))
    sampled = {TOKENIZER.decode(sample(state.copy(), random.Random(seed), 30)) for seed in range(60)}
    assert sampled <= set(CHOICES)
    for choice in CHOICES:
        assert set(allowed(follow(state.copy(), list(choice.encode())))) >= EOS_IDS


def test_an_empty_choice_ends_the_output_at_once(compiler: GrammarCompiler) -> None:
    assert set(allowed(compiled(compiler, "choice", '["", "ab"]'))) >= EOS_IDS
    assert set(allowed(compiled(compiler, "choice", '[""]'))) == EOS_IDS


# -- masks ------------------------------------------------------------------------------------------------


def test_every_end_id_is_allowed_where_the_text_may_end_and_nowhere_else(compiler: GrammarCompiler) -> None:
    state = compiled(compiler, "regex", "ab+")
    assert len(state.mask()) == (VOCAB_SIZE + 7) // 8
    assert allowed(state) == [ord("a")]
    follow(state, list(b"ab"))
    assert set(allowed(state)) == {ord("b"), *EOS_IDS}
    assert not state.is_complete
    state.accept(STOP)
    assert state.is_complete


def test_a_text_is_complete_when_nothing_more_can_follow(compiler: GrammarCompiler) -> None:
    state = follow(compiled(compiler, "choice", '["abc", "ab"]'), list(b"ab"))
    assert not state.is_complete
    state.accept(ord("c"))
    assert state.is_complete
    assert set(allowed(state)) == EOS_IDS


def test_a_mask_holds_every_token_that_fits(compiler: GrammarCompiler) -> None:
    state = compiled(compiler, "choice", '["abcd", "abx"]')
    assert set(allowed(state)) == {ord("a"), TOKENIZER.token_to_id("abc")}


def test_special_and_padding_ids_are_never_allowed(compiler: GrammarCompiler) -> None:
    ids = allowed(compiled(compiler, "regex", r"(.|\n)*"))
    assert TOOL not in ids
    assert max(ids) < TOKENIZER.get_vocab_size()
    assert set(b"abc {") | EOS_IDS <= set(ids)


@pytest.mark.parametrize("vocab_size", [250, END, END + 1, 4_096])
def test_masks_have_the_size_of_the_models_vocabulary(path: Path, vocab_size: int) -> None:
    compiler = GrammarCompiler(path, vocab_size, frozenset({END, 5_000}))
    state = follow(compiled(compiler, "regex", "a|ab*"), [ord("a")])
    assert len(state.mask()) == (vocab_size + 7) // 8
    assert set(allowed(state)) == {ord("b")} | ({END} if vocab_size > END else set())
    compiler.close()


def test_copies_are_independent(compiler: GrammarCompiler) -> None:
    state = compiled(compiler, "choice", '["aa", "ab"]')
    other = follow(state.copy(), [ord("a")])
    follow(other, [ord("b")])
    assert other.is_complete
    assert allowed(state) == [ord("a")]


def test_a_token_that_the_mask_forbids_is_an_error(compiler: GrammarCompiler) -> None:
    state = compiled(compiler, "regex", "ab")
    with pytest.raises(GrammarError):
        state.accept(ord("b"))
    with pytest.raises(GrammarError):
        state.mask()
    assert not state.is_complete


def test_a_text_no_token_can_continue_is_an_error(path: Path) -> None:
    # Given a model whose vocabulary ends before the letter that must follow
    compiler = GrammarCompiler(path, ord("b"), frozenset())
    state = follow(compiled(compiler, "regex", "ab"), [ord("a")])
    with pytest.raises(GrammarError, match="no token"):
        state.mask()
    compiler.close()


# -- the demo model's tokenizer ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def demo(smollm2: Path) -> Iterator[tuple[GrammarCompiler, Tokenizer]]:
    tokenizer = Tokenizer.from_file(str(smollm2 / "tokenizer.json"))
    ends = frozenset(tokenizer.token_to_id(name) for name in ("<|im_end|>", "<|endoftext|>"))
    compiler = GrammarCompiler(smollm2 / "tokenizer.json", tokenizer.get_vocab_size() + 64, ends)
    yield compiler, tokenizer
    compiler.close()


@pytest.mark.parametrize(
    ("kind", "text", "check"),
    [
        ("json_schema", json.dumps(PERSON), lambda text: conforms(json.loads(text), PERSON)),
        ("json_object", "", lambda text: isinstance(json.loads(text), dict)),
        ("regex", r"[a-zé😀]{1,20}", lambda text: re.fullmatch(r"[a-zé😀]{1,20}", text)),
        ("choice", json.dumps(CHOICES), CHOICES.__contains__),
    ],
)
def test_the_demo_models_tokenizer_keeps_to_grammars(
    demo: tuple[GrammarCompiler, Tokenizer], kind: str, text: str, check: Callable[[str], object]
) -> None:
    compiler, tokenizer = demo
    state = compiled(compiler, kind, text)
    out = [tokenizer.token_to_id(char) for char in ("<|im_end|>", "<|endoftext|>", *'"}]0e:,')]
    for seed in range(8):
        ids = sample(state.copy(), random.Random(seed), 15, out=out)
        assert max(ids, default=0) < tokenizer.get_vocab_size()
        assert check(tokenizer.decode(ids))
