"""Files that are damaged, absurd or something else: one clear sentence each, and nothing lost."""

from __future__ import annotations

import bz2
import gzip
import io
import os
import zipfile
from pathlib import Path

import polars as pl
import pytest
import zstandard

import traces
from traces.description import describe
from traces.errors import NotAWorkloadError, RecordingError, WorkloadError
from traces.recording import open_recording

FIXTURES = Path(__file__).parent / "fixtures" / "formats"
HEADER = b"arrival_s,prompt_tokens,output_tokens\n"
TABLE = HEADER + b"0,10,5\n1.5,20,6\n3,30,7\n"
LINE = b'{"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [1, 2]}\n'


def zipped(name: str, data: bytes) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as z:
        z.writestr(name, data)
    return out.getvalue()


def parquet() -> bytes:
    out = io.BytesIO()
    pl.read_csv(TABLE).write_parquet(out)
    return out.getvalue()


# name, bytes, what the message must say (fault and place), what it must advise
BAD = [
    ("empty.csv", b"", "the file is empty", "finished"),
    ("blank.csv", b" \n\r\n", "the file holds nothing", "finished"),
    ("bom-only.csv", b"\xef\xbb\xbf\n", "the file holds nothing", "finished"),
    ("header.csv", HEADER, "it has a header but no rows", "filters"),
    ("one-word.csv", b"arrival_s", "no table, JSON or Parquet", "Give a CSV"),
    ("headerless.csv", b"0,10,5\n1,11,6\n", "first line is data", "header line"),
    ("cut.csv.gz", gzip.compress(TABLE * 5000)[:-20], "gzip data is damaged or cut off", "again"),
    ("cut.csv.zst", zstandard.compress(TABLE * 90000)[:-6], "zstd data is damaged or cut off", "again"),
    ("cut.jsonl.gz", gzip.compress(LINE * 50000)[:900], "gzip data is damaged or cut off", "again"),
    ("cut.jsonl.zst", zstandard.compress(LINE + os.urandom(90000).hex().encode())[:40000], "zstd data is damaged or cut off", "again"),
    ("cut.parquet", parquet()[:-30], "the Parquet file is damaged or cut off", "again"),
    ("cut.json", b'[{"arrival_s":0,"prompt_tokens":1,"output_tokens":1},{"arrival_s":1,"pr', "the JSON is cut off", "again"),
    ("cut.jsonl", LINE + LINE[:30], "line 2: the line is cut off", "remove the line"),
    ("broken.jsonl", LINE + b'{"timestamp": oops}\n' + LINE, "line 2: the line is not valid JSON", "remove the line"),
    ("ragged.csv", HEADER + b"0,10,5\n1,2,3,4\n", "row 2: it has 4 cells where the header has 3", "Correct that row"),
    ("quote.csv", HEADER + b'0,"10,5\n1,2,3\n', "a quote is opened in it and never closed", "quote"),
    ("infinite.csv", HEADER + b"0,1,1\ninf,10,5\n", "row 2, column arrival_s: inf is not a time", "remove the row"),
    ("text.csv", HEADER + b"0,1,1\n1,many,5\n", "row 2, column prompt_tokens: 'many' is not a number of tokens", "map another column"),
    ("day.csv", b"timestamp,input_tokens,output_tokens\n2025-01-01 00:00:00,1,1\nyesterday,1,1\n", "row 2, column timestamp: 'yesterday' is not a time", "Correct"),
    ("negative.csv", HEADER + b"0,10,5\n1,-7,3\n", "row 2, prompt_tokens: -7 is a negative number of prompt tokens", "correct the row"),
    ("fraction.csv", HEADER + b"0,10.5,5\n", "row 1, column prompt_tokens: 10.5 is not a whole number", "right column"),
    ("absurd.csv", HEADER + b"0,99999999999,5\n", "more than 100,000,000 prompt tokens", "unit"),
    ("beyond.csv", HEADER + b"0,1e30,5\n", "1e+30 is not a whole number of tokens", "right column"),
    ("centuries.csv", HEADER + b"0,1,1\n1e13,1,1\n", "row 2, arrival_s: it is 316,881 years from the first row", "unit"),
    ("huge.jsonl", b'{"arrival_s": 1e999, "prompt_tokens": 1, "output_tokens": 1}\n', "inf is not a time", "row"),
    ("list-cell.jsonl", b'{"arrival_s": 0, "prompt_tokens": [1], "output_tokens": 3}\n', "'[1]' is not a number of tokens", "map"),
    ("true.jsonl", b'{"arrival_s": 0, "prompt_tokens": true, "output_tokens": 1}\n', "'true' is not a number of tokens", "map"),
    ("no-record.jsonl", LINE + b"[1, 2]\n", "line 2: a list stands where a record should", "one JSON object a request"),
    ("ids.jsonl", b'{"timestamp": 0, "input_length": 6, "output_length": 5, "hash_ids": 5}\n', "line 1, hash_ids: 5 is not a list of ids", "1|2|3"),
    ("list-of-lists.json", b"[[0, 1, 2], [1, 2, 3]]", "records are not objects with named fields", "one JSON object a request"),
    ("tail.json", b'[{"arrival_s":0,"prompt_tokens":1,"output_tokens":1}] tail', "after record 1: the JSON list has ended and more text follows", "one record a line"),
    ("null-record.json", b'[{"arrival_s":0,"prompt_tokens":1,"output_tokens":1}, null]', "record 2: a null stands where a record should", "one JSON object a request"),
    ("true.json", b'[{"start_time":0,"end_time":1,"response":"","info":{"input_tokens":true,"output_tokens":1}}]', "record 1: 'True' is not a number of prompt tokens", "Correct"),
    ("empty-cell.csv", b"session_id,arrival_time,round_idx,prefix_len,input_len,output_len\na,,0,5,3,4\n", "row 1, column arrival_time: the cell is empty", "Fill it"),
    ("far.jsonl", b'{"metadata":{"request_start_ns":99999999999999999999999},"metrics":{}}\n', "line 1: '1e+23' is not a time", "Correct"),
    ("hole.jsonl", LINE + b'{"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [1, null]}\n', "row 2, prefix_ids: one of its ids is missing", "Correct"),
    ("empty-list.json", b"[]", "the list is empty", "filters"),
    ("deep.json", b"[" * 100_000, "nested too deeply", "export"),
    ("other.json", b'{"a": {"b": [1, 2]}}', "no column was recognised as arrival_s, prompt_tokens, output_tokens", "Map the columns"),
    ("spans.json", b'{"resourceSpans": [{"scopeSpans": [{"spans": [{"attributes": "x"}]}]}]}', "a record has another shape", "export it again"),
    ("session.json", b'{"id": "a", "block_size": 64, "requests": [{"t": "x", "in": 1, "out": 1}]}', "request 1: its time t is 'x'", "Correct"),
    ("lists.json", b'{"duration": 1, "completed": 1, "total_input_tokens": 5, "input_lens": [1, 2], "output_lens": [1], "start_times": [1, 2]}', "its lists differ in length", "Write the result again"),
    ("archive.zip", zipped("a.csv", TABLE), "it is a zip archive (a.csv) and no recording", "Unpack it"),
    ("cut.zip", zipped("a.csv", TABLE)[:50], "the zip archive is damaged or cut off", "again"),
    ("future.zip", zipped("a.csv", TABLE).replace(b"PK\x01\x02\x14\x03\x14", b"PK\x01\x02\x14\x03\xf4"), "the zip archive is damaged or cut off", "again"),
    ("book.xlsx", zipped("xl/workbook.xml", b""), "it is an Excel workbook", "CSV"),
    ("trace.pkl", b"\x80\x04\x95\x10\x00\x00\x00\x00\x00\x00\x00}\x94.", "it is a Python pickle", "Convert it"),
    ("noise.bin", b"\x00\x01\x02\xff" * 400, "a binary file of a kind that is not known", "Give a CSV"),
    ("packed.csv.bz2", bz2.compress(TABLE), "it is packed with bzip2", ".gz or .zst"),
    ("data.db", b"SQLite format 3\x00" + b"\x00" * 90, "it is an SQLite database", "Export the table"),
    ("pointer.csv", b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n", "it is a Git LFS pointer", "git lfs pull"),
    ("page.csv", b"<!DOCTYPE html>\n<html><body>a,b</body></html>", "it is a web page", "raw file"),
    ("zeros.csv.gz", gzip.compress(b"\x00" * 3_000_000), "the file holds nothing", "finished"),
]  # fmt: skip


@pytest.mark.parametrize("case", BAD, ids=[c[0] for c in BAD])
def test_a_bad_file_gives_one_clear_sentence(
    tmp_path: Path, case: tuple[str, bytes, str, str]
) -> None:
    name, data, fault, advice = case
    path = tmp_path / name
    path.write_bytes(data)

    with pytest.raises(WorkloadError) as e:
        traces.open_workload(path)
    found = describe(path)

    assert str(e.value).startswith(name)
    assert fault in str(e.value)
    assert advice in e.value.remedy
    assert found["kind"] == "refused"
    assert fault in found["reason"]
    assert advice in found["what_to_do"]


# name, bytes, rows that are read, rows set aside
ODD = [
    ("bom.csv", b"\xef\xbb\xbf" + TABLE, 3, {}),
    ("utf16.csv", TABLE.decode().encode("utf-16"), 3, {}),
    ("utf16.jsonl", (LINE * 2).decode().encode("utf-16"), 2, {}),
    ("bom.jsonl", b"\xef\xbb\xbf" + LINE, 1, {}),
    ("crlf.csv", TABLE.replace(b"\n", b"\r\n"), 3, {}),
    ("old-mac.csv", TABLE.replace(b"\n", b"\r"), 3, {}),
    ("latin-1.csv", HEADER[:-1] + b",model\n0,1,2,caf\xe9\n1,1,2,x\n", 2, {}),
    ("wrong-suffix.json", TABLE, 3, {}),
    ("wrong-suffix.csv", LINE * 2, 2, {}),
    ("wrong-suffix.parquet", TABLE, 3, {}),
    ("blank-lines.csv", HEADER + b"\n0,10,5\n\r\n\n1,2,3\n\n", 2, {}),
    ("blank-lines.jsonl", b"\n" + LINE + b"\n \r\n" + LINE + b"\n", 2, {}),
    ("short-row.csv", HEADER + b"0,10,5\n1,2\n", 1, {"no token counts": 1}),
    ("nan.csv", HEADER + b"nan,10,5\n1,2,3\n", 1, {"no arrival time": 1}),
    ("unknown.csv", HEADER + b"0,10,5\n1,-1,-1\n", 1, {"no token counts": 1}),
    ("zero.csv", HEADER + b"0,10,5\n1,3,0\n2,0,3\n", 1, {"zero output tokens": 1, "empty prompt": 1}),
    ("all-at-once.csv", HEADER + b"5,10,5\n5,2,3\n", 2, {}),
    ("floats.csv", HEADER + b"0,21073.0,5.0\n1,2.0,3.0\n", 2, {}),
    ("quoted.csv", HEADER + b'"0","1,234","5"\n"1","20","3"\n', 2, {}),
    ("semicolons.csv", HEADER.replace(b",", b";") + b"0,5;10;5\n1,25;1.024,0;3\n", 2, {}),
    ("mixed.jsonl", b'{"arrival_s":0,"prompt_tokens":1,"output_tokens":1}\n{"arrival_s":"1.5","prompt_tokens":"2","output_tokens":3.0}\n', 2, {}),
    ("lacking.jsonl", b'{"arrival_s":0,"prompt_tokens":1,"output_tokens":1}\n{"arrival_s":1,"prompt_tokens":1}\n', 1, {"no token counts": 1}),
    ("one-line.jsonl", LINE.strip() + LINE, 2, {}),
    ("pretty.jsonl", b'{\n "arrival_s": 0,\n "prompt_tokens": 1,\n "output_tokens": 1\n}\n' * 2, 2, {}),
    ("late-fraction.csv", HEADER + b"0,1,1\n" * 1500 + b"1.5,1,1\n", 1501, {}),
    ("late-zone.csv", b"timestamp,input_tokens,output_tokens\n" + b"2025-01-01 00:00:00,1,1\n" * 1500 + b"2025-01-01T00:00:01Z,1,1\n", 1501, {}),
    ("comment.csv", b"# my trace\n\n" + TABLE, 3, {}),
    ("commented-header.csv", b"# " + TABLE, 3, {}),
    ("excel.csv", b"sep=,\r\n" + TABLE, 3, {}),
    ("padded.csv", b" arrival_s , prompt_tokens , output_tokens \n 0 , 10 , 5 \n", 1, {}),
    ("two-members.csv.gz", gzip.compress(TABLE) + gzip.compress(b"4,1,1\n"), 4, {}),
    ("surrogate.jsonl", b'{"request_id":"\\ud800","arrival_s":0,"prompt_tokens":1,"output_tokens":1}\n', 1, {}),
    ("twice-named.csv", b"arrival_s,prompt_tokens, prompt_tokens,output_tokens\n0,1,2,3\n", 1, {}),
]  # fmt: skip


@pytest.mark.parametrize("case", ODD, ids=[c[0] for c in ODD])
def test_an_odd_file_is_read_and_what_is_set_aside_is_counted(
    tmp_path: Path, case: tuple[str, bytes, int, dict[str, int]]
) -> None:
    name, data, kept, aside = case
    path = tmp_path / name
    path.write_bytes(data)

    workload = traces.open_workload(path)

    assert len(workload) == kept
    assert dict(workload.report.dropped) == aside
    assert workload.report.rows_read == kept + sum(aside.values())


def test_decimal_commas_are_read_in_tables_with_semicolons(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(b"arrival_s;prompt_tokens;output_tokens\n0,5;10;5\n1,25;1.024,0;3\n")

    table = traces.open_workload(path).table

    assert table["arrival_s"].to_list() == [0.0, 0.75]
    assert table["prompt_tokens"].to_list() == [10, 1024]


def test_ids_may_hold_markup_or_ten_megabytes(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    long = b"x" * 10_000_000
    path.write_bytes(
        b"request_id," + HEADER + b"<script>alert(1)</script>,0,1,1\n" + long + b",1,1,1\n"
    )

    ids = traces.open_workload(path).table["request_id"].to_list()

    assert ids[0] == "<script>alert(1)</script>"
    assert len(ids[1]) == 10_000_000


def test_repeated_and_missing_ids_are_made_unique_and_said(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(b"request_id," + HEADER + b"a,0,1,1\na,1,1,1\n,2,1,1\n")

    workload = traces.open_workload(path)

    assert workload.table["request_id"].to_list() == ["a", "a#2", "row-2"]
    assert (
        "Request ids were missing or repeated: they were made unique with a suffix."
        in workload.report.notes
    )


def test_a_missing_file_and_a_folder_are_named(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match="there is no such file"):
        traces.open_workload(tmp_path / "none.csv")
    with pytest.raises(WorkloadError, match="it is a folder, not a file"):
        traces.open_workload(tmp_path)
    with pytest.raises(WorkloadError, match="no file was given"):
        traces.open_workload([])


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file")
def test_a_file_without_permission_says_so(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(TABLE)
    path.chmod(0)

    with pytest.raises(WorkloadError, match="cannot be opened"):
        traces.open_workload(path)


REFUSED = [
    ("vidur-lengths.csv", "lengths without arrivals", "no arrival times"),
    (
        "guidellm-aggregates.json",
        "guidellm and inference-perf requests",
        "lists of requests are empty",
    ),
    ("inference-perf-summary.json", "inference-perf summary", "aggregates"),
    (
        "vllm-bench-totals.json",
        "vLLM bench serve detailed results",
        "the totals of a benchmark run",
    ),
    ("vllm-bench-no-starts.json", "benchmark lengths", "no start times"),
    ("sglang-bench.jsonl", "benchmark lengths", "keeps no start times"),
    ("otel-texts.json", "OpenTelemetry GenAI spans", "only message texts"),
    ("servegen-chunk.csv", "ServeGen client profile", "rates and burstiness"),
    ("servegen-dataset.json", "ServeGen client data set", "distributions of lengths"),
    ("headerless.csv", "table without a header", "first line is data"),
    ("access.log", "access log", "not how long they were"),
    ("sharegpt.json", "conversations", "without token counts"),
    ("gentd26.csv", "GenTD26", "make images"),
    ("ragpulse/1_sys_prompt.jsonl", "RAGPulse segment map", "holds no requests"),
]


@pytest.mark.parametrize(("name", "form", "reason"), REFUSED, ids=[r[0] for r in REFUSED])
def test_what_is_no_request_trace_is_refused_with_an_alternative(
    name: str, form: str, reason: str
) -> None:
    with pytest.raises(NotAWorkloadError) as e:
        traces.open_workload(FIXTURES / name)
    found = describe(FIXTURES / name)

    assert (found["kind"], found["format"]) == ("refused", form)
    assert reason in found["reason"]
    assert found["what_to_do"] == e.value.remedy


def test_an_engine_log_is_recognised_behind_long_start_up_lines(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    path.write_bytes(
        b"INFO starting, loading, waiting\n" * 4000 + (FIXTURES / "engine-log.txt").read_bytes()
    )

    assert describe(path)["kind"] == "telemetry"


@pytest.mark.parametrize("name", ["prometheus.json", "engine-log.txt", "timeseries.csv"])
def test_telemetry_is_recognised_and_holds_no_requests(name: str) -> None:
    found = describe(FIXTURES / name)

    assert found["kind"] == "telemetry"
    with pytest.raises(NotAWorkloadError, match="it is telemetry"):
        traces.open_any(FIXTURES / name)


@pytest.mark.parametrize(
    ("name", "fault"), [("a\0b.csv", "null byte"), ("x" * 5000, "File name too long")]
)
def test_a_path_that_the_system_refuses_is_one_sentence(
    tmp_path: Path, name: str, fault: str
) -> None:
    for opening in (traces.open_any, traces.open_workload):
        with pytest.raises(WorkloadError, match=fault):
            opening(tmp_path / name)
    with pytest.raises(RecordingError, match=fault):
        open_recording(tmp_path / name)
    assert fault in describe(tmp_path / name)["reason"]


def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.csv"
    os.mkfifo(pipe)

    with pytest.raises(WorkloadError, match="not a regular file but a named pipe"):
        traces.open_any(pipe)
    with pytest.raises(RecordingError, match="not a regular file but a named pipe"):
        open_recording(pipe)
    with pytest.raises(WorkloadError, match="not a regular file but a device"):
        traces.open_workload("/dev/zero")


NINES = b"9" * 5000
SESSION = b'{"session_id": "a", "input": [], "output_length": %s, "pre_gap": %s}\n'
WEKA = b'{"id": "x", "block_size": %s, "hash_id_scope": "local", "requests": [{"t": %s, "in": 100, "out": 5, "hash_ids": [1, 2], "type": "n"}]}'
PREFIXED = b'{"arrival_s": 0, "prompt_tokens": 9, "output_tokens": 1, "prefix_hash_ids": [1], "prefix_hash_block": %d}\n'


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        ("padded.csv.gz", gzip.compress(TABLE) + bytes(100), "gzip data is damaged"),
        ("gap.jsonl", SESSION % (b"3", b"9" * 400), "line 1: .* is not a gap in seconds"),
        ("out.jsonl", SESSION % (b"1e400", b"0"), "line 1: 'inf' is not a number of output"),
        ("digits.jsonl", b'{"arrival_s": ' + NINES + b"}\n", "a number has thousands of digits"),
        ("later.jsonl", LINE + b'{"timestamp": ' + NINES + b"}\n", "line 2: .*thousands of digits"),
        ("time.json", WEKA % (b"64", b"9" * 400), "request 1: .* is not a time in seconds"),
        ("block.json", WEKA % (b"1e400", b"0"), "cannot convert float infinity"),
        ("size.json", WEKA % (b"-64", b"0"), "-64 tokens is no length of a prefix block"),
        ("prefix.jsonl", PREFIXED % 4 + PREFIXED % -4, "row 2, column prefix_hash_block: -4 tokens"),
        ("wide.jsonl", PREFIXED % 40_000_000_000, "row 1, column prefix_hash_block: 40,000,000,000"),
    ],
)  # fmt: skip
def test_numbers_beyond_all_measure_are_one_sentence(
    tmp_path: Path, name: str, data: bytes, said: str
) -> None:
    (tmp_path / name).write_bytes(data)

    with pytest.raises(WorkloadError, match=said):
        traces.open_any(tmp_path / name)
    assert describe(tmp_path / name)["kind"] == "refused"


def test_ids_of_any_length_are_ids(tmp_path: Path) -> None:
    path = tmp_path / "ids.json"
    path.write_bytes((WEKA % (b"64", b"0")).replace(b"[1, 2]", b"[%s, -1]" % (b"9" * 25)))

    assert traces.open_workload(path).table["prefix_ids"].list.len().to_list() == [2]


def test_what_no_reader_foresaw_names_file_and_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(TABLE)

    def broken(*_: object) -> None:
        raise OverflowError("too large")

    monkeypatch.setattr("traces.open._read", broken)
    with pytest.raises(WorkloadError, match=r"t\.csv: .*OverflowError: too large"):
        traces.open_workload(path)
