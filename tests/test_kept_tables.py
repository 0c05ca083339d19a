"""Tables of long recordings: checked once, written down, mapped again, and forgotten."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from analyzer.pages.parts import store as store_module
from analyzer.pages.parts.store import Store
from tests.builders import make_blocks, write
from tests.long_worlds import NUM_STEPS, keep, tables
from traces import recording_pieces, table_writer
from traces.errors import FileError, RecordingError
from traces.mapped_tables import LAYOUT, Keep
from traces.recording import Recording, open_recording, zip_recording


def left_in(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


def same_tables(found: Recording, wanted: Recording) -> None:
    for name in ("steps", "events", "requests"):
        ours, theirs = getattr(found, name), getattr(wanted, name)
        assert ours.schema == theirs.schema
        assert ours.equals(theirs, null_equal=True)
        assert found.scan(name).collect().equals(theirs, null_equal=True)


# ---- keeping and opening again ----------------------------------------------------------------


@pytest.mark.parametrize("rows_per_part", [None, 333, 90])
def test_kept_tables_equal_those_that_are_read(
    tmp_path: Path, rows_per_part: int | None
) -> None:
    path = write(tmp_path / "r", rows_per_part=rows_per_part, **tables())

    first = open_recording(path, keep=keep(tmp_path / "kept"))
    again = open_recording(path, keep=keep(tmp_path / "kept"))

    for found in (first, again):
        assert found.mapped is not None
        same_tables(found, open_recording(path))
    assert (again.rows, again.notes, again.status) == (first.rows, first.notes, "completed")
    assert again.meta == first.meta


def test_a_short_recording_is_not_kept(tmp_path: Path) -> None:
    path = write(tmp_path / "r", **tables(100))
    (tmp_path / "kept").mkdir()

    found = open_recording(path, keep=Keep(tmp_path / "kept" / "one"))

    assert found.mapped is None
    assert left_in(tmp_path / "kept") == []


def test_what_is_kept_is_not_checked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "r", **tables())
    open_recording(path, keep=keep(tmp_path / "kept"))

    def refuse(*_: object) -> None:
        raise AssertionError("checked again")

    monkeypatch.setattr(recording_pieces.Checker, "check", refuse)
    found = open_recording(path, "a new name", keep(tmp_path / "kept"))

    assert found.steps.height == NUM_STEPS
    assert found.label == "a new name"


def test_zeros_take_no_disk(tmp_path: Path) -> None:
    path = write(tmp_path / "r", **tables(4_000))

    open_recording(path, keep=keep(tmp_path / "kept"))

    zeros = (tmp_path / "kept" / "one" / "steps" / "swap_out_bytes.bin").stat()
    assert zeros.st_size == 32_000
    assert zeros.st_blocks == 0


@pytest.mark.parametrize(
    "damage",
    ["cut", "gone", "no facts", "other layout"],
)
def test_kept_files_that_are_damaged_are_made_again(tmp_path: Path, damage: str) -> None:
    path = write(tmp_path / "r", **tables())
    open_recording(path, keep=keep(tmp_path / "kept"))
    home = tmp_path / "kept" / "one"
    if damage == "cut":
        os.truncate(home / "steps" / "used_blocks.bin", 400)
    elif damage == "gone":
        (home / "events" / "00000.arrow").unlink()
    elif damage == "no facts":
        (home / "checked.json").write_text("{")
    else:
        facts = (home / "checked.json").read_text()
        (home / "checked.json").write_text(facts.replace(f'"layout": {LAYOUT}', '"layout": 0'))

    found = open_recording(path, keep=keep(tmp_path / "kept"))

    assert found.mapped is not None
    same_tables(found, open_recording(path))
    same_tables(open_recording(path, keep=keep(tmp_path / "kept")), open_recording(path))


def test_a_zip_is_unpacked_once_and_its_blocks_are_still_read(tmp_path: Path) -> None:
    held = [{"block_id": 1, "request_id": "a request with a long name 1", "logical_index": 0, "first_step": 0, "last_step": 4}]  # fmt: skip
    folder = write(tmp_path / "r", blocks=make_blocks(held), **tables())
    packed = zip_recording(folder, tmp_path / "r.zip")

    first = open_recording(packed, keep=keep(tmp_path / "kept"))
    packed.write_bytes(packed.read_bytes()[:200])  # needed no more
    again = open_recording(packed, keep=keep(tmp_path / "kept"))

    assert left_in(tmp_path / "kept") == ["one"]
    for found in (first, again):
        found.close()
        same_tables(found, open_recording(folder))
        assert found.blocks is not None
        assert found.blocks["block_id"].to_list() == [1]


def test_a_short_zip_leaves_nothing_behind_when_it_is_closed(tmp_path: Path) -> None:
    packed = zip_recording(write(tmp_path / "r", **tables(100)), tmp_path / "r.zip")
    (tmp_path / "kept").mkdir()

    found = open_recording(packed, keep=Keep(tmp_path / "kept" / "one"))
    assert found.steps.height == 100
    found.close()

    assert left_in(tmp_path / "kept") == []


def test_a_killed_writer_is_kept_without_its_damaged_part(tmp_path: Path) -> None:
    path = write(tmp_path / "r", rows_per_part=500, closed=False, **tables())
    last = path / "steps" / "part-00003.parquet"
    last.write_bytes(last.read_bytes()[:-300])

    found = open_recording(path, keep=keep(tmp_path / "kept"))

    assert found.steps.height == 1_500
    assert not found.complete
    same_tables(found, open_recording(path))
    again = open_recording(path, keep=keep(tmp_path / "kept"))
    assert again.notes == open_recording(path).notes
    same_tables(again, open_recording(path))


# ---- what is refused --------------------------------------------------------------------------


def test_a_law_broken_deep_inside_is_refused_with_its_place(tmp_path: Path) -> None:
    given = tables()
    used = given["steps"]["used_blocks"].to_pylist()
    used[1_804] = used[1_804] + 1
    at = given["steps"].schema.get_field_index("used_blocks")
    given["steps"] = given["steps"].set_column(
        at, given["steps"].schema.field(at), pa.array(used, pa.int32())
    )
    path = write(tmp_path / "r", rows_per_part=500, **given)

    with pytest.raises(RecordingError) as caught:
        open_recording(path, keep=keep(tmp_path / "kept"))

    said = str(caught.value)
    assert "part-00003.parquet" in said
    assert "table steps, row 305, column used_blocks" in said
    assert "but the pool has 10" in said
    assert said.endswith("Record the run again, or mend the tool that wrote this file.")
    assert left_in(tmp_path / "kept") == []


def test_a_stop_half_way_leaves_nothing_behind(tmp_path: Path) -> None:
    path = write(tmp_path / "r", rows_per_part=500, **tables())

    def stop(done: int, total: int) -> None:
        assert total == NUM_STEPS + 100 + len(tables()["events"])
        if done >= 1_000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        open_recording(path, keep=keep(tmp_path / "kept", progress=stop))

    assert left_in(tmp_path / "kept") == []


@pytest.mark.parametrize("where", ["_write_at", "_Holed.write", "_Holed.close"])
def test_a_full_disk_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    path = write(tmp_path / "r", **tables())

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(f"traces.table_writer.{where}", full)

    with pytest.raises(FileError, match=r"No space left on device.*KV_REPLAY_CACHE"):
        open_recording(path, keep=keep(tmp_path / "kept"))

    assert left_in(tmp_path / "kept") == []


def test_zeros_with_a_sign_are_kept_with_it(tmp_path: Path) -> None:
    given = tables()
    at = given["steps"].schema.get_field_index("stall_s")
    negative = pa.array([-0.0] * given["steps"].num_rows)
    given["steps"] = given["steps"].set_column(at, given["steps"].schema.field(at), negative)
    path = write(tmp_path / "r", **given)

    found = open_recording(path, keep=keep(tmp_path / "kept"))

    assert np.signbit(found.steps["stall_s"].to_numpy()).all()


def test_long_zeros_are_read_as_they_were_written(tmp_path: Path) -> None:
    pieces = [b"a", bytes(table_writer._LONG_ZEROS), b"b" * 70_000, bytes(100_000)]

    with table_writer._Holed(tmp_path / "file") as file:
        for piece in pieces:
            assert file.write(piece) == len(piece)
        assert file.tell() == sum(map(len, pieces))

    assert (tmp_path / "file").read_bytes() == b"".join(pieces)


# ---- the store ------------------------------------------------------------------------------------


def kept_in(store: Store, ref: str, stamp: str, num_bytes: int, age_s: float) -> Path:
    folder = store.tables_dir(ref, stamp)
    folder.mkdir()
    (folder / "checked.json").write_bytes(b"x" * num_bytes)
    then = (folder.stat().st_mtime - age_s,) * 2
    os.utime(folder, then)
    return folder


def test_tables_of_an_older_state_go_when_the_new_one_is_used(tmp_path: Path) -> None:
    store = Store(tmp_path)
    old, new = (kept_in(store, f"run:{'a' * 32}", stamp, 10, 0) for stamp in ("01", "02"))
    other = kept_in(store, f"run:{'b' * 32}", "01", 10, 0)

    store.use_tables(new)

    assert (old.exists(), new.exists(), other.exists()) == (False, True, True)


def test_the_longest_unused_tables_go_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "KEEP_BYTES", 40_000)
    store = Store(tmp_path)
    oldest = kept_in(store, f"run:{'a' * 32}", "01", 20_000, 300)
    middle = kept_in(store, f"run:{'b' * 32}", "01", 20_000, 200)
    newest = kept_in(store, f"run:{'c' * 32}", "01", 15_000, 100)

    store.use_tables(newest)

    assert (oldest.exists(), middle.exists(), newest.exists()) == (False, True, True)


def test_tables_go_with_the_upload_that_they_are_of(tmp_path: Path) -> None:
    store = Store(tmp_path / "cache")
    (tmp_path / "r.zip").write_bytes(b"zip")
    with (tmp_path / "r.zip").open("rb") as source:
        entry = store.spool(source, "r.zip")
    tables_of_it = kept_in(store, f"file:{entry.id}", "01", 10, 0)

    store.delete(entry)

    assert not tables_of_it.exists()
