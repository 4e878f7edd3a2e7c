"""Readers of recorded traffic: the public traces of Azure (CSV) and of Mooncake (JSON lines).

A file is read line by line, however long it is, plain or compressed with gzip. A line that does not fit its
format is an error with its number: what is read of a trace is never quietly less than its file.
"""

import gzip
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, BinaryIO, Literal, cast

import msgspec

from fleetsim.arrival import PREFIX_TOKENS

TraceFormat = Literal["azure", "mooncake"]
MOONCAKE_BLOCK_TOKENS = 512
LINE_BYTES = 1 << 20
MOST_TOKENS = 10_000_000  # of a prompt or an answer
AZURE_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")

_GZIP_MAGIC = b"\x1f\x8b"
_SUBBLOCKS = MOONCAKE_BLOCK_TOKENS // PREFIX_TOKENS


class TraceError(ValueError):
    """`code` is stable: trace_unreadable, trace_line_too_long, trace_malformed, trace_out_of_order."""

    def __init__(self, code: str, path: Path, line: int, problem: str) -> None:
        super().__init__(f"{path}, line {line}: {problem}" if line else f"{path}: {problem}")
        self.code, self.path, self.line = code, path, line


@dataclass(frozen=True, slots=True)
class TraceRow:
    """`at_us` counts from the first row. `prefix` as in `Arrival`. A request that generated nothing is read
    as one of one token, which is what its prompt's prefill ends with."""

    at_us: int
    prompt_tokens: int
    output_tokens: int
    prefix: tuple[int, ...] = ()


def trace_rows(path: Path, form: TraceFormat) -> Iterator[TraceRow]:
    """The rows of a file in its order, which must be that of time. Raises TraceError when it gets to what is
    wrong."""
    lines = _lines(path)
    row_of = _azure_parser(path, next(lines, (1, b""))[1]) if form == "azure" else _mooncake_row
    first_us: int | None = None
    last_us = 0
    for number, line in lines:
        try:
            row = row_of(line)
        except ValueError as error:  # msgspec's errors are ValueErrors too
            raise TraceError("trace_malformed", path, number, str(error)) from error
        if first_us is None:
            first_us = last_us = row.at_us
        if row.at_us < last_us:
            raise TraceError("trace_out_of_order", path, number, "it is earlier than the line before it")
        last_us = row.at_us
        yield replace(row, at_us=row.at_us - first_us)


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """The lines that are not empty, with their numbers from 1, without their ends."""
    number = 0
    try:
        with _opened(path) as file:
            while line := file.readline(LINE_BYTES + 1):
                number += 1
                if len(line) > LINE_BYTES:
                    raise TraceError("trace_line_too_long", path, number, f"longer than {LINE_BYTES} bytes")
                if line := line.rstrip(b"\r\n"):
                    yield number, line
    except (OSError, EOFError, zlib.error) as error:  # gzip: cut off, or damaged
        raise TraceError("trace_unreadable", path, number, f"cannot be read: {error}") from error


def _opened(path: Path) -> BinaryIO:
    with path.open("rb") as file:
        compressed = file.read(len(_GZIP_MAGIC)) == _GZIP_MAGIC
    return cast(BinaryIO, gzip.open(path, "rb")) if compressed else path.open("rb")


def _azure_parser(path: Path, header: bytes) -> Callable[[bytes], TraceRow]:
    """For the 2023 and 2024 traces: `2023-11-16 18:15:46.6805900,374,44`, in UTC; columns in any order."""
    columns = header.removeprefix(b"\xef\xbb\xbf").decode("utf-8", "replace").split(",")
    missing = [name for name in AZURE_COLUMNS if name not in columns]
    if missing:
        raise TraceError(
            "trace_malformed", path, 1, f"no column {missing[0]}: it needs {','.join(AZURE_COLUMNS)}"
        )
    time_at, prompt_at, output_at = (columns.index(name) for name in AZURE_COLUMNS)

    def row_of(line: bytes) -> TraceRow:
        fields = line.decode("utf-8").split(",")
        if len(fields) != len(columns):
            raise ValueError(f"{len(fields)} fields, not {len(columns)}")
        return TraceRow(
            _microseconds(fields[time_at]),
            _tokens("ContextTokens", fields[prompt_at]),
            _tokens("GeneratedTokens", fields[output_at]),
        )

    return row_of


def _microseconds(text: str) -> int:
    moment = datetime.fromisoformat(text)  # digits beyond microseconds are cut off
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    since = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


def _tokens(name: str, text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= 8 and int(text) <= MOST_TOKENS):
        raise ValueError(f"{name} must be a number of tokens up to {MOST_TOKENS}, not {text[:40]!r}")
    return max(1, int(text))


_Length = Annotated[int, msgspec.Meta(ge=0, le=MOST_TOKENS)]


class _MooncakeLine(msgspec.Struct):
    """`timestamp` in milliseconds; one id for every block of 512 tokens, the last one may be partly full."""

    timestamp: Annotated[float, msgspec.Meta(ge=0, le=1e15)]
    input_length: _Length
    output_length: _Length
    hash_ids: tuple[Annotated[int, msgspec.Meta(ge=0, lt=1 << 32)], ...]


_mooncake_line = msgspec.json.Decoder(_MooncakeLine)


def _mooncake_row(line: bytes) -> TraceRow:
    """Every id becomes those of its full blocks of PREFIX_TOKENS."""
    read = _mooncake_line.decode(line)
    ids = -(-read.input_length // MOONCAKE_BLOCK_TOKENS)
    if len(read.hash_ids) != ids:
        raise ValueError(f"{read.input_length} tokens have {ids} hash_ids, not {len(read.hash_ids)}")
    finer = (block * _SUBBLOCKS + part for block in read.hash_ids for part in range(_SUBBLOCKS))
    prefix = tuple(finer)[: read.input_length // PREFIX_TOKENS]
    return TraceRow(
        round(read.timestamp * 1000), max(1, read.input_length), max(1, read.output_length), prefix
    )
