"""Rows are checked in pieces, looked at once: what is told is what a close look at all rows tells."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from analyzer.run import Run
from tests.builders import POOL, make_events, make_meta, make_requests, make_steps, write
from tests.long_worlds import keep, tables
from traces import column_groups, recording_pieces
from traces.errors import RecordingError
from traces.recording import open_recording
from traces.recording_files import metadata_bytes, write_closed
from traces.recording_laws import EventLaws, Place, RequestLaws, StepLaws, check_values
from traces.recording_pieces import cut, to_polars
from traces.recording_reading import Reading
from traces.recording_screen import frame_holds, numbers_of, steps_hold, typed
from traces.schema import EVENTS, METADATA_KEY, REQUESTS, STEPS, Table
from traces.workers import Threads

LAWS: dict[str, Callable[[], Any]] = {
    "steps": lambda: StepLaws(POOL),
    "events": EventLaws,
    "requests": RequestLaws,
}
BAD: dict[Any, list[Any]] = {
    pa.int32(): [-1, 0, 3, 2**31 - 1, None],
    pa.int64(): [-1, 0, 3, 10**9 + 1, 2**60, None],
    pa.float64(): [-1.0, 0.0, float("nan"), float("inf"), 1e12, None],
    pa.string(): ["", "somebody", None],
    pa.dictionary(pa.int32(), pa.string()): ["preempt", "cheapest", "swap", "gone", "finished", None],
    pa.list_(pa.uint64()): [[], [1, 2], None],
    pa.list_(pa.int64()): [[], [-1], [2**31 + 1], [4, 4], None],
}  # fmt: skip


def looks_sound(batch: pa.RecordBatch, spec: Table) -> bool:
    law = LAWS[spec.name]()
    if spec is STEPS:
        return steps_hold(numbers_of(batch), law)
    frame = to_polars(batch, spec)
    return frame_holds(frame, typed(frame, spec), spec, law)


def fault(batch: pa.RecordBatch, spec: Table) -> str:
    """What a close look says; "" where every law is kept."""
    frame, place = to_polars(batch, spec), Place("part", "r", spec.name)
    try:
        check_values(frame, spec, place)
        LAWS[spec.name]().check(frame, place)
    except RecordingError as error:
        return str(error)
    return ""


def one_batch(table: pa.Table) -> pa.RecordBatch:
    return table.combine_chunks().to_batches()[0]


def changed(table: pa.Table, row: int, column: str, value: Any) -> pa.Table:
    values = table[column].to_pylist()
    values[row] = value
    at = table.schema.get_field_index(column)
    field = table.schema.field(at).with_nullable(True)
    return table.set_column(at, field, pa.array(values, field.type))


@pytest.mark.parametrize("spec", [STEPS, EVENTS, REQUESTS], ids=lambda s: s.name)
def test_a_look_never_passes_what_a_close_look_refuses(spec: Table) -> None:
    given = tables(400, seed=3)[spec.name]
    rng = np.random.default_rng(1)
    found = {"both refuse": 0, "both pass": 0}

    assert looks_sound(one_batch(given), spec)
    for _ in range(600):
        column = spec.columns[rng.integers(len(spec.columns))]
        bad = BAD[column.type]
        value = bad[rng.integers(len(bad))]
        batch = one_batch(changed(given, int(rng.integers(given.num_rows)), column.name, value))
        said = fault(batch, spec)
        assert looks_sound(batch, spec) == (not said), (column.name, value, said)
        found["both refuse" if said else "both pass"] += 1

    assert min(found.values()) > 60


def test_a_column_of_later_rows_is_read_where_the_batch_is_a_slice() -> None:
    steps = make_steps([1] * 40, num_decode=[None if i % 3 else i for i in range(40)])
    whole = one_batch(steps)

    numbers = numbers_of(whole.slice(11, 20))

    assert numbers["step"].values.tolist() == list(range(11, 31))
    valid = numbers["num_decode"].valid
    assert valid is not None
    assert valid.tolist() == [i % 3 == 0 for i in range(11, 31)]
    assert numbers["num_decode"].values.tolist() == [0 if i % 3 else i for i in range(11, 31)]


# ---- where two pieces meet ----------------------------------------------------------------------


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording_pieces, "PIECE_ROWS", 40)
    monkeypatch.setattr(recording_pieces, "BATCH_ROWS", 16)
    monkeypatch.setattr(recording_pieces, "STEPS_ROWS", 16)


def in_row_groups(root: Path, given: dict[str, pa.Table], rows: int) -> Path:
    """One part a table, in row groups of so many rows."""
    for name, table in given.items():
        (root / name).mkdir(parents=True)
        metadata = {METADATA_KEY: metadata_bytes(make_meta())}
        part = root / name / "part-00000.parquet"
        pq.write_table(table.replace_schema_metadata(metadata), part, row_group_size=rows)
    write_closed(root, {name: table.num_rows for name, table in given.items()})
    return root


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("rows", [7, 16, 64])
def test_pieces_of_a_part_are_kept_in_their_order(tmp_path: Path, rows: int) -> None:
    given = tables(500)
    nulls = [None if 100 < i < 140 or i % 90 == 7 else i for i in range(500)]
    given["steps"] = make_steps(
        given["steps"]["used_blocks"].to_pylist(),
        num_decode=nulls,
        num_chunks=[None] * 500,
        chunk_tokens=list(range(500)),
    )
    path = in_row_groups(tmp_path / "r", given, rows)

    found = open_recording(path, keep=keep(tmp_path / "kept"))

    for name in ("steps", "events", "requests"):
        ours, theirs = getattr(found, name), getattr(open_recording(path), name)
        assert ours.equals(theirs, null_equal=True), name
    assert found.steps["num_decode"].to_list() == nulls
    assert found.steps["num_chunks"].null_count() == 500
    assert found.steps["chunk_tokens"].to_list() == list(range(500))


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("rows", [7, 16, 64, 500])
def test_groups_that_were_made_in_pieces_are_those_of_all_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    monkeypatch.setattr(column_groups, "LEAST_GROUP", 8)
    given = tables(500)
    path = in_row_groups(tmp_path / "r", given, rows)

    found = open_recording(path, keep=keep(tmp_path / "kept")).mapped

    assert found is not None
    for column in STEPS.columns:
        groups = found.groups(column.name)
        assert (groups is None) == column.nullable, column.name
        if groups is None:
            continue
        values = np.array(given["steps"][column.name].to_pylist())
        groups_of_8 = [values[i : i + 8] for i in range(0, 500, 8)]
        assert groups.least.tolist() == [v.min() for v in groups_of_8], column.name
        assert groups.greatest.tolist() == [v.max() for v in groups_of_8], column.name
        sums = np.concatenate([[0], np.cumsum([v.sum() for v in groups_of_8])])
        assert groups.upto == pytest.approx(sums, rel=1e-12), column.name
        assert groups.least.dtype == column.type.to_pandas_dtype()


def test_the_end_of_the_last_step_is_kept_behind_the_starts(tmp_path: Path) -> None:
    given = tables(500)
    path = write(tmp_path / "r", **given)

    found = open_recording(path, keep=keep(tmp_path / "kept")).mapped

    assert found is not None
    starts, durations = (given["steps"][n].to_pylist() for n in ("t_start_s", "duration_s"))
    assert found.edges_s().tolist() == [*starts, starts[-1] + durations[-1]]


@pytest.mark.usefixtures("small_pieces")
def test_groups_are_not_kept_where_stated_rows_were_lost(tmp_path: Path) -> None:
    given = tables(400)
    path = write(tmp_path / "r", rows_per_part=100, closed=False, **given)
    last = path / "steps" / "part-00003.parquet"
    raw = bytearray(last.read_bytes())
    raw[40:400] = bytes(360)  # its head is sound, its rows are not
    last.write_bytes(raw)

    found = open_recording(path, keep=keep(tmp_path / "kept"))

    assert found.steps.height == 300
    assert found.mapped is not None
    assert found.mapped.groups("used_blocks") is None
    run = Run("file:x", found)
    column = run.column("used_blocks")
    assert column.greatest == max(given["steps"]["used_blocks"].to_pylist()[:300])


@pytest.mark.usefixtures("small_pieces")
def test_a_part_is_cut_at_row_groups_into_pieces_that_are_not_empty(tmp_path: Path) -> None:
    path = in_row_groups(tmp_path / "r", {"steps": make_steps([1] * 100)}, 16)
    part = path / "steps" / "part-00000.parquet"

    found = list(cut(pq.read_metadata(part), part, part, ("step",), at=1_000, number=5))

    assert [p.row_groups for p in found] == [(0, 1, 2), (3, 4, 5), (6,)]
    assert [(p.row_offset, p.num_rows, p.at, p.number) for p in found] == [
        (0, 48, 1_000, 5),
        (48, 48, 1_048, 6),
        (96, 4, 1_096, 7),
    ]


SEAMS = [
    ("steps", "step", 47, "table steps, row 49, column step", "step 48 follows step 48"),
    ("steps", "t_start_s", 47, "table steps, row 49, column t_start_s", "the clock went back"),
    ("events", "step", 47, "table events, row 49, column step", "step 48 follows step 99"),
]


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize(("table", "column", "row", "place", "said"), SEAMS)
def test_a_law_broken_where_two_pieces_meet_is_told_with_its_row(
    tmp_path: Path, table: str, column: str, row: int, place: str, said: str
) -> None:
    given = {
        "steps": make_steps([1] * 100),
        "events": make_events(
            {"step": i, "kind": "admit", "request_id": "r"} for i in range(100)
        ),
        "requests": make_requests([{"request_id": "r"}]),
    }
    value: Any = {"step": 48, "t_start_s": 48.5}[column]
    given[table] = changed(given[table], row, column, 99 if table == "events" else value)
    path = in_row_groups(tmp_path / "r", given, 16)

    for kept in (None, keep(tmp_path / "kept")):
        with pytest.raises(RecordingError) as caught:
            open_recording(path, keep=kept)
        assert place in str(caught.value)
        assert said in str(caught.value)


@pytest.mark.usefixtures("small_pieces")
def test_a_pool_that_no_metadata_states_must_be_one_in_all_pieces(tmp_path: Path) -> None:
    steps = make_steps([1] * 150)
    steps = changed(steps, 0, "free_blocks", 8)  # the pool is 9, and all others say 10
    settings = {"block_size": 4, "preemption_mode": "recompute"}
    meta = make_meta(pool_blocks=None, settings=settings)
    path = write(tmp_path / "r", steps=steps, meta=meta, rows_per_part=1)

    with pytest.raises(RecordingError) as caught:
        open_recording(path, keep=keep(tmp_path / "kept"))

    assert "part-00001.parquet" in str(caught.value)
    assert "1 used + 9 free = 10 blocks, but the pool has 9" in str(caught.value)


@pytest.mark.usefixtures("small_pieces")
def test_fewer_rows_than_row_groups_announce_are_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = in_row_groups(tmp_path / "r", {**tables(500)}, 64)
    true = cut

    def announce_more(*given: Any) -> Any:
        return [replace(piece, num_rows=piece.num_rows + 1) for piece in true(*given)]

    monkeypatch.setattr("traces.recording_reading.cut", announce_more)
    with pytest.raises(RecordingError, match=r"damaged or cut off \(it announces 26 rows"):
        open_recording(path)


# ---- threads ---------------------------------------------------------------------------------------


def test_what_was_started_ahead_is_stopped_when_somebody_raises() -> None:
    began, seen = threading.Event(), []

    def look() -> None:
        began.wait(30)
        raise KeyboardInterrupt

    workers = Threads(look)

    def work() -> None:
        began.set()
        for _ in range(10_000):
            workers.check_stopped()
            threading.Event().wait(0.001)
        seen.append("ran to its end")

    with pytest.raises(KeyboardInterrupt), workers:
        workers.start(work)()
    assert seen == []


def test_results_come_in_the_order_in_which_they_are_asked_for() -> None:
    with Threads(lambda: None) as workers:
        asked = [workers.start(lambda i=i: i * i) for i in range(20)]  # type: ignore[misc]  # i is bound
        assert [result() for result in asked] == [i * i for i in range(20)]


def test_the_first_row_of_a_piece_is_a_copy() -> None:
    batch = one_batch(make_steps(range(10)))
    first = recording_pieces._first_row(batch, STEPS)
    assert first.height == 1
    assert first["used_blocks"].to_list() == [0]
    assert first.estimated_size() < 1_000


def test_unknown_ids_are_found_among_any_number_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("traces.recording_laws._IDS_AT_ONCE", 7)
    law = EventLaws(seen=[pl.Series([f"r{i}" for i in range(j, j + 30)]) for j in (0, 20, 50)])
    known = pl.Series([f"r{i}" for i in range(80) if i not in (3, 25, 61)])

    assert law.count_unknown(known) == 3
    with pytest.raises(RecordingError, match=r"name 3 requests .* such as 'r25', 'r3', 'r61'"):
        law.check_known(known, Place("p", "r", "events"))
    assert law.count_unknown(pl.Series([f"r{i}" for i in range(80)])) == 0


def test_a_part_that_a_recorder_writes_while_we_read_is_left_for_the_next_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = write(tmp_path / "run", make_steps([1, 2, 3]))
    (root / "closed.json").unlink()  # the recorder is at work still
    (first,) = (root / "steps").iterdir()
    begin = Reading.begin

    def begin_and_write(self: Reading, spec: Table) -> None:
        begin(self, spec)
        if spec is STEPS:
            (root / "steps" / "part-00001.parquet").write_bytes(first.read_bytes())

    monkeypatch.setattr(Reading, "begin", begin_and_write)

    found = open_recording(root)

    assert found.rows["steps"] == pq.read_metadata(first).num_rows
    assert len(list((root / "steps").iterdir())) == 2


def test_a_part_that_a_recorder_writes_again_while_we_read_is_read_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = write(tmp_path / "run", make_steps([1, 2]))
    (root / "closed.json").unlink()
    longer = write(tmp_path / "longer", make_steps([1, 2, 3]))
    begin = Reading.begin

    def begin_and_write(self: Reading, spec: Table) -> None:
        begin(self, spec)
        if spec is STEPS:
            part = Path("steps", "part-00000.parquet")
            (longer / part).rename(root / part)

    monkeypatch.setattr(Reading, "begin", begin_and_write)

    found = open_recording(root)

    assert found.rows["steps"] == found.steps.height == 2
    assert not any("damaged" in note for note in found.notes)
    monkeypatch.undo()
    assert open_recording(root).steps.height == 3


def test_a_part_that_a_recorder_removes_while_we_read_is_not_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {"steps": make_steps(range(6)), "meta": make_meta(writer={"removed_parts": 1})}
    root = write(tmp_path / "run", **given, rows_per_part=2)
    (root / "closed.json").unlink()
    begin = Reading.begin

    def remove_and_begin(self: Reading, spec: Table) -> None:
        begin(self, spec)
        if spec is STEPS:
            (root / "steps" / "part-00000.parquet").unlink(missing_ok=True)

    monkeypatch.setattr(Reading, "begin", remove_and_begin)

    found = open_recording(root)

    assert found.steps["used_blocks"].to_list() == [2, 3, 4, 5]
