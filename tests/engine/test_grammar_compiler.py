"""A grammar that cannot be used is refused in one clear line, and its compilation costs nobody else."""

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuworker.engine.grammar import GrammarCompiler, GrammarError, GrammarState
from gpuworker.engine.plan import SequenceKey
from gpuworker.wire.messages import Grammar, RowKey
from tests.engine.grammars import (
    EOS_IDS,
    KEY,
    TOKENIZER,
    VOCAB_SIZE,
    allowed,
    follow,
    outcome,
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


HARD = [{"pattern": f"(a|b)*a(a|b){{{size}}}"} for size in range(10, 18)]
REFUSED = [
    ("xml", "", "unknown kind of grammar 'xml'"),
    ("json_schema", "{", "the schema is not JSON"),
    ("json_schema", "[1]", "the schema is not a JSON object"),
    ("json_schema", '{"a": NaN}', "NaN is not a JSON value"),
    ("json_schema", '{"minimum": -1e999}', "-1e999 is too large a number"),
    ("json_schema", '{"multipleOf": 1e999}', "1e999 is too large a number"),
    ("json_schema", '{"multipleOf": true}', "multipleOf"),
    ("json_schema", '{"const": "\\ud83d"}', "half of a surrogate pair"),
    ("json_schema", '{"properties": {"\\ud83d": {}}}', "half of a surrogate pair"),
    ("json_schema", '{"type": "foo"}', "Invalid type: foo"),
    ("json_schema", '{"if": {}}', 'Unimplemented keys: ["if"]'),
    ("json_schema", '{"x-guidance": {"lenient": true}, "if": {}}', 'Unimplemented keys: ["if"]'),
    ("json_schema", '{"type": "string", "minLength": 5, "maxLength": 2}', "minLength (5) is greater"),
    ("json_schema", '{"type": "string", "pattern": "("}', "unclosed group"),
    ("json_schema", '{"$ref": "#"}', "no text fits"),
    ("json_schema", '{"$ref": "https://example.com/a"}', "is not present"),
    ("json_schema", '{"items":' * 65 + "{}" + "}" * 65, "nested more than 64 deep"),
    ("json_schema", '{"items":' * 5_000 + "{}" + "}" * 5_000, "nested more than 64 deep"),
    ("json_schema", '{"type": "integer", "multipleOf": 999983}', "values of multipleOf"),
    ("json_schema", '{"allOf": [{"multipleOf": 997}, {"multipleOf": 991}]}', "values of multipleOf"),
    ("json_schema", '{"multipleOf": 1e-400}', "invalid multiple"),
    ("json_schema", '{"oneOf": [{"pattern": "^a"}, {"pattern": "b$"}], "type": "string"}', "use anyOf"),
    ("json_schema", json.dumps({"type": "string", "allOf": HARD}), "too complex together"),
    ("regex", "(a", "unclosed group"),
    ("regex", r"\bx", "lookarounds not supported"),
    ("regex", r"(a)\1", "backreferences are not supported"),
    ("regex", r"[^\s\S]", "no text fits"),
    ("regex", "(" * 20_000 + ")" * 20_000, "nest"),
    ("regex", "é" * 40_000, "longer than 65536 bytes"),
    ("choice", "[]", "the list of choices is empty"),
    ("choice", '["a", 1]', "not a JSON list of strings"),
    ("choice", '"a"', "not a JSON list of strings"),
    ("choice", '["\\ud800"]', "half of a surrogate pair"),
]


@pytest.mark.parametrize(("kind", "text", "message"), REFUSED, ids=range(len(REFUSED)))
def test_what_is_wrong_is_said_in_one_line(
    compiler: GrammarCompiler, kind: str, text: str, message: str
) -> None:
    result = outcome(compiler, Grammar(kind=kind, text=text))
    assert isinstance(result, GrammarError)
    assert message in str(result)
    assert "\n" not in str(result)
    assert len(str(result)) <= 400


# -- compiling --------------------------------------------------------------------------------------------


def slow(multiple: int) -> Grammar:
    """Takes a tenth of a second or more."""
    return Grammar(kind="json_schema", text=json.dumps({"type": "integer", "multipleOf": multiple}))


def eventually(compiler: GrammarCompiler, grammar: Grammar) -> GrammarState:
    for _ in range(200):
        result = outcome(compiler, grammar)
        if isinstance(result, GrammarState):
            return result
        threading.Event().wait(0.05)
    raise AssertionError("never compiled")


def test_a_grammar_known_by_now_is_ready_before_start_returns(compiler: GrammarCompiler) -> None:
    grammar = Grammar(kind="regex", text="known")
    first = outcome(compiler, grammar)
    called: list[int] = []
    compiler.start(KEY, grammar, lambda: called.append(1))
    [(_, second)] = compiler.take_ready()
    assert called == [1]
    assert isinstance(first, GrammarState)
    assert isinstance(second, GrammarState)
    follow(first, list(b"kn"))
    assert allowed(second) == [ord("k")]


def test_two_rows_with_the_same_grammar_wait_for_one_compilation(path: Path) -> None:
    compiler = GrammarCompiler(path, VOCAB_SIZE, EOS_IDS)
    ready = threading.Semaphore(0)
    keys = [SequenceKey("aa", 1, 0), SequenceKey("aa", 1, 1)]
    for key in keys:
        compiler.start(key, slow(9_973), ready.release)
    assert all(ready.acquire(timeout=20) for _ in keys)
    results = dict(compiler.take_ready())
    assert set(results) == set(keys)
    assert len({id(result) for result in results.values()}) == 2
    compiler.close()


def test_a_compilation_that_takes_too_long_is_given_up_and_threads_are_not_used_up(path: Path) -> None:
    # Given as many slow compilations as there are threads, all given up
    compiler = GrammarCompiler(path, VOCAB_SIZE, EOS_IDS, timeout_s=0.03)
    told = threading.Semaphore(0)
    for sid, multiple in enumerate((49_999, 49_993)):
        compiler.start(RowKey("aa", sid), slow(multiple), told.release)
    assert all(told.acquire(timeout=20) for _ in range(2))
    for _, error in compiler.take_ready():
        assert str(error) == "compiling the grammar took longer than 0.03 s"
    # When a further grammar comes, then it is refused at once, while they still run
    busy = outcome(compiler, Grammar(kind="json_object"))
    assert str(busy) == "too many grammars are being compiled; try again later"
    # And once they have ended, it and they can be used
    assert eventually(compiler, Grammar(kind="json_object"))
    assert eventually(compiler, slow(49_999))
    compiler.close()


def test_nothing_is_said_about_a_row_that_was_forgotten(path: Path) -> None:
    compiler = GrammarCompiler(path, VOCAB_SIZE, EOS_IDS)
    told: list[str] = []
    both = threading.Event()
    compiler.start(RowKey("aa", 1), slow(9_967), lambda: told.append("forgotten"))
    compiler.start(RowKey("aa", 2), slow(9_967), both.set)
    compiler.forget(RowKey("aa", 1))
    compiler.forget(RowKey("aa", 3))
    assert both.wait(20)
    assert [key for key, _ in compiler.take_ready()] == [RowKey("aa", 2)]
    assert told == []
    compiler.close()


def test_nobody_is_told_after_the_compiler_was_closed(path: Path) -> None:
    compiler = GrammarCompiler(path, VOCAB_SIZE, EOS_IDS)
    told: list[int] = []
    compiler.start(KEY, slow(9_949), lambda: told.append(1))
    compiler.close()
    threading.Event().wait(0.1)
    assert compiler.take_ready() == []
    assert told == []
