"""The shape of the repository: the `platform/` source root, and what must import without Django."""

import ast
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FRAMEWORKS = ("django", "channels", "celery", "ninja")
FREE_PACKAGES = (
    "gpuworker",
    "platform/devservices",
    "platform/dispatch",
    "platform/fleetsim",
    "platform/gateway",
    "platform/policy",
)
FREE_MODULES = (
    "billing.connections",
    "billing.contracts",
    "billing.idempotency",
    "billing.ledger",
    "billing.pricing",
    "billing.reaper",
    "billing.usage_lookup",
    "config.environment",
    "modelsvc.contracts",
    "modelsvc.importer",
    "modelsvc.routes",
    "tenants.contracts",
    "tenants.data_keys",
    "tenants.grants",
    "tenants.ids",
    "tenants.keys",
)
BLOCKER = """
import importlib, importlib.abc, sys
class Blocker(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {frameworks!r}:
            raise ImportError(f"{{name}} is forbidden here")
sys.meta_path.insert(0, Blocker())
for name in {modules!r}:
    importlib.import_module(name)
"""


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, check=False, timeout=120
    )


def _modules(package: str) -> list[str]:
    """Every module below a package, but management commands, which are Django's own."""
    folder = ROOT / package
    names = []
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(folder.parent).with_suffix("").parts
        if "management" not in parts and parts[-1] != "__main__":
            names.append(".".join(parts).removesuffix(".__init__"))
    return names


def test_platform_is_no_package() -> None:
    assert not (ROOT / "platform" / "__init__.py").exists()


WHERE_IS_PLATFORM = "import platform; print('platform is', platform.__file__)"


def test_the_standard_platform_module_is_not_shadowed() -> None:
    """From the repository root, as `manage.py` finds it."""
    manage = (
        "import runpy, sys\n"
        "sys.argv = ['manage.py', 'help']\n"
        "try:\n    runpy.run_path('manage.py', run_name='__main__')\n"
        f"finally:\n    {WHERE_IS_PLATFORM}"
    )
    for code in (WHERE_IS_PLATFORM, manage):
        result = _run("-c", code)
        assert f"platform is {sysconfig.get_path('stdlib')}/platform.py" in result.stdout, result.stderr


def test_a_platform_package_would_be_noticed(tmp_path: Path) -> None:
    """The reason for the two tests above."""
    (tmp_path / "platform").mkdir()
    (tmp_path / "platform" / "__init__.py").touch()
    result = subprocess.run(
        [sys.executable, "-c", WHERE_IS_PLATFORM], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert "__init__.py" in result.stdout


@pytest.mark.parametrize("package", FREE_PACKAGES)
def test_a_package_imports_without_django(package: str) -> None:
    modules = _modules(package)
    assert modules
    result = _run("-c", BLOCKER.format(frameworks=FRAMEWORKS, modules=modules))
    assert result.returncode == 0, result.stderr[-2000:]


@pytest.mark.parametrize("module", FREE_MODULES)
def test_a_module_imports_without_django(module: str) -> None:
    result = _run("-c", BLOCKER.format(frameworks=FRAMEWORKS, modules=[module]))
    assert result.returncode == 0, result.stderr[-2000:]


def test_the_blocker_blocks() -> None:
    result = _run("-c", BLOCKER.format(frameworks=FRAMEWORKS, modules=["tenants.models"]))
    assert "is forbidden here" in result.stderr


def test_every_contracts_module_is_free() -> None:
    found = {
        f"{path.parent.name}.contracts"
        for path in [*ROOT.glob("*/contracts.py"), *ROOT.glob("platform/*/contracts.py")]
    }
    for module in sorted(found - set(FREE_MODULES)):
        result = _run("-c", BLOCKER.format(frameworks=FRAMEWORKS, modules=[module]))
        assert result.returncode == 0, result.stderr[-2000:]


def test_modules_say_what_they_are_for() -> None:
    missing = []
    for folder in ("tenants", "billing", "modelsvc", "gpuworker", "platform"):
        for path in (ROOT / folder).rglob("*.py"):
            tree = ast.parse(path.read_text())
            if tree.body and "migrations" not in path.parts and ast.get_docstring(tree) is None:
                missing.append(str(path.relative_to(ROOT)))
    assert missing == []
