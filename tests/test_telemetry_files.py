"""Telemetry: values known, inferred or missing; written, opened, and refused with a reason."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import traces
from traces.errors import RecordingError
from traces.telemetry import Origin, Telemetry, make_telemetry, open_telemetry
from traces.telemetry_files import fill_table, is_telemetry, write_telemetry
from traces.telemetry_schema import SAMPLES, VALUE_NAMES, telemetry_metadata


def make_meta(**changes: Any) -> dict[str, Any]:
    meta = telemetry_metadata(
        engine={"name": "vllm", "version": "0.26.0"},
        recorded_by="hand",
        sampling="periodic",
        start_unix_s=None,
        model="tiny",
    )
    return {**meta, **changes}


def make_samples(**columns: Any) -> pl.DataFrame:
    """Three samples of rank 0, ten seconds apart; keyword arguments add or replace columns."""
    base: dict[str, Any] = {
        "t_s": [0.0, 10.0, 20.0],
        "engine_rank": [0, 0, 0],
        "kv_usage_frac": [0.5, 0.992, 0.99],
        "num_running": [10, 31, 30],
    }
    return pl.DataFrame(base | columns)


def two_files_of_lines() -> Telemetry:
    """Samples from a log of two lines each, one value of the second from a scrape."""
    samples = make_samples(
        num_preempted=[None, 4, 0],
        inferred=[[], ["num_preempted"], []],
        source=["server.log"] * 3,
        line=[7, 9, 11],
        num_lines=[1, 2, 1],
    )
    origins = pl.DataFrame(
        {
            "sample": [1],
            "column": ["num_preempted"],
            "source": ["metrics.txt"],
            "line": [3],
            "note": ["difference of two scrapes"],
        }
    )
    lines = pl.DataFrame(
        {
            "source": ["server.log", "server.log", "metrics.txt"],
            "line": [9, 10, 3],
            "text": ["Running: 31", "reqs", "vllm:num_preemptions_total 4"],
        }
    )
    meta = make_meta(
        missing={"num_swapped": "V1 does not swap", "victims": "a log names no request"},
        inferred={"num_preempted": "Running fell while Waiting rose"},
    )
    return make_telemetry("pasted", samples, meta, origins=origins, lines=lines)


def write(root: Path, samples: pl.DataFrame | None = None, **options: Any) -> Path:
    telemetry = make_telemetry("t", make_samples() if samples is None else samples, make_meta())
    meta = options.pop("meta", telemetry.meta)
    tables = {"samples": telemetry.samples.to_arrow()}
    return write_telemetry(root, tables, meta, **options)


def test_a_null_is_missing_and_a_named_value_is_inferred() -> None:
    telemetry = two_files_of_lines()

    states = telemetry.state("num_preempted").to_list()

    assert states == ["missing", "inferred", "known"]
    assert telemetry.state("num_running").to_list() == ["known"] * 3
    assert telemetry.state("num_swapped").to_list() == ["missing"] * 3


def test_what_is_missing_is_listed_with_its_reason() -> None:
    missing = two_files_of_lines().missing

    assert missing["num_swapped"] == "V1 does not swap"
    assert missing["victims"] == "a log names no request"
    assert missing["generation_tokens"] == ""
    assert "num_running" not in missing
    assert "num_preempted" not in missing


def test_a_value_knows_the_lines_it_came_from() -> None:
    telemetry = two_files_of_lines()

    usage = telemetry.origin(1, "kv_usage_frac")
    preempted = telemetry.origin(1, "num_preempted")

    assert usage is not None
    assert (usage.source, usage.line, usage.num_lines) == ("server.log", 9, 2)
    assert telemetry.text(usage) == ["Running: 31", "reqs"]
    assert preempted is not None
    assert (preempted.source, preempted.line) == ("metrics.txt", 3)
    assert preempted.note == "difference of two scrapes"
    assert telemetry.text(preempted) == ["vllm:num_preemptions_total 4"]
    assert telemetry.origin(0, "num_preempted") is None


def test_samples_without_a_time_keep_their_order() -> None:
    samples = make_samples(t_s=pl.Series([None] * 3, dtype=pl.Float64))

    telemetry = make_telemetry("pasted", samples, make_meta())

    assert telemetry.samples["sample"].to_list() == [0, 1, 2]
    assert telemetry.samples["t_s"].null_count() == 3


def test_ranks_are_numbers_and_then_what_has_none() -> None:
    samples = make_samples(engine_rank=[1, 0, None], num_ranks=[1, 1, 2])

    assert make_telemetry("t", samples, make_meta()).ranks == (0, 1, None)


def test_ranks_may_have_clocks_that_interleave() -> None:
    samples = make_samples(t_s=[10.0, 5.0, 20.0], engine_rank=[0, 1, 0])

    assert make_telemetry("t", samples, make_meta()).samples["t_s"].to_list() == [10, 5, 20]


def test_telemetry_survives_the_disk_in_several_parts(tmp_path: Path) -> None:
    telemetry = two_files_of_lines()

    telemetry.write(tmp_path / "t", rows_per_part=2)
    opened = open_telemetry(tmp_path / "t")

    assert is_telemetry(tmp_path / "t")
    assert len(list((tmp_path / "t" / "samples").iterdir())) == 2
    assert opened.samples.equals(telemetry.samples)
    assert opened.meta == telemetry.meta
    assert opened.complete
    assert opened.origin(1, "num_preempted") == telemetry.origin(1, "num_preempted")
    assert opened.finished_requests is None
    assert opened.notes == ()


def test_a_killed_writer_leaves_telemetry_that_opens_with_a_note(tmp_path: Path) -> None:
    root = write(tmp_path / "t", rows_per_part=1, closed=False)
    (root / "samples" / "part-00002.parquet").write_bytes(b"PAR1 cut off")
    (root / "samples" / "part-00003.parquet.tmp").write_bytes(b"PAR1")

    telemetry = open_telemetry(root)

    assert telemetry.rows == {"samples": 2}
    assert not telemetry.complete
    assert "not closed" in telemetry.notes[0]
    assert any("part-00002.parquet is damaged" in n for n in telemetry.notes)


def test_samples_that_were_lost_are_counted_and_shown(tmp_path: Path) -> None:
    root = write(tmp_path / "t", make_samples(sample=[1_000, 1_001, 1_122]))

    notes = open_telemetry(root).notes

    assert any("120 samples between others were lost" in n for n in notes)
    assert any("first 1,000 samples are not there" in n for n in notes)


def test_columns_that_an_older_writer_lacked_are_missing(tmp_path: Path) -> None:
    root = write(tmp_path / "t")
    part = root / "samples" / "part-00000.parquet"
    table = pq.read_table(part).drop_columns(["max_itl_s", "num_lines"])
    pq.write_table(table, part)

    telemetry = open_telemetry(root)

    assert telemetry.state("max_itl_s").to_list() == ["missing"] * 3


def test_a_part_that_another_writer_spelled_otherwise_is_read(tmp_path: Path) -> None:
    root = write(tmp_path / "t")
    part = root / "samples" / "part-00000.parquet"
    table = pq.read_table(part)
    at = table.column_names.index("inferred")
    large = pa.large_list(pa.large_string())
    spelled = table.set_column(at, "inferred", table["inferred"].cast(large))
    pq.write_table(spelled.replace_schema_metadata(table.schema.metadata), part)

    assert open_telemetry(root).samples["inferred"].to_list() == [[], [], []]


def test_a_column_of_another_type_is_refused(tmp_path: Path) -> None:
    root = write(tmp_path / "t")
    part = root / "samples" / "part-00000.parquet"
    table = pq.read_table(part)
    at = table.column_names.index("num_running")
    wrong = table.set_column(at, "num_running", table["num_running"].cast(pa.string()))
    pq.write_table(wrong.replace_schema_metadata(table.schema.metadata), part)

    with pytest.raises(RecordingError, match="column num_running: the type is string"):
        open_telemetry(root)


def test_a_table_is_filled_with_nulls_and_refuses_unknown_columns() -> None:
    needed = {"sample": [0], "num_ranks": [1], "inferred": [[]]}

    table = fill_table(SAMPLES, needed | {"num_running": [3]}, 1)

    assert table.column_names == SAMPLES.names
    assert table["num_running"].to_pylist() == [3]
    assert table["num_waiting"].null_count == 1
    with pytest.raises(KeyError, match="num_runing"):
        fill_table(SAMPLES, needed | {"num_runing": [3]}, 1)
    with pytest.raises(KeyError, match="inferred"):
        fill_table(SAMPLES, {"sample": [0], "num_ranks": [1]}, 1)


def test_every_value_is_described_and_may_be_missing() -> None:
    for name in VALUE_NAMES:
        column = SAMPLES.column(name)
        assert column.nullable
        assert column.meaning
        assert column.unit


@pytest.mark.parametrize(
    ("columns", "fault"),
    [
        ({"sample": [0, 2, 1]}, "row 3, column sample: sample 1 follows sample 2"),
        ({"t_s": [0.0, 10.0, 9.0]}, "row 3, column t_s: 9.0 s follows 10.0 s"),
        ({"kv_usage_frac": [0.5, 97.3, 0.1]}, "row 2, column kv_usage_frac: 97.3 is no share"),
        ({"num_running": [1, -1, 2]}, "row 2, column num_running: -1 is less than 0"),
        ({"kv_usage_frac": [0.5, float("nan"), 0.1]}, "nan is not a finite number"),
        ({"inferred": [[], ["victims"], []]}, "'victims' is no value of a sample"),
        (
            {"inferred": [[], [], ["num_swapped"]]},
            "row 3, column inferred: num_swapped is called",
        ),
        ({"colour": ["red"] * 3}, "column colour: the table has no such column"),
    ],
)
def test_a_row_that_breaks_a_law_is_named(columns: dict[str, Any], fault: str) -> None:
    with pytest.raises(RecordingError) as caught:
        make_telemetry("t", make_samples(**columns), make_meta())

    assert fault in str(caught.value)


@pytest.mark.parametrize(
    ("meta", "fault"),
    [
        (
            make_meta(telemetry_version="9.0"),
            "version 9.0, and this version of KV Replay reads 1.0",
        ),
        (make_meta(kind="recording"), "kind 'recording', not 'telemetry'"),
        (make_meta(missing=["victims"]), "the metadata's missing is no JSON object"),
    ],
)
def test_metadata_that_is_something_else_is_refused(
    tmp_path: Path, meta: dict[str, Any], fault: str
) -> None:
    root = write(tmp_path / "t", meta=meta)

    with pytest.raises(RecordingError) as caught:
        open_telemetry(root)

    assert fault in str(caught.value)


def test_a_folder_without_parts_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t" / "samples").mkdir(parents=True)

    with pytest.raises(RecordingError, match="holds no Parquet file"):
        open_telemetry(tmp_path / "t")


def test_foreign_parquet_in_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t" / "samples").mkdir(parents=True)
    pq.write_table(pa.table({"a": [1]}), tmp_path / "t" / "samples" / "part-00000.parquet")

    with pytest.raises(RecordingError, match="was not written by KV Replay"):
        open_telemetry(tmp_path / "t")


def test_a_part_of_another_recording_is_refused(tmp_path: Path) -> None:
    root = write(tmp_path / "t", rows_per_part=2)
    write(tmp_path / "other", meta=make_meta(model="huge"))
    other = tmp_path / "other" / "samples" / "part-00000.parquet"
    other.rename(root / "samples" / "part-00001.parquet")

    with pytest.raises(RecordingError, match="its model differs"):
        open_telemetry(root)


def test_rows_that_the_closing_mark_counts_must_be_there(tmp_path: Path) -> None:
    root = write(tmp_path / "t", rows_per_part=2)
    (root / "samples" / "part-00001.parquet").unlink()

    with pytest.raises(RecordingError, match="3 rows were written, but 2 are there"):
        open_telemetry(root)


def test_a_server_that_did_nothing_leaves_no_sample(tmp_path: Path) -> None:
    root = write(tmp_path / "t", make_samples().clear())

    with pytest.raises(RecordingError, match="no sample can be read"):
        open_telemetry(root)


@pytest.mark.parametrize("content", [b"PAR1", b"\x00" * 50, json.dumps({"a": 1}).encode()])
def test_a_damaged_part_is_one_sentence(tmp_path: Path, content: bytes) -> None:
    root = write(tmp_path / "t")
    (root / "samples" / "part-00000.parquet").write_bytes(content)

    with pytest.raises(RecordingError, match="none of its Parquet files can be read"):
        open_telemetry(root)


def test_a_single_file_and_a_missing_one_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "samples.parquet"
    file.write_bytes(b"PAR1")

    with pytest.raises(RecordingError, match="a telemetry recording is a folder"):
        open_telemetry(file)
    with pytest.raises(RecordingError, match="no such file or folder"):
        open_telemetry(tmp_path / "nowhere")


def zipped(root: Path, archive: Path) -> Path:
    with zipfile.ZipFile(archive, "w") as out:
        for path in sorted(root.rglob("*.*")):
            out.write(path, path.relative_to(root.parent))
    return archive


def test_a_zip_of_telemetry_opens_as_the_folder_does(tmp_path: Path) -> None:
    two_files_of_lines().write(tmp_path / "t")
    archive = zipped(tmp_path / "t", tmp_path / "t.zip")

    telemetry = traces.open_any(archive)

    assert isinstance(telemetry, Telemetry)
    assert telemetry.samples.equals(open_telemetry(tmp_path / "t").samples)
    assert telemetry.text(Origin("server.log", 9, 1)) == ["Running: 31"]


def test_an_unpacked_zip_goes_when_its_telemetry_does(tmp_path: Path) -> None:
    telemetry = open_telemetry(zipped(write(tmp_path / "t"), tmp_path / "t.zip"))
    root = telemetry.root
    assert root is not None
    assert root.exists()

    del telemetry

    assert not root.exists()


def test_a_zip_that_is_cut_off_is_one_sentence(tmp_path: Path) -> None:
    archive = zipped(write(tmp_path / "t"), tmp_path / "t.zip")
    archive.write_bytes(archive.read_bytes()[:-100])

    with pytest.raises(RecordingError, match="a single file"):
        open_telemetry(archive)
