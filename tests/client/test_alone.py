"""The client installs alone: it imports nothing but what its own pyproject names."""

import ast
import re
import sys
import tomllib

from tests.client.processes import CLIENT


def imported() -> set[str]:
    """Top-level names, but for the standard library's and its own."""
    names = set()
    for path in CLIENT.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                assert node.module is not None
                assert node.level == 0
                names.add(node.module.partition(".")[0])
    return names - set(sys.stdlib_module_names) - {"sluice_client"}


def test_it_imports_what_it_names() -> None:
    project = tomllib.loads((CLIENT / "pyproject.toml").read_text())["project"]
    named = {re.split(r"[<>=~!\[ ]", dependency)[0] for dependency in project["dependencies"]}
    assert imported() == named


def test_every_module_says_what_it_is_for() -> None:
    paths = sorted(CLIENT.rglob("*.py"))
    assert len(paths) > 20
    assert [path.name for path in paths if ast.get_docstring(ast.parse(path.read_text())) is None] == []
