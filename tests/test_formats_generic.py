"""Tables of unknown origin: guessed and given columns, units, and the trace of the decision tests."""

from __future__ import annotations

import datetime as dt
import gzip
import io
from decimal import Decimal
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import zstandard

import traces
from traces.errors import NotAWorkloadError, WorkloadError
from traces.formats import columns, times

FIXTURES = Path(__file__).parent / "fixtures" / "formats"
TABLE = b"arrival_s,prompt_tokens,output_tokens\n0,10,5\n1.5,20,6\n"


def written(folder: Path, name: str, data: bytes) -> Path:
    path = folder / name
    path.write_bytes(data)
    return path


def test_a_step_trace_keeps_file_order_within_a_step() -> None:
    table = traces.open_workload(FIXTURES / "steps.jsonl").table

    assert table["request_id"].to_list() == ["b", "a", "late"]
    assert table["arrival_step"].to_list() == [2, 2, 5]
    assert table["arrival_s"].to_list() == [0.0, 0.0, 3.0]
    assert table["priority"].to_list() == [0, -1, 0]
    assert table["abort_step"].to_list() == [None, 7, None]
    assert table["prefix_ids"].to_list() == [[3000, 3001, 2**64 - 1], [], []]


def test_a_prefix_id_without_a_length_is_one_block_of_the_engine() -> None:
    workload = traces.open_workload(FIXTURES / "steps.jsonl")

    assert workload.prefix_block_tokens is None
    assert (
        "A prefix id is taken as one block of the engine's block size." in workload.report.notes
    )


def test_prefix_ids_of_different_lengths_become_segments() -> None:
    workload = traces.open_workload(FIXTURES / "steps.csv")

    assert workload.prefix_block_tokens is None
    assert workload.table["prefix_ids"].to_list() == [[1, 2, 3], [1, 2]]
    assert workload.table["prefix_tokens"].to_list() == [[16, 16, 16], [32, 32]]
    assert workload.table["abort_step"].to_list() == [None, 9]


def test_arrival_times_of_the_latency_clock_are_seconds() -> None:
    table = traces.open_workload(FIXTURES / "latency-clock.jsonl").table

    assert table["arrival_s"].to_list() == pytest.approx([0.0, 0.031])
    assert table["arrival_step"].to_list() == [None, None]


def test_us_dates_with_am_and_pm_behind_a_byte_order_mark() -> None:
    workload = traces.open_workload(FIXTURES / "gateway-us-dates.csv")

    assert workload.table["arrival_s"].to_list() == [0.0, 3.0]
    assert workload.table["prompt_tokens"].to_list() == [1200, 21]
    assert dict(workload.report.dropped) == {"failed": 1}


def test_columns_that_cannot_be_guessed_can_be_given() -> None:
    mapping = {"arrival_s": "when_ms", "prompt_tokens": "n_prompt", "output_tokens": "n_gen"}

    with pytest.raises(NotAWorkloadError, match="Its columns are when_ms, n_prompt, n_gen"):
        traces.open_workload(FIXTURES / "columns.tsv")
    workload = traces.open_workload(FIXTURES / "columns.tsv", mapping=mapping)

    assert workload.table["arrival_s"].to_list() == [0.0, 0.5]
    assert dict(workload.report.columns) == mapping
    assert workload.report.time_unit == "ms"


def test_a_mapping_to_a_missing_column_names_the_columns_that_are_there() -> None:
    with pytest.raises(WorkloadError, match=r"column nope.*Its columns are when_ms"):
        traces.open_workload(FIXTURES / "columns.tsv", mapping={"arrival_s": "nope"})


def test_a_mapping_of_an_unknown_role_lists_the_roles() -> None:
    with pytest.raises(WorkloadError, match=r"no such role.*Roles are request_id, arrival_s"):
        traces.open_workload(FIXTURES / "columns.tsv", mapping={"start": "when_ms"})


def test_a_given_unit_wins_over_the_guess(tmp_path: Path) -> None:
    path = written(tmp_path, "t.csv", b"timestamp,input_tokens,output_tokens\n0,1,1\n5,1,1\n")

    assert traces.open_workload(path).span_s == 5.0
    assert traces.open_workload(path, time_unit="ms").span_s == 0.005
    with pytest.raises(WorkloadError, match="'days' is not a unit"):
        traces.open_workload(path, time_unit="days")


@pytest.mark.parametrize(
    "suffix",
    [".csv", ".csv.gz", ".csv.zst", ".parquet", ".jsonl", ".json", ".jsonl.gz", ".tsv"],
)
def test_the_same_rows_are_read_from_every_container(tmp_path: Path, suffix: str) -> None:
    frame = pl.read_csv(TABLE)
    data = {
        ".csv": TABLE,
        ".csv.gz": gzip.compress(TABLE),
        ".csv.zst": zstandard.compress(TABLE),
        ".tsv": TABLE.replace(b",", b"\t"),
        ".jsonl": frame.write_ndjson().encode(),
        ".jsonl.gz": gzip.compress(frame.write_ndjson().encode()),
        ".json": frame.write_json().encode(),
    }
    if suffix == ".parquet":
        buffer = io.BytesIO()
        frame.write_parquet(buffer)
        data[".parquet"] = buffer.getvalue()

    workload = traces.open_workload(written(tmp_path, f"t{suffix}", data[suffix]))

    assert workload.table.select("arrival_s", "prompt_tokens", "output_tokens").rows() == [
        (0.0, 10, 5),
        (1.5, 20, 6),
    ]


def test_records_under_one_key_of_a_json_object_are_found(tmp_path: Path) -> None:
    text = b'{"meta": {"x": 1}, "rows": [{"ts": 5, "usage": {"prompt_tokens": 3, "completion_tokens": 4}}]}'

    workload = traces.open_workload(written(tmp_path, "t.json", text))

    assert workload.table["prompt_tokens"].to_list() == [3]
    assert workload.report.columns["output_tokens"] == "usage.completion_tokens"


def test_parquet_ids_may_be_signed(tmp_path: Path) -> None:
    pl.DataFrame(
        {
            "arrival_s": [0.0],
            "prompt_tokens": [64],
            "output_tokens": [1],
            "hash_ids": [[-1, 5]],
            "block_size": [32],
        }
    ).write_parquet(tmp_path / "t.parquet")

    workload = traces.open_workload(tmp_path / "t.parquet")

    assert workload.table["prefix_ids"].to_list() == [[2**64 - 1, 5]]
    assert workload.prefix_block_tokens == 32


@pytest.mark.parametrize(
    ("times", "first_s"),
    [
        ([dt.datetime(2025, 1, 1, 10), dt.datetime(2025, 1, 1, 10, 0, 2)], 36000.0),
        ([dt.datetime(2025, 1, 1, tzinfo=dt.UTC), dt.datetime(2025, 1, 1, 0, 0, 2, tzinfo=dt.UTC)], 1735689600.0),
        ([dt.timedelta(seconds=1), dt.timedelta(seconds=3)], 1.0),
        ([dt.time(0, 0, 1), dt.time(0, 0, 3)], 1.0),
        (["2025-01-01 10:00:00", "2025-01-01 10:00:02"], 36000.0),
        ([Decimal("1.5"), Decimal("3.5")], 1.5),
        ([7, 9], 7.0),
    ],
)  # fmt: skip
def test_parquet_times_of_every_type_are_read(
    tmp_path: Path, times: list[object], first_s: float
) -> None:
    usage = [
        {"prompt_tokens": 3, "completion_tokens": 4},
        {"prompt_tokens": 5, "completion_tokens": 6},
    ]
    pl.DataFrame({"timestamp": times, "usage": usage}).write_parquet(tmp_path / "t.parquet")

    workload = traces.open_workload(tmp_path / "t.parquet")

    assert workload.table["arrival_s"].to_list() == [0.0, 2.0]
    assert workload.report.first_s == first_s
    assert workload.table["output_tokens"].to_list() == [4, 6]


@pytest.mark.parametrize(
    ("text", "first_s"),
    [
        ("2025-01-01T10:00:00.5+02:00", 1735718400.5),
        ("2025-01-01 10:00:00 UTC", 1735725600.0),
        ("2025-01-01 10:00:00.25+00", 1735725600.25),
        ("20250101T100000Z", 1735725600.0),
        ("Wed, 01 Jan 2025 10:00:00 GMT", 1735725600.0),
        ("2025-01-01T10:00:00.1234567891Z", 1735725600.123456789),
        ("10:00:00.5", 36000.5),
        ("2025/01/01 10:00", 36000.0),
        ("1/2/2025 10:00:00 PM", 79200.0),
    ],
)
def test_dates_are_read_as_tools_write_them(tmp_path: Path, text: str, first_s: float) -> None:
    row = f'"{text}",1,1\n'.encode()

    workload = traces.open_workload(
        written(tmp_path, "t.csv", b"timestamp,input_tokens,output_tokens\n" + row)
    )

    assert workload.report.first_s == pytest.approx(first_s, abs=1e-6)


def test_ids_that_fill_every_prompt_tell_their_block_length(tmp_path: Path) -> None:
    rows = b'{"ts": 0.5, "input_tokens": 33, "output_tokens": 1, "block_hashes": ["ab", "cd", "ef"]}\n'

    workload = traces.open_workload(written(tmp_path, "t.jsonl", rows))

    assert workload.prefix_block_tokens == 16
    assert workload.table["prefix_ids"].list.len().to_list() == [3]
    assert "fit blocks of 16 tokens" in workload.report.notes[0]


def test_the_guess_can_be_shown_before_anything_is_read() -> None:
    names, guessed = traces.guess_columns(FIXTURES / "openai-log.jsonl")

    assert "usage.total_tokens" in names
    assert guessed["arrival_s"] == "created"
    assert guessed["prompt_tokens"] == "usage.prompt_tokens"


def test_parts_of_one_trace_are_joined_on_their_own_clock(tmp_path: Path) -> None:
    header = b"arrived_at,num_prefill_tokens,num_decode_tokens\n"
    one = written(tmp_path, "a.csv", header + b"0.0,1,1\n2.0,1,1\n")
    two = written(tmp_path, "b.csv", header + b"3.0,2,2\n9.5,2,2\n")

    workload = traces.open_workload([one, two])

    assert workload.table["arrival_s"].to_list() == [0.0, 2.0, 3.0, 9.5]
    assert workload.table["request_id"].to_list() == ["0-0", "0-1", "1-0", "1-1"]
    assert workload.name == "a.csv and 1 more"


def test_dated_parts_are_joined_over_midnight(tmp_path: Path) -> None:
    header = b"TIMESTAMP,ContextTokens,GeneratedTokens\n"
    one = written(tmp_path, "a.csv", header + b"2023-11-16 23:59:58.0,1,1\n")
    two = written(tmp_path, "b.csv", header + b"2023-11-17 00:00:01.5,2,2\n")

    assert traces.open_workload([one, two]).table["arrival_s"].to_list() == [0.0, 3.5]


def test_a_day_above_twelve_far_down_decides_the_order_of_day_and_month(tmp_path: Path) -> None:
    early = b"05/08/2025 10:00:00,1,1\n" * 1200
    path = written(
        tmp_path,
        "t.csv",
        b"timestamp,input_tokens,output_tokens\n" + early + b"15/08/2025 10:00:00,1,1\n",
    )

    assert traces.open_workload(path).span_s == 10 * 86_400


def test_files_of_different_formats_are_not_joined() -> None:
    with pytest.raises(WorkloadError, match="cannot be one trace"):
        traces.open_workload([FIXTURES / "vidur.csv", FIXTURES / "burstgpt-1.csv"])


def test_a_window_is_read_without_the_rest() -> None:
    workload = traces.open_workload(FIXTURES / "azure-2023.csv", window_s=(0.25, 3.0))

    assert workload.table["prompt_tokens"].to_list() == [250]
    assert workload.table["arrival_s"].to_list() == [0.0]
    with pytest.raises(WorkloadError, match="no request arrives between 10 s and the end"):
        traces.open_workload(FIXTURES / "azure-2023.csv", window_s=(10, None))


@pytest.mark.parametrize(
    ("values", "name", "unit"),
    [
        ([1.7e9, 1.7e9 + 5], "t", "s"),
        ([1.7e12, 1.7e12 + 5000], "t", "ms"),
        ([1.7e15, 1.7e15 + 5e6], "t", "us"),
        ([1.7e18, 1.7e18 + 5e9], "t", "ns"),
        ([0.0, 0.5, 900.25], "t", "s"),
        ([0, 3000, 6000, 9000], "timestamp", "ms"),
        ([0, 1, 5, 9], "timestamp", "s"),
        ([0, 5], "arrival_time_ns", "ns"),
        ([0, 5], "arrival (ms)", "ms"),
        ([0, 10**9, 2 * 10**9], "t", "ns"),
    ],
)
def test_units_are_guessed_by_name_magnitude_and_rate(
    values: list[float], name: str, unit: str
) -> None:
    guessed, why = times.guess_unit(np.array(values, dtype=float), name)

    assert guessed == unit
    assert why


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        (("start_time", "input_len", "output_len"), ("start_time", "input_len", "output_len")),
        (("Arrival Time", "Num Prompt Tokens", "Num Output Tokens"), ("Arrival Time", "Num Prompt Tokens", "Num Output Tokens")),
        (("created", "usage.prompt_tokens", "usage.completion_tokens"), ("created", "usage.prompt_tokens", "usage.completion_tokens")),
        (("timestamp", "isl", "osl"), ("timestamp", "isl", "osl")),
        (("ts", "in", "out"), ("ts", "in", "out")),
        (("arrival_time", "timestamp", "prompt_len", "output_len"), ("arrival_time", "prompt_len", "output_len")),
    ],
)  # fmt: skip
def test_column_names_of_many_tools_are_known(
    header: tuple[str, ...], expected: tuple[str, ...]
) -> None:
    found = columns.guess(header)

    assert tuple(found[r] for r in columns.NEEDED) == expected


def test_json_records_without_any_known_key_are_counted_as_dropped(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    row = '{"arrival_s": %d, "prompt_tokens": 9, "output_tokens": 1, "prefix_hash_ids": [1], "prefix_hash_block": 4}\n'
    path.write_text(row % 0 + "\n{}\n" + '{"x": 1}\n' + row % 2)

    workload = traces.open_workload(path)

    assert len(workload) == 2
    assert workload.report.rows_read == 4
    assert workload.report.dropped == {"no known field": 2}
    assert workload.prefix_block_tokens == 4


def test_an_abort_before_the_arrival_is_refused_by_its_row_in_the_file(tmp_path: Path) -> None:
    table = b"arrival_s,prompt_tokens,output_tokens,abort_s\n0,9,0,\n5,9,1,7\n9,9,1,2\n"
    path = written(tmp_path, "t.csv", table)

    with pytest.raises(WorkloadError, match=r"row 3, abort_s: .* is aborted before it arrives"):
        traces.open_workload(path)
    assert "aborted before it arrives" in traces.describe(path)["reason"]
