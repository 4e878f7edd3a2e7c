"""Fetches the third-party browser files that are committed under `static/vendor/`, or checks them.

    python frontend/vendor.py          fetch again with `npm pack` and rewrite vendor.json
    python frontend/vendor.py --check  compare the committed files with vendor.json; exit 1 when they differ

There is no build step: a package's own minified file is copied as it is, with its licence and SHA-256.
"""

import hashlib
import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

VENDOR = Path(__file__).resolve().parent / "static" / "vendor"
RECORD = VENDOR / "vendor.json"
PACKAGES = {
    "uplot": {
        "version": "1.6.32",
        "licence": "MIT",
        "files": {
            "package/dist/uPlot.iife.min.js": "uPlot.iife.min.js",
            "package/dist/uPlot.min.css": "uPlot.min.css",
            "package/LICENSE": "LICENSE",
        },
    },
}


def vendor_fetch() -> None:
    record: dict[str, Any] = {}
    for name, package in PACKAGES.items():
        folder = VENDOR / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        with tempfile.TemporaryDirectory() as scratch:
            archive = _pack(f"{name}@{package['version']}", Path(scratch))
            with tarfile.open(archive) as tar:
                for source, target in package["files"].items():  # type: ignore[attr-defined]
                    member = tar.extractfile(source)
                    if member is None:
                        raise FileNotFoundError(f"{name} {package['version']} holds no file {source}")
                    (folder / target).write_bytes(member.read())
        record[name] = {
            "version": package["version"],
            "licence": package["licence"],
            "sha256": {path.name: _digest(path) for path in sorted(folder.iterdir())},
        }
    RECORD.write_text(json.dumps(record, indent=2) + "\n")


def vendor_differences() -> list[str]:
    """Committed files that are missing, unrecorded or not what vendor.json says."""
    record = json.loads(RECORD.read_text())
    recorded = {
        f"{name}/{file}": digest
        for name, package in record.items()
        for file, digest in package["sha256"].items()
    }
    present = {
        path.relative_to(VENDOR).as_posix(): _digest(path) for path in VENDOR.glob("*/**/*") if path.is_file()
    }
    return sorted(
        name for name in recorded.keys() | present.keys() if recorded.get(name) != present.get(name)
    )


def _pack(spec: str, folder: Path) -> Path:
    npm = shutil.which("npm")
    if npm is None:
        raise FileNotFoundError("npm is needed to fetch vendored files; the committed ones need nothing")
    subprocess.run([npm, "pack", "--silent", spec], cwd=folder, check=True, stdout=subprocess.DEVNULL)  # noqa: S603
    return next(folder.glob("*.tgz"))


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def main(arguments: list[str]) -> int:
    if arguments == ["--check"]:
        differences = vendor_differences()
        for name in differences:
            print(f"differs from vendor.json: {name}", file=sys.stderr)  # noqa: T201
        return 1 if differences else 0
    vendor_fetch()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
