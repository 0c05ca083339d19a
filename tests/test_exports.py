"""Perfetto traces and tables of a range: typed slices, counters and rows of a small world."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TrackEvent

from analyzer import perfetto_export
from analyzer.__main__ import main
from analyzer.exports import write_export
from analyzer.look import Side
from analyzer.perfetto_export import write_trace
from analyzer.range_data import NAMES, table_of
from analyzer.run import Run
from tests.builders import make_blocks, record
from tests.report_builders import MARKUP, pair, pair_paths
from tests.worlds import chunked_return
from traces.errors import SettingsError
from traces.recording import open_recording, zip_recording

NS = 1_000_000_000


class Seen:
    """A trace read back: tracks by uuid, events in order."""

    def __init__(self, data: bytes) -> None:
        trace = Trace()
        trace.ParseFromString(data)
        self.tracks = {
            p.track_descriptor.uuid: p.track_descriptor
            for p in trace.packet
            if p.HasField("track_descriptor")
        }
        self.events = [
            (p.timestamp, p.track_event) for p in trace.packet if p.HasField("track_event")
        ]

    def track(self, name: str, process: str = "") -> int:
        """The uuid of the only track of that name (in that process)."""
        (uuid,) = (
            u
            for u, t in self.tracks.items()
            if t.name == name and process in ("", self.process_of(u))
        )
        return uuid

    def process_of(self, uuid: int) -> str:
        while parent := self.tracks[uuid].parent_uuid:
            uuid = parent
        return str(self.tracks[uuid].process.process_name)

    def slices(self, uuid: int) -> list[tuple[str, float, float]]:
        """(name, start, end) in seconds, each begin with the end that follows."""
        found: list[tuple[str, float, float]] = []
        for at, event in self.events:
            if event.track_uuid != uuid:
                continue
            if event.type == TrackEvent.TYPE_SLICE_BEGIN:
                found.append((event.name, at / NS, -1.0))
            elif event.type == TrackEvent.TYPE_SLICE_END:
                name, start, _ = found.pop()
                found.append((name, start, at / NS))
        return found

    def values(self, uuid: int) -> list[tuple[float, int]]:
        return [(at / NS, e.counter_value) for at, e in self.events if e.track_uuid == uuid]


def traced(runs: dict[Side, Run], part: tuple[float, float] | None = None) -> Seen:
    file = io.BytesIO()
    write_trace(file, runs, part)
    return Seen(file.getvalue())


def test_a_request_is_a_track_with_a_slice_for_each_state(tmp_path: Path) -> None:
    seen = traced({"A": pair(tmp_path)[0]})

    assert seen.slices(seen.track("a")) == [("prefill", 0.0, 1.0), ("decode", 1.0, 6.0)]
    assert seen.slices(seen.track("b")) == [
        ("queued", 0.5, 1.0),
        ("prefill", 1.0, 2.0),
        ("decode", 2.0, 3.0),
        ("preempted", 3.0, 6.0),
        ("decode", 6.0, 9.0),
    ]
    assert seen.tracks[seen.tracks[seen.track("b")].parent_uuid].name == "Requests"


def test_counters_hold_the_value_of_each_step_that_changes_it(tmp_path: Path) -> None:
    seen = traced({"A": pair(tmp_path)[0]})

    used = seen.track("KV blocks in use")
    assert seen.values(used) == [(0, 4), (1, 8), (2, 10), (3, 6), (6, 4), (9, 4)]
    assert seen.tracks[used].counter.unit_name == "blocks"
    assert seen.values(seen.track("Waiting")) == [(0, 0), (3, 1), (6, 0), (9, 0)]
    assert seen.values(seen.track("Running"))[:2] == [(0, 1), (1, 2)]
    assert "Host blocks in use" not in {t.name for t in seen.tracks.values()}


def test_a_preemption_is_an_instant_that_says_what_it_cost(tmp_path: Path) -> None:
    seen = traced({"A": pair(tmp_path)[0]})

    ((at, event),) = [e for e in seen.events if e[1].type == TrackEvent.TYPE_INSTANT]
    notes: dict[str, Any] = {
        n.name: n.string_value or n.int_value or n.double_value for n in event.debug_annotations
    }
    assert at == 3 * NS
    assert event.name == "recompute b"
    assert seen.tracks[event.track_uuid].name == "Preemptions"
    assert notes["evicted for"] == "a"
    assert notes["tokens computed again"] == 4
    assert notes["direct cost (s)"] == pytest.approx(0.4 * 4 / 6)
    assert notes["away (s)"] == 3.0


def test_two_runs_are_two_processes(tmp_path: Path) -> None:
    a, b = pair(tmp_path)

    seen = traced({"A": a, "B": b})

    tops = [t.process for t in seen.tracks.values() if t.HasField("process")]
    assert [(p.pid, p.process_name) for p in tops] == [(1, "A recompute"), (2, "B swap")]
    assert seen.slices(seen.track("b", "A recompute")) == seen.slices(seen.track("b", "B swap"))


def test_a_range_cuts_slices_and_leaves_out_who_was_not_there(tmp_path: Path) -> None:
    seen = traced({"A": pair(tmp_path)[0]}, (6.5, 8.0))

    assert seen.slices(seen.track("b")) == [("decode", 6.5, 8.0)]
    assert "a" not in {t.name for t in seen.tracks.values()}
    assert {at for at, e in seen.events if e.type == TrackEvent.TYPE_COUNTER} <= {
        round(t * NS) for t in (6.5, 7, 8)
    }


def test_of_many_requests_the_preempted_ones_are_kept_and_the_rest_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(perfetto_export, "MOST_REQUESTS", 1)
    file = io.BytesIO()

    found = write_trace(file, {"A": pair(tmp_path)[0]})

    seen = Seen(file.getvalue())
    assert found["A"].words() == "1 requests were left out"
    assert seen.slices(seen.track("b"))
    assert "a" not in {t.name for t in seen.tracks.values()}
    (top,) = (t for t in seen.tracks.values() if t.HasField("process"))
    assert "1 requests were left out" in top.description


def test_a_long_trace_is_written_in_chunks_and_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = pair(tmp_path)[0]
    whole = traced({"A": run})
    monkeypatch.setattr(perfetto_export, "_CHUNK", 3)

    cut = traced({"A": run})

    assert cut.tracks == whole.tracks
    assert cut.events == whole.events


def test_names_of_a_trace_are_the_text_of_the_recording_as_it_is(tmp_path: Path) -> None:
    seen = traced({"A": pair(tmp_path, MARKUP)[0]})

    assert seen.slices(seen.track(MARKUP))
    assert any(e.name == f"recompute {MARKUP}" for _, e in seen.events)


def test_an_endless_id_is_cut_in_a_trace(tmp_path: Path) -> None:
    seen = traced({"A": pair(tmp_path, "i" * 1_000_000)[0]})

    assert max(len(t.name) for t in seen.tracks.values()) == 120


# ---- tables -----------------------------------------------------------------------------------------


def rows(run: Run, name: str, part: tuple[float, float] | None) -> pl.DataFrame:
    frame = table_of(run, name, part)
    assert frame is not None
    return frame.collect()


def test_rows_of_a_range_are_those_that_touch_it(tmp_path: Path) -> None:
    run = pair(tmp_path)[0]

    part = (6.5, 8.0)
    assert rows(run, "steps", part)["step"].to_list() == [5, 6, 7]
    assert rows(run, "events", (3.0, 6.0))["kind"].cast(pl.String).to_list() == [
        "preempt", "finish", "resume",
    ]  # fmt: skip
    assert rows(run, "requests", part)["request_id"].to_list() == ["b"]
    assert rows(run, "preemptions", part).height == 0
    assert rows(run, "preemptions", (0.0, 3.0))["recomputed_tokens"].to_list() == [4]
    assert rows(run, "steps", None).height == 8


def test_blocks_of_a_range_are_those_held_in_one_of_its_steps(tmp_path: Path) -> None:
    held = [
        {"block_id": i, "request_id": "a", "logical_index": 0, "first_step": f, "last_step": t}
        for i, f, t in ((1, 0, 2), (2, 2, 5), (3, 6, 7))
    ]
    world = {**chunked_return(), "blocks": make_blocks(held)}
    run = Run("", record(tmp_path, **world))

    assert rows(run, "blocks", (3.5, 5.5))["block_id"].to_list() == [2]  # steps 3 and 4


def test_csv_and_parquet_hold_the_same_rows_with_the_run_beside_them(tmp_path: Path) -> None:
    a, b = pair(tmp_path)
    out = {kind: tmp_path / f"t{kind}" for kind in (".csv", ".parquet")}

    for path in out.values():
        assert write_export(path, {"A": a, "B": b}, (0.0, 2.5), "steps") == []

    parquet, csv = pl.read_parquet(out[".parquet"]), pl.read_csv(out[".csv"])
    assert parquet["run"].to_list() == ["A"] * 3 + ["B"] * 3
    assert parquet["used_blocks"].to_list() == [4, 8, 10] * 2
    assert csv.columns == parquet.columns
    assert csv["used_blocks"].to_list() == parquet["used_blocks"].to_list()


def test_lists_become_text_in_csv(tmp_path: Path) -> None:
    world = chunked_return()
    requests = world["requests"]
    at = requests.schema.get_field_index("prefix_ids")
    field = requests.schema.field(at)
    world["requests"] = requests.set_column(at, field, pa.array([[7, 8], None], field.type))
    run = Run("", record(tmp_path / "run", **world))

    write_export(tmp_path / "r.csv", {"A": run}, None, "requests")

    assert pl.read_csv(tmp_path / "r.csv", infer_schema=False)["prefix_ids"].to_list() == ["7 8", None]  # fmt: skip


def test_a_zip_holds_all_tables_their_meaning_and_the_hashes(tmp_path: Path) -> None:
    a, b = pair(tmp_path)
    out = tmp_path / "data.zip"

    write_export(out, {"A": a, "B": b}, (0.0, 2.5))

    with zipfile.ZipFile(out) as archive:
        names = set(archive.namelist())
        columns = json.loads(archive.read("columns.json"))
        proof = json.loads(archive.read("evidence-A.json"))
        steps = pl.read_parquet(io.BytesIO(archive.read("B/steps.parquet")))
        assert "rows that belong to 0 to 2.5 s" in archive.read("README.txt").decode()
    assert names == {
        "README.txt", "columns.json", "evidence-A.json", "evidence-B.json",
        *(f"{s}/{t}.parquet" for s in "AB" for t in ("steps", "events", "requests", "preemptions")),
    }  # fmt: skip
    assert columns["steps"]["stall_s"]["unit"] == "s"
    assert proof["recording"] == "recompute"
    assert len(proof["digest_sha256"]) == 64
    assert steps.height == 3


def test_blocks_that_were_not_recorded_are_said(tmp_path: Path) -> None:
    run = pair(tmp_path)[0]

    with pytest.raises(SettingsError, match=r"recompute has no table blocks: .*--blocks"):
        write_export(tmp_path / "b.csv", {"A": run}, None, "blocks")

    assert not (tmp_path / "b.csv").exists()


def test_an_unknown_table_lists_those_there_are(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=", ".join(NAMES)):
        write_export(tmp_path / "b.csv", {"A": pair(tmp_path)[0]}, None, "nonsense")


def test_a_range_after_the_end_exports_nothing_and_says_so(tmp_path: Path) -> None:
    with pytest.raises(
        SettingsError, match=r"begins at 20 s, and the last step ends at 9.000 s"
    ):
        write_export(tmp_path / "s.csv", {"A": pair(tmp_path)[0]}, (20.0, 30.0))

    assert not (tmp_path / "s.csv").exists()


@pytest.mark.parametrize("suffix", [".perfetto-trace", ".pftrace", ".parquet", ".csv", ".zip"])
def test_the_command_exports_each_kind(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], suffix: str
) -> None:
    a, b = pair_paths(tmp_path)
    out = tmp_path / f"out{suffix}"

    assert main(["export", str(a), str(b), "--out", str(out), "--range", "1:5"]) == 0

    assert f"out{suffix}: " in capsys.readouterr().out
    assert out.stat().st_size > 100


def test_another_suffix_is_refused_before_anything_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", "nowhere", "--out", str(tmp_path / "x.json")]) == 2

    assert "'.json' is no kind of file" in capsys.readouterr().err


def test_a_zip_of_a_recording_exports_as_its_folder_does(tmp_path: Path) -> None:
    folder, _ = pair_paths(tmp_path)
    archive = zip_recording(folder, tmp_path / "run.zip")

    with open_recording(archive) as unpacked:
        zipped = traced({"A": Run("", unpacked)})

    assert zipped.events == traced({"A": Run("", open_recording(folder))}).events
