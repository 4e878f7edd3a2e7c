"""No policy reads a clock, draws its own randomness, or touches the world: all of that is an argument."""

import ast
import sys
from pathlib import Path

import pytest

import policy

FOLDER = Path(policy.__file__).parent
WORLD = {
    "asyncio", "concurrent", "ctypes", "io", "logging", "multiprocessing", "os", "pathlib", "secrets",
    "selectors", "shutil", "signal", "socket", "ssl", "subprocess", "tempfile", "threading", "time", "urllib",
}  # fmt: skip
READINGS = {
    ("datetime", "now"), ("datetime", "today"), ("datetime", "utcnow"), ("date", "today"),
    ("uuid", "uuid1"), ("uuid", "uuid4"),
}  # fmt: skip
FROM_RANDOM = {"Random"}  # the type of the argument; the module's functions share one hidden state


def impurities(tree: ast.AST) -> list[str]:
    found = []
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                found += [alias.name for alias in names if _is_foreign(alias.name) or alias.name == "random"]
            case ast.ImportFrom(module=str(module), names=names):
                found += [module] if _is_foreign(module) else []
                found += [f"{module}.{n.name}" for n in names if (module, n.name) in READINGS]
                found += [
                    f"random.{n.name}" for n in names if module == "random" and n.name not in FROM_RANDOM
                ]
            case ast.Attribute(value=value, attr=attr) if (_last_name(value), attr) in READINGS:
                found.append(ast.unparse(node))
            case ast.Call(func=ast.Name(id="open" | "print" | "input" as name)):
                found.append(name)
    return found


def _last_name(expression: ast.expr) -> str:
    return ast.unparse(expression).rpartition(".")[2]


def _is_foreign(module: str) -> bool:
    top = module.partition(".")[0]
    return top in WORLD or (top not in sys.stdlib_module_names and top != "policy")


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.py")), ids=lambda path: path.stem)
def test_a_policy_is_pure(path: Path) -> None:
    assert impurities(ast.parse(path.read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize(
    "code",
    [
        "import time",
        "import random",
        "import numpy",
        "from random import choice",
        "from os.path import join",
        "datetime.now(UTC)",
        "datetime.datetime.now(UTC)",
        "from uuid import uuid4",
        "open('x')",
    ],
)
def test_what_is_not_pure_is_found(code: str) -> None:
    assert impurities(ast.parse(code))
