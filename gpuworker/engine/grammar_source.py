"""What a request wants its output to match, in the words of the grammar library, or why it may not.

The library bounds its own work by fuel, with one exception found by measurement: whether a number with
`multipleOf` can exist is decided state by state, which took 4.6 s and 370 MB for 999,983. No torch here.
"""

import json
import math
import re
from decimal import Decimal
from typing import Any

from llguidance import LLParserLimits, regex_to_lark

from gpuworker.wire.messages import Grammar

MAX_TEXT_BYTES = 65_536
MAX_DEPTH = 64
MAX_MULTIPLE = 100_000  # least common multiple of all `multipleOf`, as integers of one scale: 0.3 s, 28 MB
MAX_MESSAGE_CHARACTERS = 300
LIMITS = LLParserLimits(
    max_items_in_row=20_000,  # 2,000 is not enough for an object of 500 optional properties
    initial_lexer_fuel=1_000_000,  # 20 ms
    step_lexer_fuel=200_000,  # 14 ms
    step_max_items=100_000,  # 5 ms
    max_lexer_states=50_000,  # 1 to 2 KB each
    max_grammar_size=200_000,
    precompute_large_lexemes=True,
    verbose_errors=False,
)
# One space, or a line break with indentation: room for every common layout, none for endless blanks.
JSON_OPTIONS = {"whitespace_pattern": " |\n {0,64}", "lenient": False, "coerce_one_of": False}

# A mask holds every token that fits, not only the one the tokenizer would choose for a text known in advance:
# that trusts the tokenizer to encode as it decodes, and answers with an error where it does not.
HEAD = '%llguidance {"no_forcing": true}\n'
ASCII_CLASSES = "d"  # \d is a digit from 0 to 9; \w and \s are any letter and any space
PLAIN_WORDS = {
    "NoExtensionBias": "no text fits",
    "Unable to determine if regex is empty": "patterns that must hold at once are too complex together",
    "oneOf constraints are not supported": "the branches of a oneOf cannot be told apart; use anyOf",
    "Parser Error: Current row has": "too many alternatives at one place",
    "lexer error": "an expression is too complex",
}


class GrammarError(Exception):
    """The grammar cannot be used, or the text can no longer follow it. The message is for the client."""

    code = "invalid_grammar"


def size_problem(grammar: Grammar) -> str:
    if len(grammar.text) > MAX_TEXT_BYTES or len(grammar.text.encode(errors="replace")) > MAX_TEXT_BYTES:
        return f"the grammar is longer than {MAX_TEXT_BYTES} bytes"
    return ""


def grammar_source(grammar: Grammar) -> str:
    """The grammar as the library takes it. Raises GrammarError; the library may still refuse the result."""
    _check_text(grammar.text)
    match grammar.kind:
        case "json_object":
            return _json_source({"type": "object"})
        case "json_schema":
            return _json_source(_schema(grammar.text))
        case "regex":
            return _expression_source(grammar.text)
        case "choice":
            return _expression_source("|".join(map(_literal, _choices(grammar.text))))
    raise GrammarError(f"unknown kind of grammar {grammar.kind!r}")


def readable(problem: str) -> str:
    """The library's complaint without its internals: one line of bounded length."""
    problem = problem.removesuffix("<non-verbose/>").strip()
    if (explained := re.search(r"^error: (.*)$", problem, re.MULTILINE)) is not None:
        problem = explained[1]  # of the expression parser, after a drawing of the place
    problem = re.sub(r"^at \d+\(\d+\): (failed to compile JSON schema: )?", "", problem.partition("\n")[0])
    for beginning, meaning in PLAIN_WORDS.items():
        if problem.startswith(beginning):
            return meaning
    problem = re.sub(r"^invalid regex .* \(in regex\): ", "", problem)
    problem = re.sub(r"; \w+ in regex /.*$|; consider .*$", "", problem)
    return problem[:MAX_MESSAGE_CHARACTERS] or "it cannot be used"


def _json_source(schema: dict[str, Any]) -> str:
    return f"{HEAD}start: %json {json.dumps(schema | {'x-guidance': JSON_OPTIONS})}"


def _expression_source(expression: str) -> str:
    if (len(expression) - len(expression.rstrip("\\"))) % 2:
        raise GrammarError("the expression ends in a backslash that escapes nothing")
    return f"{HEAD}start: /{regex_to_lark(expression, ASCII_CLASSES)}/"


def _schema(text: str) -> dict[str, Any]:
    schema = _json(text, "the schema")
    if not isinstance(schema, dict):
        raise GrammarError("the schema is not a JSON object")
    multiples = _multiples(schema)
    if multiples:
        decimals = max(max(0, -_exponent(value)) for value in multiples)
        scaled = [int(value.scaleb(decimals)) for value in multiples]
        if math.lcm(*scaled) > MAX_MULTIPLE:
            raise GrammarError("the values of multipleOf in the schema are too large or too different")
    return schema


def _choices(text: str) -> list[str]:
    choices = _json(text, "the list of choices")
    if not isinstance(choices, list) or not all(isinstance(choice, str) for choice in choices):
        raise GrammarError("the choices are not a JSON list of strings")
    if not choices:
        raise GrammarError("the list of choices is empty")
    return list(dict.fromkeys(choices))


def _literal(text: str) -> str:
    """An expression that matches this text and nothing else."""
    return "".join(char if char.isascii() and char.isalnum() else f"\\x{{{ord(char):X}}}" for char in text)


def _json(text: str, what: str) -> Any:
    try:
        value = json.loads(text, parse_constant=_no_constant, parse_float=_finite)
    except ValueError as error:
        raise GrammarError(f"{what} is not JSON: {error}") from None
    except RecursionError:
        raise GrammarError(f"{what} is nested more than {MAX_DEPTH} deep") from None
    level, depth = [value], 0
    while level := [child for item in level for child in _children(item)]:
        depth += 1
        if depth > MAX_DEPTH:
            raise GrammarError(f"{what} is nested more than {MAX_DEPTH} deep")
    _check_text(json.dumps(value, ensure_ascii=False))  # halves that were written as escapes
    return value


def _children(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []


def _multiples(schema: dict[str, Any]) -> list[Decimal]:
    found: list[Decimal] = []
    rest: list[Any] = [schema]
    while rest:
        item = rest.pop()
        rest += [child for child in _children(item) if isinstance(child, dict | list)]
        value = item.get("multipleOf") if isinstance(item, dict) else None
        if isinstance(value, int | float) and not isinstance(value, bool) and value > 0:
            number = Decimal(str(value)).normalize()
            if abs(number.adjusted()) > 18 or len(number.as_tuple().digits) > 18:
                raise GrammarError("the values of multipleOf in the schema are too large or too different")
            found.append(number)
    return found


def _exponent(number: Decimal) -> int:
    exponent = number.as_tuple().exponent
    assert isinstance(exponent, int), "infinite numbers were refused"
    return exponent


def _check_text(text: str) -> None:
    if any("\ud800" <= char <= "\udfff" for char in text):
        raise GrammarError("the grammar holds half of a surrogate pair")


def _finite(literal: str) -> float:
    value = float(literal)
    if math.isinf(value):
        raise ValueError(f"{literal} is too large a number")
    return value


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON value")
