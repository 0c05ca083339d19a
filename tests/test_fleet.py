"""A directory of recordings as one fleet: what is found, which rank it is, and what is said of it."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import traces
from tests.builders import make_meta, make_requests, make_steps, write
from tests.test_telemetry_files import write as write_telemetry
from traces.__main__ import main
from traces.description import describe
from traces.errors import RecordingError, WorkloadError
from traces.fleet import Fleet, open_fleet
from traces.recording import Recording, open_recording
from traces.telemetry import Telemetry


def two_ranks(root: Path, **of_second: Any) -> Path:
    """Ranks 0 and 1 beside each other; keyword arguments change the second's metadata."""
    write(root / "rank-00", make_steps([1, 2, 3]))
    write(root / "rank-01", make_steps([4, 5]), meta=make_meta(**of_second))
    return root


def test_ranks_beside_each_other_open_as_one_fleet(tmp_path: Path) -> None:
    fleet = traces.open_any(two_ranks(tmp_path / "run"))

    assert isinstance(fleet, Fleet)
    assert fleet.label == "run"
    assert [(m.label, m.rank, m.kind) for m in fleet.members] == [
        ("rank-00", 0, "recording"),
        ("rank-01", 1, "recording"),
    ]
    assert fleet.notes == ()
    with fleet.member(1).open_recording() as recording:
        assert recording.label == "rank-01"
        assert recording.steps["used_blocks"].to_list() == [4, 5]


def test_a_recording_is_a_fleet_of_one(tmp_path: Path) -> None:
    fleet = open_fleet(write(tmp_path / "rank-03", make_steps([1, 2])))

    assert [(m.label, m.rank, m.kind) for m in fleet.members] == [("rank-03", 3, "recording")]
    with fleet.members[0].open_recording() as recording:
        assert recording.rows["steps"] == 2


def test_opening_a_fleet_reads_no_row(tmp_path: Path) -> None:
    root = two_ranks(tmp_path / "run")
    broken_law = make_steps([1, 99])  # more blocks used than the pool has
    write(root / "rank-02", broken_law)

    fleet = open_fleet(root)

    assert len(fleet.members) == 3
    with pytest.raises(RecordingError):
        fleet.member(2).open_recording()


def test_folders_that_a_live_recorder_named_are_ordered_by_rank(tmp_path: Path) -> None:
    for rank in (10, 2):
        write(tmp_path / f"20261129T193627Z-a1b2c-rank-{rank:02d}", make_steps([1]))
    write_telemetry(tmp_path / "20261129T193629Z-a1b2c-stats-00")

    fleet = open_fleet(tmp_path)

    assert [m.rank for m in fleet.recordings] == [2, 10]
    assert [m.rank for m in fleet.telemetry] == [0]
    assert fleet.recordings[0].run is not None
    assert fleet.recordings[0].run.server == "a1b2c"
    assert isinstance(fleet.telemetry[0].open_telemetry(), Telemetry)


def test_the_rank_in_the_metadata_decides_over_the_name(tmp_path: Path) -> None:
    write(tmp_path / "one", make_steps([1]), meta=make_meta(rank=7))
    write(tmp_path / "rank-03", make_steps([1]), meta=make_meta(live={"data_parallel_rank": 5}))

    assert [m.rank for m in open_fleet(tmp_path).members] == [5, 7]


def test_runs_with_a_folder_of_ranks_each_are_found_two_folders_deep(tmp_path: Path) -> None:
    for run in ("monday", "tuesday"):
        two_ranks(tmp_path / run)

    labels = [m.label for m in open_fleet(tmp_path).members]

    assert sorted(labels) == [
        "monday/rank-00",
        "monday/rank-01",
        "tuesday/rank-00",
        "tuesday/rank-01",
    ]


def test_a_folder_with_one_recording_opens_as_that_recording(tmp_path: Path) -> None:
    write(tmp_path / "run" / "rank-00", make_steps([1, 2]))

    opened = traces.open_any(tmp_path)

    assert isinstance(opened, Recording)
    assert opened.rows["steps"] == 2


def test_a_folder_with_one_telemetry_opens_as_that_telemetry(tmp_path: Path) -> None:
    write_telemetry(tmp_path / "run" / "stats-00")

    assert isinstance(traces.open_any(tmp_path), Telemetry)
    assert isinstance(traces.open_any(tmp_path / "run" / "stats-00"), Telemetry)


def test_a_broken_rank_is_named_and_not_fatal(tmp_path: Path) -> None:
    root = two_ranks(tmp_path / "run")
    for part in (root / "rank-01").rglob("*.parquet"):
        part.write_bytes(b"PAR1 no more")
    (root / "rank-02").mkdir()

    fleet = open_fleet(root)

    assert [m.label for m in fleet.members] == ["rank-00"]
    assert [b.label for b in fleet.broken] == ["rank-01", "rank-02"]
    assert "rank-01 was left out: none of its Parquet files can be read" in fleet.notes[0]
    assert "rank-02 was left out: the folder holds no table" in fleet.notes[1]


def test_mixed_versions_leave_out_what_cannot_be_read(tmp_path: Path) -> None:
    root = two_ranks(tmp_path / "run", schema_version="9.9")

    fleet = open_fleet(root)

    assert [m.label for m in fleet.members] == ["rank-00"]
    assert "schema version 9.9" in fleet.notes[0]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model": {"name": "big"}}, None),
        ({"settings": {"num_gpu_blocks": 11, "block_size": 8}}, "block size (4: rank-00; 8: rank-01)"),
        ({"executor": "vllm"}, "what recorded them (simulator: rank-00; vllm: rank-01)"),
        ({"pool_blocks": 20}, "pool (10: rank-00; 20: rank-01)"),
    ],
)  # fmt: skip
def test_members_that_disagree_are_named(
    tmp_path: Path, changes: dict[str, Any], said: str | None
) -> None:
    notes = open_fleet(two_ranks(tmp_path / "run", **changes)).notes

    if said is None:  # one of them does not say its model
        assert notes == ()
    else:
        assert any(f"The members differ in {said}." in n for n in notes)


def test_ranks_that_are_not_there_are_named(tmp_path: Path) -> None:
    root = two_ranks(tmp_path / "run", live={"data_parallel_size": 4})

    notes = open_fleet(root).notes

    assert "Of 4 data-parallel ranks, 2 are not here: 2, 3." in notes


def test_members_that_never_ran_together_are_named(tmp_path: Path) -> None:
    write(tmp_path / "rank-00", make_steps([1, 2]), meta=make_meta(start_unix_s=1_000.0))
    write(tmp_path / "rank-01", make_steps([1, 2]), meta=make_meta(start_unix_s=1_600.0))

    notes = open_fleet(tmp_path).notes

    assert any("rank-01 began 599 s after rank-00 had ended" in n for n in notes)


def test_members_that_overlap_in_time_are_not_remarked_on(tmp_path: Path) -> None:
    write(tmp_path / "rank-00", make_steps([1, 2]), meta=make_meta(start_unix_s=1_000.0))
    write(
        tmp_path / "rank-01",
        make_steps([1, 2]),
        meta=make_meta(live={"started_unix_s": 1_000.5}),
    )

    assert open_fleet(tmp_path).notes == ()


def test_restarts_in_one_directory_are_told_apart(tmp_path: Path) -> None:
    write(tmp_path / "20261129T193627Z-aaaaa-rank-00", make_steps([1]))
    write(tmp_path / "20261129T203627Z-bbbbb-rank-00", make_steps([1]))

    notes = open_fleet(tmp_path).notes

    assert any("2 servers or restarts (aaaaa from 20261129T193627Z: 1" in n for n in notes)
    assert not any("more than once" in n for n in notes)


def test_asking_for_a_rank_that_is_not_there_lists_what_is(tmp_path: Path) -> None:
    fleet = open_fleet(two_ranks(tmp_path / "run"))

    with pytest.raises(RecordingError) as caught:
        fleet.member(5)

    assert "no member is rank 5" in str(caught.value)
    assert "rank-00, rank-01" in str(caught.value)
    assert "run/rank-00" in str(caught.value)


def test_a_member_is_opened_as_what_it_is(tmp_path: Path) -> None:
    write(tmp_path / "rank-00", make_steps([1]))
    write_telemetry(tmp_path / "stats-00")
    fleet = open_fleet(tmp_path)

    with pytest.raises(RecordingError, match="this is telemetry"):
        fleet.member("stats-00").open_recording()
    with pytest.raises(RecordingError, match="this is a recording"):
        fleet.member("rank-00").open_telemetry()


def test_an_empty_folder_is_said_to_be_empty(tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match="the folder is empty"):
        traces.open_any(tmp_path)
    assert describe(tmp_path)["reason"] == "the folder is empty"


def test_a_folder_of_other_files_is_no_fleet(tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.txt").write_text("x")

    with pytest.raises(WorkloadError, match="it is a folder, not a file"):
        traces.open_any(tmp_path)
    with pytest.raises(RecordingError, match="the folder holds no recording"):
        open_fleet(tmp_path)


def test_ranks_of_which_none_can_be_read_give_the_first_reason(tmp_path: Path) -> None:
    for rank in range(2):
        folder = tmp_path / f"rank-{rank:02d}" / "steps"
        folder.mkdir(parents=True)
        pq.write_table(pa.table({"a": [1]}), folder / "part-00000.parquet")

    with pytest.raises(RecordingError) as caught:
        traces.open_any(tmp_path)

    assert "none of its 2 recordings can be read" in str(caught.value)
    assert "rank-00" in str(caught.value)
    assert "was not written by KV Replay" in str(caught.value)


def test_files_and_missing_folders_are_no_fleet(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x")

    with pytest.raises(RecordingError, match="a fleet is a folder of recordings"):
        open_fleet(tmp_path / "a.txt")
    with pytest.raises(RecordingError, match="no such file or folder"):
        open_fleet(tmp_path / "nowhere")


def test_describe_names_the_members_and_how_to_open_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = two_ranks(tmp_path / "run")
    (root / "rank-02").mkdir()

    assert main(["describe", str(root)]) == 0
    text = capsys.readouterr().out
    assert main(["describe", str(root), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)

    assert "fleet of 2 recordings, 1 that cannot be read" in text
    assert "rank 1: recording rank-01" in text
    assert "open one by its own path, such as run/rank-00" in text
    assert found["kind"] == "fleet"
    assert found["members"][1] == {"label": "rank-01", "kind": "recording", "rank": 1}
    assert found["broken"][0]["label"] == "rank-02"


def test_describe_says_what_telemetry_holds_and_misses(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = write_telemetry(tmp_path / "t")

    assert main(["describe", str(root)]) == 0
    text = capsys.readouterr().out
    assert main(["describe", str(root), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)

    assert "telemetry: KV Replay telemetry of vllm 0.26.0" in text
    assert "3 samples in 20.000 s, engine rank 0" in text
    assert "values: kv_usage_frac, num_running" in text
    assert found["kind"] == "telemetry"
    assert found["values"] == ["kv_usage_frac", "num_running"]
    assert "num_preempted" in found["missing"][""]


def test_a_recording_is_never_taken_for_telemetry(tmp_path: Path) -> None:
    write(tmp_path / "r", make_steps([1]), requests=make_requests([]))

    assert describe(tmp_path / "r")["kind"] == "recording"


def test_where_one_recording_is_needed_a_fleet_names_its_ranks(tmp_path: Path) -> None:
    with pytest.raises(RecordingError) as caught:
        open_recording(two_ranks(tmp_path / "run"))

    assert "2 recordings (rank-00, rank-01)" in str(caught.value)
    assert "such as run/rank-00" in str(caught.value)


def test_a_zip_of_several_ranks_names_them(tmp_path: Path) -> None:
    two_ranks(tmp_path / "run")
    with zipfile.ZipFile(tmp_path / "run.zip", "w") as archive:
        for part in sorted((tmp_path / "run").rglob("*.*")):
            archive.write(part, part.relative_to(tmp_path / "run"))

    with pytest.raises(RecordingError) as caught:
        traces.open_any(tmp_path / "run.zip")

    assert "more than one recording (rank-00, rank-01, ...)" in str(caught.value)
    assert "give the folder of one of them" in str(caught.value)


def test_where_a_recording_is_needed_telemetry_says_what_it_is(tmp_path: Path) -> None:
    root = write_telemetry(tmp_path / "run" / "stats-00")

    for path in (root, root.parent):
        with pytest.raises(RecordingError, match="the folder holds telemetry"):
            open_recording(path)
