"""Imports everything that must work without Django, in a process where Django cannot be imported."""

import importlib
import pkgutil
import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FORBIDDEN = {"django", "channels", "celery", "ninja", "daphne", "unfold", "channels_redis"}
PACKAGES = ("policy", "gpuworker", "devservices", "gateway", "dispatch")
MODULES = (
    "tenants.contracts",
    "tenants.keys",
    "tenants.data_keys",
    "tenants.grants",
    "billing.connections",
    "billing.contracts",
    "billing.idempotency",
    "billing.pricing",
    "billing.ledger",
    "billing.prices",
    "billing.reaper",
    "billing.spend",
    "billing.usage_lookup",
    "modelsvc.contracts",
    "modelsvc.routes",
    "modelsvc.importer",
    "config.environment",
)
EXCEPT = ("devservices.management",)  # the command itself is Django's


class Blocker(MetaPathFinder):
    def find_spec(self, fullname: str, path: object, target: object = None) -> ModuleSpec | None:
        del path, target
        if fullname.partition(".")[0] in FORBIDDEN:
            raise ModuleNotFoundError(f"{fullname} must not be imported here", name=fullname)
        return None


def main() -> int:
    sys.path[:0] = [str(ROOT), str(ROOT / "platform")]
    sys.meta_path.insert(0, Blocker())
    names = list(MODULES)
    for package in PACKAGES:
        names.append(package)
        folders = importlib.import_module(package).__path__
        names += [module.name for module in pkgutil.walk_packages(folders, f"{package}.", onerror=_fail)]
    names = [name for name in names if not name.startswith(EXCEPT) and not name.endswith("__main__")]
    for name in names:
        importlib.import_module(name)
    sys.stdout.write(f"{len(names)} modules import without Django\n")
    return 0


def _fail(name: str) -> None:
    if not name.startswith(EXCEPT):
        raise


if __name__ == "__main__":
    sys.exit(main())
