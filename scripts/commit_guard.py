"""Refuses files that do not belong into the repository: `commit_guard.py large|secrets FILE…`."""

import re
import sys
from pathlib import Path

LARGEST_BYTES = 500_000
# A whole key: eight public characters and more than thirty secret ones, or a private key's first line.
SECRET = re.compile(
    r"sk-slc-[A-Za-z0-9]{8}-[A-Za-z0-9]{32,}|-----BEGIN [A-Z ]*PRIVATE KEY-----$", re.MULTILINE
)


def main(arguments: list[str]) -> int:
    check, *names = arguments
    problems = []
    for path in map(Path, names):
        if check == "large" and path.stat().st_size > LARGEST_BYTES:
            problems.append(f"{path}: {path.stat().st_size} bytes, more than {LARGEST_BYTES}")
        if check == "secrets" and SECRET.search(path.read_text(encoding="utf-8", errors="replace")):
            problems.append(f"{path}: holds an API key or a private key")
    for problem in problems:
        sys.stderr.write(f"{problem}\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
