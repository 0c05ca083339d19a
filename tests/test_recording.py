"""Opening recordings: what is accepted, and what each kind of damage is answered with."""

from __future__ import annotations

import json
import os
import random
import zipfile
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.builders import (
    make_blocks,
    make_events,
    make_meta,
    make_requests,
    make_steps,
    record,
    write,
)
from traces.errors import RecordingError
from traces.recording import open_recording, zip_recording
from traces.recording_files import write_part
from traces.schema import METADATA_KEY, STEPS


def make_two_requests() -> dict[str, Any]:
    """Two requests over four steps in a pool of ten blocks; b is preempted once."""
    return {
        "steps": make_steps([2, 10, 4, 4], num_preempted=[0, 1, 0, 0]),
        "events": make_events(
            [
                {"step": 0, "kind": "arrive", "request_id": "a"},
                {"step": 0, "kind": "arrive", "request_id": "b"},
                {"step": 0, "kind": "admit", "request_id": "a", "blocks": 1},
                {"step": 0, "kind": "admit", "request_id": "b", "blocks": 1},
                {
                    "step": 1,
                    "kind": "preempt",
                    "request_id": "b",
                    "mode_asked": "swap",
                    "mode_used": "recompute",
                },
                {"step": 3, "kind": "resume", "request_id": "b", "tokens": 4},
                {"step": 3, "kind": "finish", "request_id": "a", "tokens": 4},
            ]
        ),
        "requests": make_requests(
            [
                {
                    "request_id": "a",
                    "prompt_tokens": 4,
                    "output_tokens": 4,
                    "first_token_s": 1.0,
                    "finish_s": 4.0,
                },
                {
                    "request_id": "b",
                    "prompt_tokens": 4,
                    "output_tokens": 1,
                    "first_token_s": 1.0,
                },
            ]
        ),
    }


def refusal(path: Path, **options: Any) -> str:
    """The message with which opening fails."""
    with pytest.raises(RecordingError) as caught:
        open_recording(path, **options)
    return str(caught.value)


def rewrite_steps(
    root: Path, change: dict[str, pa.Array] | None = None, **options: Any
) -> None:
    """Replace columns of the first part of `steps` without any check."""
    path = root / "steps" / "part-00000.parquet"
    table = pq.read_table(path)
    for name, values in (change or {}).items():
        table = table.set_column(table.schema.get_field_index(name), name, values)
    for name in options.get("drop", ()):
        table = table.drop_columns([name])
    for name, values in options.get("add", {}).items():
        table = table.append_column(name, values)
    metadata = options.get("metadata", pq.read_schema(path).metadata[METADATA_KEY])
    pq.write_table(
        table.replace_schema_metadata({METADATA_KEY: metadata} if metadata else {}), path
    )


def test_a_recording_opens_with_its_rows_and_settings(tmp_path: Path) -> None:
    rec = record(tmp_path / "run", **make_two_requests())

    assert rec.complete
    assert rec.notes == ()
    assert rec.label == "run"
    assert rec.rows == {"steps": 4, "events": 7, "requests": 2}
    assert rec.steps["used_blocks"].to_list() == [2, 10, 4, 4]
    assert rec.events.filter(pl.col("kind") == "preempt")["mode_used"].to_list() == [
        "recompute"
    ]
    assert rec.requests["status"].to_list() == ["finished", "unfinished"]
    assert rec.blocks is None
    assert rec.pool_blocks == 10
    assert (rec.meta.block_size_tokens, rec.meta.preemption_mode) == (4, "recompute")


def test_the_pool_is_vllms_number_of_blocks_less_the_null_block(tmp_path: Path) -> None:
    meta = make_meta()
    del meta["pool_blocks"]

    rec = record(tmp_path / "run", steps=make_steps([3]), meta=meta)

    assert rec.pool_blocks == 10


def test_parts_are_read_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    root = write(tmp_path / "run", steps=make_steps([1, 2, 3, 4, 5]), rows_per_part=2)

    rec = open_recording(root)

    assert sorted(p.name for p in (root / "steps").iterdir()) == [
        "part-00000.parquet",
        "part-00001.parquet",
        "part-00002.parquet",
    ]
    assert rec.steps["used_blocks"].to_list() == [1, 2, 3, 4, 5]


def test_block_ownership_is_read_where_it_was_recorded(tmp_path: Path) -> None:
    row = {
        "block_id": 1,
        "request_id": "a",
        "logical_index": 0,
        "first_step": 0,
        "last_step": 3,
    }

    rec = record(tmp_path / "run", steps=make_steps([1]), blocks=make_blocks([row]))

    assert rec.blocks is not None
    assert rec.blocks.rows(named=True) == [row]


def test_a_zip_holds_the_same_recording_as_its_folder(tmp_path: Path) -> None:
    root = write(tmp_path / "run", **make_two_requests())

    with open_recording(zip_recording(root, tmp_path / "run.zip"), name="upload.zip") as rec:
        unpacked = rec.root

        assert rec.label == "upload.zip"
        assert rec.steps.equals(open_recording(root).steps)

    assert not unpacked.exists()


def test_a_zip_may_have_one_folder_around_the_recording(tmp_path: Path) -> None:
    root = write(tmp_path / "run", **make_two_requests())
    with zipfile.ZipFile(tmp_path / "z.zip", "w") as archive:
        archive.writestr("__MACOSX/run/._x", b"")
        for path in sorted(root.rglob("*")):
            archive.write(path, path.relative_to(tmp_path))

    assert open_recording(tmp_path / "z.zip").rows["events"] == 7


def test_a_zip_member_that_leads_out_of_the_folder_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "evil.zip", "w") as archive:
        archive.writestr("../steps/part-00000.parquet", b"x")

    assert "leads out of the folder" in refusal(tmp_path / "evil.zip")
    assert not (tmp_path.parent / "steps").exists()


def test_a_zip_that_would_unpack_to_an_absurd_size_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "bomb.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("steps/part-00000.parquet", b"\0" * 20_000_000)

    assert "would unpack to 1 files and 0.0 GB from 0.0 MB" in refusal(tmp_path / "bomb.zip")


def test_two_recordings_in_one_zip_are_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "two.zip", "w") as archive:
        for side in "ab":
            archive.writestr(f"{side}/steps/part-00000.parquet", side)

    assert "more than one recording" in refusal(tmp_path / "two.zip")


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (b"", "the file is empty"),
        (b"PAR1xxxx", "a single Parquet file"),
        (b"PK\x03\x04xxxx", "the zip is cut off"),
        (b"hello", "neither a folder nor a zip"),
        (b"\x1f\x8b\x08\x00", "a gzip archive: unpack it first"),
    ],
)
def test_a_file_that_is_no_recording_says_what_it_is(
    tmp_path: Path, content: bytes, fault: str
) -> None:
    (tmp_path / "upload.bin").write_bytes(content)

    message = refusal(tmp_path / "upload.bin")

    assert fault in message
    assert message.startswith("upload.bin")


def test_a_folder_without_tables_says_what_a_recording_looks_like(tmp_path: Path) -> None:
    assert "steps/, events/ and requests/" in refusal(tmp_path)


def test_a_folder_around_one_recording_is_opened_as_that_recording(tmp_path: Path) -> None:
    write(tmp_path / "outer" / "run", **make_two_requests())

    assert open_recording(tmp_path / "outer").rows["steps"] == 4


def test_another_schema_version_is_refused_with_both_versions(tmp_path: Path) -> None:
    root = write(tmp_path / "run", steps=make_steps([1]), meta=make_meta(schema_version="0.9"))

    message = refusal(root)

    assert "schema version 0.9" in message
    assert "reads 1.0" in message


def test_a_missing_column_is_named(tmp_path: Path) -> None:
    root = write(tmp_path / "run", steps=make_steps([1]))
    rewrite_steps(root, drop=["used_blocks"])

    assert "column used_blocks: the column is missing" in refusal(root)


def test_a_recording_of_version_1_0_lacks_later_columns_and_opens(tmp_path: Path) -> None:
    old = make_meta(schema_version="1.0")
    root = write(tmp_path / "run", **make_two_requests(), meta=old)
    later = {"steps": ["restored_tokens"], "requests": ["restored_tokens", "arrival_step"]}
    for table, columns in later.items():
        path = root / table / "part-00000.parquet"
        pq.write_table(pq.read_table(path).drop_columns(columns), path)

    rec = open_recording(root)

    assert rec.steps["restored_tokens"].unique().to_list() == [0]
    assert rec.requests["arrival_step"].unique().to_list() == [None]
    assert rec.notes == ()


def test_a_recording_of_version_1_1_must_have_its_columns(tmp_path: Path) -> None:
    root = write(tmp_path / "run", steps=make_steps([1]))
    rewrite_steps(root, drop=["restored_tokens"])

    assert "column restored_tokens: the column is missing" in refusal(root)


def test_an_unknown_column_is_noted_and_left_out(tmp_path: Path) -> None:
    root = write(tmp_path / "run", steps=make_steps([1, 2]))
    rewrite_steps(root, add={"mood": pa.array(["good", "bad"])})

    rec = open_recording(root)

    assert rec.notes == ("Table steps has columns that this version does not know: mood.",)
    assert "mood" not in rec.steps.columns


def test_a_prefix_segment_of_less_than_no_tokens_is_named(tmp_path: Path) -> None:
    tables = make_two_requests()
    requests = tables["requests"]
    place = requests.schema.get_field_index("prefix_tokens")
    lists = pa.array([[16, 16], [16, -3]], pa.list_(pa.int64()))
    tables["requests"] = requests.set_column(place, requests.schema.field(place), lists)
    root = write(tmp_path / "run", **tables)

    assert "row 2, column prefix_tokens: a segment of -3 to 16 tokens" in refusal(root)


def test_a_wrong_type_is_named(tmp_path: Path) -> None:
    root = write(tmp_path / "run", steps=make_steps([1]))
    rewrite_steps(root, {"used_blocks": pa.array([1.0])})

    assert "column used_blocks: the type is double and should be int32" in refusal(root)


def test_a_null_in_a_column_without_nulls_is_found_though_arrow_lets_it_through(
    tmp_path: Path,
) -> None:
    root = write(tmp_path / "run", steps=make_steps([1, 2, 3]))
    rewrite_steps(root, {"used_blocks": pa.array([1, None, 3], pa.int32())})

    message = refusal(root)

    assert message.startswith(
        "part-00000.parquet, recording run, table steps, row 2, column used_blocks"
    )
    assert "null" in message


def test_plain_text_is_as_good_as_dictionary_text(tmp_path: Path) -> None:
    root = write(tmp_path / "run", **make_two_requests())
    path = root / "requests" / "part-00000.parquet"
    table = pq.read_table(path)
    text = table["status"].cast(pa.large_string())
    pq.write_table(
        table.set_column(table.schema.get_field_index("status"), "status", text), path
    )

    assert open_recording(root).requests["status"].to_list() == ["finished", "unfinished"]


@pytest.mark.parametrize(
    ("columns", "place", "fault"),
    [
        ({"step": [0, 2, 2]}, "row 3, column step", "step 2 follows step 2"),
        ({"t_start_s": [0.0, 2.0, 1.0]}, "row 3, column t_start_s", "the clock went back"),
        (
            {"duration_s": [1.0, -0.5, 1.0], "t_start_s": [0, 1, 2]},
            "row 2, column duration_s",
            "-0.5 is less than 0",
        ),
        (
            {"stall_s": [0.0, 0.0, float("nan")]},
            "row 3, column stall_s",
            "nan is not a finite number",
        ),
        ({"num_running": [1, -1, 1]}, "row 2, column num_running", "-1 is less than 0"),
        (
            {"free_blocks": [9, 8, 6]},
            "row 3, column used_blocks",
            "3 used + 6 free = 9 blocks, but the pool has 10",
        ),
        (
            {"cached_free_blocks": [9, 9, 0]},
            "row 2, column cached_free_blocks",
            "cached_free_blocks is 9 and free_blocks only 8",
        ),
        (
            {"fenced_blocks": [0, 0, 4]},
            "row 3, column fenced_blocks",
            "fenced_blocks is 4 and used_blocks only 3",
        ),
    ],
)
def test_a_broken_law_of_steps_names_row_and_column(
    tmp_path: Path, columns: dict[str, list[Any]], place: str, fault: str
) -> None:
    root = write(tmp_path / "run", steps=make_steps([1, 2, 3], **columns))

    message = refusal(root)

    assert place in message
    assert fault in message


def test_laws_hold_across_parts(tmp_path: Path) -> None:
    root = write(
        tmp_path / "run", steps=make_steps([1, 1, 1, 1], step=[0, 1, 1, 2]), rows_per_part=2
    )

    assert refusal(root).startswith(
        "part-00001.parquet, recording run, table steps, row 1, column step"
    )


def test_an_unknown_kind_of_event_is_refused(tmp_path: Path) -> None:
    events = make_events([{"step": 0, "kind": "explode", "request_id": "a"}])

    message = refusal(write(tmp_path / "run", steps=make_steps([1]), events=events))

    assert "'explode' is not one of arrive, admit" in message


def test_events_must_not_go_back_in_steps(tmp_path: Path) -> None:
    rows = [{"step": s, "kind": "arrive", "request_id": "a"} for s in (1, 0)]

    assert "step 0 follows step 1" in refusal(write(tmp_path / "run", events=make_events(rows)))


def test_an_event_of_an_unknown_request_is_refused(tmp_path: Path) -> None:
    events = make_events([{"step": 0, "kind": "arrive", "request_id": "ghost"}])

    assert "does not hold, such as 'ghost'" in refusal(write(tmp_path / "run", events=events))


def test_a_request_id_that_occurs_twice_is_refused(tmp_path: Path) -> None:
    requests = make_requests([{"request_id": "a"}, {"request_id": "a"}])

    assert "the id 'a' occurs more than once" in refusal(
        write(tmp_path / "run", requests=requests)
    )


def test_a_request_that_ends_before_it_arrives_is_refused(tmp_path: Path) -> None:
    requests = make_requests(
        [{"request_id": "a", "arrival_s": 5.0, "first_token_s": 6.0, "finish_s": 4.0}]
    )

    assert "finish_s is 4.0 s, before arrival_s at 5.0 s" in refusal(
        write(tmp_path / "run", requests=requests)
    )


def test_a_finished_request_needs_the_time_of_its_first_token(tmp_path: Path) -> None:
    requests = make_requests([{"request_id": "a", "finish_s": 4.0}])

    assert "lacks finish_s or first_token_s" in refusal(
        write(tmp_path / "run", requests=requests)
    )


def test_an_unclosed_recording_opens_with_a_note(tmp_path: Path) -> None:
    rec = record(tmp_path / "run", **make_two_requests(), closed=False)

    assert not rec.complete
    assert "its writer was stopped" in rec.notes[0]


def test_a_damaged_last_part_of_a_killed_writer_is_skipped_with_a_note(tmp_path: Path) -> None:
    root = write(
        tmp_path / "run", steps=make_steps([1, 2, 3, 4]), rows_per_part=2, closed=False
    )
    last = root / "steps" / "part-00001.parquet"
    last.write_bytes(last.read_bytes()[:-20])

    rec = open_recording(root)

    assert rec.steps["used_blocks"].to_list() == [1, 2]
    assert (
        "steps/part-00001.parquet is damaged and was skipped: what it held is lost."
        in rec.notes
    )


def test_a_part_that_was_being_written_is_skipped_with_a_note(tmp_path: Path) -> None:
    root = write(tmp_path / "run", steps=make_steps([1, 2]), closed=False)
    (root / "steps" / "part-00001.parquet.tmp").write_bytes(b"PAR1")

    rec = open_recording(root)

    assert rec.rows["steps"] == 2
    assert any("part-00001.parquet.tmp was being written" in n for n in rec.notes)


def test_a_damaged_part_in_the_middle_is_an_error(tmp_path: Path) -> None:
    root = write(tmp_path / "run", steps=make_steps([1, 2, 3]), rows_per_part=1, closed=False)
    (root / "steps" / "part-00001.parquet").write_bytes(b"PAR1")

    assert refusal(root).startswith(
        "part-00001.parquet, recording run, table steps: the Parquet file is damaged"
    )


def test_a_damaged_part_of_a_closed_recording_is_an_error(tmp_path: Path) -> None:
    root = write(tmp_path / "run", steps=make_steps([1, 2, 3]), rows_per_part=2)
    last = root / "steps" / "part-00001.parquet"
    last.write_bytes(last.read_bytes()[:-20])

    assert "damaged or cut off" in refusal(root)


def test_a_missing_part_is_an_error(tmp_path: Path) -> None:
    root = write(tmp_path / "run", steps=make_steps([1, 2, 3]), rows_per_part=1)
    (root / "steps" / "part-00001.parquet").unlink()

    assert refusal(root).startswith(
        "part-00001.parquet, recording run, table steps: the part is missing"
    )


def test_fewer_rows_than_were_written_are_an_error(tmp_path: Path) -> None:
    root = write(tmp_path / "run", steps=make_steps([1, 2, 3]), rows_per_part=2)
    (root / "steps" / "part-00001.parquet").unlink()

    assert "3 rows were written, but 2 are there" in refusal(root)


def test_a_part_of_another_run_is_an_error(tmp_path: Path) -> None:
    root = write(tmp_path / "run", steps=make_steps([1, 2]), rows_per_part=1)
    stray = make_steps([2], step=[1], t_start_s=[1.0])
    write_part(root, STEPS, 1, stray, json.dumps(make_meta(seed=7)).encode())

    assert "the part belongs to another run: its seed differs" in refusal(root)


def test_parquet_without_our_metadata_is_an_error(tmp_path: Path) -> None:
    root = write(tmp_path / "run", steps=make_steps([1]))
    rewrite_steps(root, metadata=b"")

    assert "no metadata under 'kv_replay'" in refusal(root)


def test_requests_that_a_killed_writer_never_wrote_are_derived_from_events(
    tmp_path: Path,
) -> None:
    tables = make_two_requests()
    tables["requests"] = tables["requests"].slice(1)

    rec = record(tmp_path / "run", **tables, closed=False)

    assert rec.reconstructed_requests == 1
    assert rec.requests["request_id"].to_list() == ["b", "a"]
    assert rec.requests.filter(pl.col("request_id") == "a").rows(named=True) == [
        {
            "request_id": "a",
            "arrival_s": 0.0,
            "prompt_tokens": None,
            "output_tokens": 4,
            "priority": None,
            "first_scheduled_s": 0.0,
            "first_token_s": None,
            "finish_s": 4.0,
            "num_preemptions": 0,
            "recomputed_tokens": None,
            "cached_tokens": 0,
            "swapped_bytes": 0,
            "preempted_s": 0.0,
            "max_itl_s": None,
            "status": "finished",
            "restored_tokens": 0,
            "arrival_step": 0,
            "prefix_ids": None,
            "prefix_tokens": None,
        }
    ]


def test_without_a_requests_table_preemptions_and_time_away_are_counted(tmp_path: Path) -> None:
    tables = make_two_requests()
    root = write(tmp_path / "run", **tables, closed=False)
    (root / "requests" / "part-00000.parquet").unlink()

    lost = open_recording(root).requests.filter(pl.col("request_id") == "b")

    assert lost.select("num_preemptions", "preempted_s", "cached_tokens", "status").row(0) == (
        1,
        2.0,
        4,
        "unfinished",
    )


def test_a_run_that_was_cancelled_says_so(tmp_path: Path) -> None:
    rec = record(tmp_path / "run", **make_two_requests(), status="cancelled")

    assert (rec.complete, rec.status) == (True, "cancelled")
    assert rec.notes == (
        "The run did not complete (cancelled): requests that it did not get to are unfinished.",
    )


DAMAGED_CLOSINGS = [
    "",
    "{",
    "[]",
    '{"rows": 3}',
    '{"rows": {"steps": "x"}}',
    '{"rows": {"steps": 1e400}}',
    "[" * 100_000,
    '{"rows": {"steps": %s}}' % ("9" * 5000),
]


@pytest.mark.parametrize("content", DAMAGED_CLOSINGS)
def test_a_damaged_closing_mark_counts_as_none(tmp_path: Path, content: str) -> None:
    root = write(tmp_path / "run", **make_two_requests())
    (root / "closed.json").write_text(content)

    rec = open_recording(root)

    assert (rec.complete, rec.status) == (False, "unclosed")
    assert rec.notes == ("closed.json is damaged, so the end of the run may be missing.",)


def test_a_folder_may_have_characters_that_patterns_use(tmp_path: Path) -> None:
    rec = record(tmp_path / "run [a*?]", **make_two_requests())

    assert rec.steps.height == 4


def test_random_damage_is_refused_or_harmless_but_never_another_error(tmp_path: Path) -> None:
    root = write(tmp_path / "run", **make_two_requests(), rows_per_part=4)
    files = sorted(p for p in root.rglob("*") if p.is_file())
    rng = random.Random(7)
    refused = 0

    for _ in range(40):
        path = rng.choice(files)
        whole = path.read_bytes()
        damaged = bytearray(whole)
        for _ in range(rng.choice([1, 2, 8])):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        path.write_bytes(damaged[: rng.choice([len(damaged), rng.randrange(len(damaged))])])
        try:
            assert open_recording(root).requests.height == 2
        except RecordingError:
            refused += 1
        path.write_bytes(whole)

    assert refused > 20


def test_a_part_that_is_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    root = write(tmp_path / "run", **make_two_requests())
    (root / "events" / "part-00000.parquet").unlink()
    os.mkfifo(root / "events" / "part-00000.parquet")

    assert "the part is not a regular file" in refusal(root)


def test_a_closing_mark_that_is_a_folder_counts_as_none(tmp_path: Path) -> None:
    root = write(tmp_path / "run", **make_two_requests(), closed=False)
    (root / "closed.json").mkdir()

    rec = open_recording(root)

    assert rec.status == "unclosed"
    assert rec.notes == ("closed.json is damaged, so the end of the run may be missing.",)


def test_metadata_that_is_nested_beyond_all_measure_is_an_error(tmp_path: Path) -> None:
    root = write(tmp_path / "run", steps=make_steps([1]))
    rewrite_steps(root, metadata=b"[" * 100_000)

    assert "the metadata is nested too deeply" in refusal(root)


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"pool_blocks": 2**70}, "pool_blocks 1180591620717411303424"),
        ({"pool_blocks": -1}, "pool_blocks -1, and it is a whole number from 0"),
        ({"pool_blocks": "10"}, "pool_blocks '10'"),
        ({"host_pool_blocks": 1.5}, "host_pool_blocks 1.5"),
        ({"block_bytes": -5}, "block_bytes -5"),
        ({"settings": {"block_size": 0}}, "settings.block_size 0, and it is a whole number from 1"),
        ({"settings": {"block_size": True}}, "settings.block_size True"),
        ({"settings": {"num_gpu_blocks": 2**70}}, "settings.num_gpu_blocks 1180591620717411303424"),
    ],
)  # fmt: skip
def test_sizes_in_the_metadata_are_checked(
    tmp_path: Path, changes: dict[str, Any], fault: str
) -> None:
    root = write(tmp_path / "run", steps=make_steps([1]), meta=make_meta(**changes))

    assert fault in refusal(root)


@pytest.mark.parametrize("at", [0.2, 0.5, 0.8])
def test_a_packed_zip_with_a_flipped_byte_is_an_error(tmp_path: Path, at: float) -> None:
    root = write(tmp_path / "run", **make_two_requests())
    path = tmp_path / "packed.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.write(root / "steps" / "part-00000.parquet", "steps/part-00000.parquet")
        packed = archive.getinfo("steps/part-00000.parquet").compress_size
    data = bytearray(path.read_bytes())
    for i in range(8):
        data[50 + int(at * packed) + i] ^= 0xFF
    path.write_bytes(data)

    assert "the zip cannot be read" in refusal(path)


@pytest.mark.parametrize(
    ("table", "column"),
    [
        ("steps", "duration_s"),
        ("steps", "stall_s"),
        ("steps", "t_start_s"),
        ("requests", "output_tokens"),
        ("requests", "arrival_s"),
    ],
)
def test_durations_and_lengths_beyond_all_measure_are_errors(
    tmp_path: Path, table: str, column: str
) -> None:
    tables = {"steps": make_steps([1]), "requests": make_requests([{"request_id": "a"}])}
    spec = tables[table]
    values = pa.array([2 * 10**9], type=spec.schema.field(column).type)
    tables[table] = spec.set_column(spec.column_names.index(column), column, values)
    root = write(tmp_path / "run", **tables)

    assert f"column {column}" in refusal(root)
    assert "is more than 1,000,000,000" in refusal(root)
