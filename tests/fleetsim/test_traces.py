"""Readers of recorded traffic, on small files in the public formats that the tests write."""

import gzip
import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleetsim.arrival import PREFIX_TOKENS
from fleetsim.traces import LINE_BYTES, TraceError, TraceRow, trace_rows
from fleetsim.workloads import TENANT_ID_SPACE, workload_of

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,109
2023-11-16 18:15:51,4085,0
"""


def mooncake(*rows: tuple[int, int, int, Sequence[int]]) -> str:
    names = ("timestamp", "input_length", "output_length", "hash_ids")
    return "".join(json.dumps(dict(zip(names, row, strict=True))) + "\n" for row in rows)


MOONCAKE = mooncake(
    (27_482, 6955, 52, [*range(46, 58), 2353, 2354]),
    (30_535, 6472, 26, [*range(46, 58), 2366]),
    (30_535, 40, 0, [9000]),
)


@pytest.fixture
def written(tmp_path: Path):
    def write(text: str | bytes, name: str = "trace") -> Path:
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


def test_azure_rows_count_from_the_first_in_whole_microseconds(written):
    assert list(trace_rows(written(AZURE), "azure")) == [
        TraceRow(0, 374, 44),
        TraceRow(4_314_579, 396, 109),
        TraceRow(4_319_410, 4085, 1),
    ]


def test_azure_columns_are_found_by_name_and_times_may_carry_an_offset(written):
    text = (
        "GeneratedTokens,TIMESTAMP,ContextTokens,Extra\r\n"
        "44,2024-05-10 00:00:00.009930+00:00,374,x\r\n"
        "7,2024-05-10 02:00:01+02:00,8,y\r\n"
    )
    assert list(trace_rows(written(text), "azure")) == [TraceRow(0, 374, 44), TraceRow(990_070, 8, 7)]


def test_mooncake_ids_become_those_of_finer_blocks_that_are_full(written):
    first, second, small = trace_rows(written(MOONCAKE), "mooncake")
    assert (first.at_us, second.at_us) == (0, 3_053_000)
    assert (second.prompt_tokens, second.output_tokens) == (6472, 26)
    assert len(first.prefix) == 6955 // PREFIX_TOKENS
    assert first.prefix[:96] == second.prefix[:96] == tuple(range(46 * 8, 58 * 8))  # 12 blocks of 512 tokens
    assert first.prefix[96] != second.prefix[96]
    assert (small.prefix, small.output_tokens) == ((), 1)


@pytest.mark.parametrize(("form", "text"), [("azure", AZURE), ("mooncake", MOONCAKE)])
def test_a_compressed_file_is_read_alike(written, form, text):
    plain = list(trace_rows(written(text), form))
    assert list(trace_rows(written(gzip.compress(text.encode()), "trace.gz"), form)) == plain


@pytest.mark.parametrize(
    ("form", "text", "code", "line"),
    [
        ("azure", "time,in,out\n", "trace_malformed", 1),
        ("azure", "", "trace_malformed", 1),
        ("azure", AZURE + "2023-11-16 18:15:52,7\n", "trace_malformed", 5),
        ("azure", AZURE + "yesterday,7,7\n", "trace_malformed", 5),
        ("azure", AZURE + "2023-11-16 18:15:52,-7,7\n", "trace_malformed", 5),
        ("azure", AZURE + "2023-11-16 18:15:52,99999999999,7\n", "trace_malformed", 5),
        ("azure", AZURE + "\n\n2023-11-16 18:15:47,7,7\n", "trace_out_of_order", 7),
        ("azure", AZURE.encode() + b"2023-11-16 18:15:52,\xff,7\n", "trace_malformed", 5),
        ("mooncake", MOONCAKE + "{\n", "trace_malformed", 4),
        ("mooncake", MOONCAKE + '{"timestamp": 1}\n', "trace_malformed", 4),
        ("mooncake", MOONCAKE + mooncake((40_000, 600, 1, [1])), "trace_malformed", 4),
        ("mooncake", MOONCAKE + mooncake((40_000, 600, 1, [1, 2, 3])), "trace_malformed", 4),
        ("mooncake", MOONCAKE + mooncake((40_000, 600, -1, [1, 2])), "trace_malformed", 4),
        ("mooncake", MOONCAKE + mooncake((1, 600, 1, [1, 2])), "trace_out_of_order", 4),
        ("mooncake", MOONCAKE + "x" * (LINE_BYTES + 1), "trace_line_too_long", 4),
    ],
)
def test_a_line_that_does_not_fit_is_an_error_with_its_number(written, form, text, code, line):
    path = written(text)
    with pytest.raises(TraceError) as wrong:
        list(trace_rows(path, form))
    assert (wrong.value.code, wrong.value.line) == (code, line)
    assert f"{path}, line {line}: " in str(wrong.value)


def test_rows_before_a_wrong_line_are_given_first(written):
    rows = trace_rows(written(MOONCAKE + "{\n"), "mooncake")
    assert [next(rows).prompt_tokens for _ in range(3)] == [6955, 6472, 40]
    with pytest.raises(TraceError):
        next(rows)


@pytest.mark.parametrize("cut", [5, 40, -4])
def test_a_compressed_file_that_is_cut_off_is_no_short_trace(written, cut):
    whole = gzip.compress((AZURE + "2023-11-16 18:15:52,7,7\n" * 1000).encode())
    with pytest.raises(TraceError) as wrong:
        list(trace_rows(written(whole[:cut]), "azure"))
    assert wrong.value.code == "trace_unreadable"


def test_a_damaged_compressed_file_is_an_error(written):
    whole = bytearray(gzip.compress((AZURE + "2023-11-16 18:15:52,7,7\n" * 1000).encode()))
    whole[len(whole) // 2] ^= 0xFF
    with pytest.raises(TraceError):
        list(trace_rows(written(bytes(whole)), "azure"))


def test_a_file_that_is_not_there_is_an_error_of_the_trace(tmp_path):
    with pytest.raises(TraceError) as wrong:
        list(trace_rows(tmp_path / "none.csv", "azure"))
    assert wrong.value.code == "trace_unreadable"


@settings(max_examples=40, deadline=None)
@given(
    gaps_us=st.lists(st.integers(0, 10**10), min_size=1, max_size=30),
    tokens=st.integers(1, 10_000),
    compressed=st.booleans(),
)
def test_what_was_written_as_azure_is_read_again(tmp_path_factory, gaps_us, tokens, compressed):
    moments = [datetime(2023, 11, 16, 18, tzinfo=UTC)]
    for gap_us in gaps_us[1:]:
        moments.append(moments[-1] + timedelta(microseconds=gap_us))
    lines = ["TIMESTAMP,ContextTokens,GeneratedTokens"]
    lines += [f"{moment:%Y-%m-%d %H:%M:%S.%f}0,{tokens},{tokens + 1}" for moment in moments]
    text = "\n".join(lines).encode()
    path = tmp_path_factory.mktemp("azure") / "trace"
    path.write_bytes(gzip.compress(text) if compressed else text)
    sums = [sum(gaps_us[1 : count + 1]) for count in range(len(moments))]
    assert list(trace_rows(path, "azure")) == [TraceRow(at_us, tokens, tokens + 1) for at_us in sums]


TRACE = {"kind": "trace", "name": "recorded", "path": "trace", "format": "mooncake"}


def test_a_trace_is_a_workload_at_its_speed(written):
    folder = written(MOONCAKE).parent
    slow = list(workload_of({"workload": [TRACE | {"start_s": 5.0}]}, folder).arrivals(7))
    fast = list(workload_of({"workload": [TRACE | {"start_s": 5.0, "speed": 4.0}]}, folder).arrivals(7))
    assert [arrival.at_us for arrival in slow] == [5_000_000, 8_053_000, 8_053_000]
    assert [arrival.at_us for arrival in fast] == [5_000_000, 5_763_250, 5_763_250]
    assert [arrival.prompt_tokens for arrival in fast] == [6955, 6472, 40]


def test_a_trace_ends_with_the_workload_and_its_prompts_are_cut(written):
    folder = written(MOONCAKE).parent
    table = TRACE | {"end_s": 3.0, "prompt_most_tokens": 1000}
    (only,) = workload_of({"workload": [table]}, folder).arrivals(7)
    assert (only.prompt_tokens, len(only.prefix)) == (1000, 1000 // PREFIX_TOKENS)


def test_tenants_of_a_trace_share_no_prefix(written):
    rows = [(number, 6955, 52, list(range(14))) for number in range(200)]
    folder = written(mooncake(*rows)).parent
    found = list(workload_of({"workload": [TRACE | {"tenants": 3}]}, folder).arrivals(7))
    prefixes = {arrival.tenant: arrival.prefix for arrival in found}
    assert len(prefixes) == 3
    assert {arrival.prefix for arrival in found} == set(prefixes.values())
    assert sorted(prefix[0] // TENANT_ID_SPACE for prefix in prefixes.values()) == [0, 1, 2]
