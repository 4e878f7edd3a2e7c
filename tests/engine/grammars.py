"""For tests of grammars: a tokenizer, schemas, and outputs sampled at random."""

import random
import threading
from collections.abc import Sequence
from typing import Any

from tokenizers import Tokenizer

from gpuworker.engine.grammar import GrammarCompiler, GrammarError, GrammarState
from gpuworker.wire.messages import Grammar, RowKey
from tests.engine.support import byte_tokenizer

VOCAB_SIZE = 300  # beyond the tokenizer's, as in models whose embedding is padded
PIECES = [b'{"', b'": ', b'", "', b"\xe2\x82", b"\xac", b"true}", b"abc", b"  ", b"\n  "]
KEY = RowKey("aa", 1)


def tokenizer_make() -> Tokenizer:
    tokenizer = byte_tokenizer(*PIECES)
    tokenizer.add_special_tokens(["<|stop|>", "<|tool|>"])
    return tokenizer


TOKENIZER = tokenizer_make()
END, STOP, TOOL = (TOKENIZER.token_to_id(name) for name in ("<|end|>", "<|stop|>", "<|tool|>"))
EOS_IDS = frozenset({END, STOP})
OUT = [END, STOP, *b'"}]0e:,a1 .']


def outcome(compiler: GrammarCompiler, grammar: Grammar, key: RowKey = KEY) -> GrammarState | GrammarError:
    ready = threading.Event()
    compiler.start(key, grammar, ready.set)
    assert ready.wait(20), "nothing was said about the grammar"
    [(named, result)] = compiler.take_ready()
    assert named == key
    return result


def compiled(compiler: GrammarCompiler, kind: str, text: str = "") -> GrammarState:
    result = outcome(compiler, Grammar(kind=kind, text=text))
    assert isinstance(result, GrammarState), result
    return result


def allowed(state: GrammarState) -> list[int]:
    mask = state.mask()
    return [at * 8 + bit for at, byte in enumerate(mask) if byte for bit in range(8) if byte >> bit & 1]


def follow(state: GrammarState, ids: list[int]) -> GrammarState:
    for token in ids:
        state.accept(token)
    return state


def sample(
    state: GrammarState, chance: random.Random, free_tokens: int, *, out: Sequence[int] = OUT
) -> list[int]:
    """Random tokens under the mask, then those of `out` first; they lead out of every grammar here."""
    ends = out[: len(EOS_IDS)]
    ids: list[int] = []
    while not state.is_complete:
        choices = allowed(state)
        token = chance.choice(choices)
        if len(ids) >= free_tokens:
            token = next((wanted for wanted in out if wanted in choices), token)
        state.accept(token)
        if token in ends:
            break
        ids.append(token)
        assert len(ids) < 3_000, "no way out of the grammar"
    return ids


PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["a", "b\n", "é"]}, "minItems": 1, "maxItems": 4},
        "score": {"type": ["number", "null"]},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
TREE = {
    "$defs": {
        "node": {
            "type": "object",
            "properties": {
                "v": {"type": "boolean"},
                "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]},
            },
            "required": ["v", "next"],
            "additionalProperties": False,
        }
    },
    "$ref": "#/$defs/node",
}
CHOICES = ["yes", "yes please", "no", 'a"b\\c', "é😀\n", "(x|y)*", " ", "/", "#", "naïve"]
SCHEMAS: list[dict[str, Any]] = [
    PERSON,
    {"type": "array", "items": PERSON, "maxItems": 2},
    {"type": "object"},
    {"type": "string"},
    {"type": "integer", "multipleOf": 7, "minimum": 10, "maximum": 100},
    {"anyOf": [{"type": "boolean"}, {"enum": [1, "x", None]}]},
]


def conforms(value: Any, schema: dict[str, Any]) -> bool:
    """As far as the schemas here go."""
    if "anyOf" in schema:
        return any(conforms(value, branch) for branch in schema["anyOf"])
    if "enum" in schema:
        return value in schema["enum"]
    kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    match value:
        case None | bool():
            return ("null" if value is None else "boolean") in kinds
        case int():
            within = schema.get("minimum", value) <= value <= schema.get("maximum", value)
            return (
                within
                and value % schema.get("multipleOf", 1) == 0
                and not {"integer", "number"}.isdisjoint(kinds)
            )
        case float():
            return "number" in kinds
        case str():
            return "string" in kinds and schema.get("minLength", 0) <= len(value) <= schema.get(
                "maxLength", 10**9
            )
        case list():
            size = schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", 10**9)
            return "array" in kinds and size and all(conforms(item, schema["items"]) for item in value)
    known = schema.get("properties", {})
    named = set(schema.get("required", ())) <= set(value)
    closed = schema.get("additionalProperties", True) or set(value) <= set(known)
    return (
        "object" in kinds
        and named
        and closed
        and all(conforms(value[k], known[k]) for k in known if k in value)
    )
