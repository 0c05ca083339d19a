"""The writer of live recordings: parts, the disk cap, a disk that fails, ids, and a killed process."""

from __future__ import annotations

import errno
import logging
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from engine.live import writer as writer_module
from engine.live.rows import KIND, STATUS
from engine.live.settings import LiveSettings
from engine.live.writer import Writer
from traces.recording import Recording, open_recording

ROOT = Path(__file__).resolve().parents[1]
META = {
    "executor": "vllm",
    "clock": "measured",
    "settings": {"block_size": 16, "num_gpu_blocks": 11},
    "pool_blocks": 10,
    "workload": {"name": "live"},
    "live": {},
}


def make_writer(out: Path, **changes: Any) -> Writer:
    settings = LiveSettings(out=out, **{"flush_s": 0.05, **changes})
    made = Writer(settings, META, 0, "abc", 1_764_590_400.0)
    made.start()
    return made


def step(number: int) -> tuple[Any, ...]:
    """Step `number`: one request decodes, four blocks are used."""
    return (number, number * 0.1, 0.1, 1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 4, 0, 2, 6, 0)


def event(number: int, kind: str, request: str, cause: str | None = None) -> tuple[Any, ...]:
    mode = 0 if kind == "preempt" else None
    return (number, number * 0.1, KIND[kind], request, mode, 4, 7, cause, 6, None)


def request(name: str, prefix: bytes | None = None) -> tuple[Any, ...]:
    return (
        name,
        0.0,
        30,
        5,
        0,
        0.1,
        0.2,
        0.5,
        1,
        3,
        16,
        0.05,
        0.25,
        STATUS["finished"],
        0,
        0,
        prefix,
    )


def until(true: Callable[[], bool], seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.01)


def recorded(writer: Writer) -> Recording:
    assert writer.folder is not None
    return open_recording(writer.folder)


def part_names(writer: Writer, table: str = "steps") -> list[str]:
    assert writer.folder is not None
    return sorted(p.name for p in (writer.folder / table).iterdir())


def test_a_closed_recording_holds_every_row(tmp_path: Path) -> None:
    writer = make_writer(tmp_path)
    writer.inbox.event(event(0, "arrive", "a"))
    writer.inbox.event(event(0, "admit", "a"))
    writer.inbox.step(step(0))
    writer.inbox.event(event(1, "preempt", "a", "b"))
    writer.inbox.event(event(1, "arrive", "b"))
    writer.inbox.step(step(1))
    writer.inbox.request(request("a", b"\x01" + b"\0" * 7))
    writer.inbox.request(request("b"))

    writer.close("completed")

    recording = recorded(writer)
    assert recording.complete
    assert recording.notes == ()
    assert recording.steps["step"].to_list() == [0, 1]
    assert recording.events["kind"].to_list() == ["arrive", "admit", "preempt", "arrive"]
    assert recording.events["mode_used"].to_list() == [None, None, "recompute", None]
    assert recording.events["cause_request_id"].to_list() == [None, None, "b", None]
    assert recording.requests["prefix_ids"].to_list() == [[1], None]
    assert recording.requests["max_itl_s"].to_list() == [0.25, 0.25]


def test_rows_are_on_disk_while_the_server_runs(tmp_path: Path) -> None:
    writer = make_writer(tmp_path)
    writer.inbox.step(step(0))
    until(lambda: writer.folder is not None and part_names(writer) == ["part-00000.parquet"])
    writer.inbox.step(step(1))

    until(lambda: recorded(writer).rows["steps"] == 2)

    assert part_names(writer) == ["part-00000.parquet"]  # the same part, written again
    assert not recorded(writer).complete
    writer.close("stopped")


def test_a_full_part_is_followed_by_the_next_in_every_table(tmp_path: Path) -> None:
    writer = make_writer(tmp_path, part_steps=4)
    for number in range(4):
        writer.inbox.step(step(number))
    until(lambda: writer.folder is not None and len(part_names(writer)) == 1)
    until(lambda: writer._number == 1)
    writer.inbox.step(step(4))

    writer.close("stopped")

    names = ["part-00000.parquet", "part-00001.parquet"]
    assert part_names(writer) == part_names(writer, "events") == names
    assert part_names(writer, "requests") == names
    assert recorded(writer).rows == {"steps": 5, "events": 0, "requests": 0}


def test_the_disk_cap_removes_the_oldest_parts_and_the_rest_opens(tmp_path: Path) -> None:
    writer = make_writer(tmp_path, part_steps=4, disk_cap=120_000)
    for part in range(8):
        for number in range(4 * part, 4 * part + 4):
            writer.inbox.step(step(number))
        writer.inbox.event(event(4 * part, "arrive", f"r{part}"))
        writer.inbox.request(request(f"r{part}"))
        until(lambda part=part: writer._number == part + 1)  # type: ignore[misc]

    writer.close("stopped")

    recording = recorded(writer)
    assert writer.folder is not None
    assert sum(p.stat().st_size for p in writer.folder.rglob("*.parquet")) < 150_000
    assert part_names(writer)[0] != "part-00000.parquet"
    assert recording.complete
    assert recording.steps["step"][-1] == 31
    assert "oldest parts were removed by the recorder" in " ".join(recording.notes)


def test_a_part_missing_that_no_recorder_removed_is_still_a_fault(tmp_path: Path) -> None:
    writer = make_writer(tmp_path, part_steps=1)
    for number in range(3):
        writer.inbox.step(step(number))
        until(lambda number=number: writer._number == number + 1)  # type: ignore[misc]
    writer.close("stopped")
    assert writer.folder is not None

    (writer.folder / "steps" / "part-00000.parquet").unlink()

    with pytest.raises(Exception, match="the part is missing, though later ones are there"):
        recorded(writer)


def test_a_full_inbox_drops_counts_and_says_so(tmp_path: Path) -> None:
    settings = LiveSettings(out=tmp_path, queue=3)
    writer = Writer(settings, META, 0, "abc", 1_764_590_400.0)  # not started: nobody empties it
    for number in range(5):
        writer.inbox.step(step(number))
        writer.inbox.event(event(number, "arrive", f"r{number}"))
    writer.inbox.request(request("r0"))
    writer.inbox.request(request("r1"))
    writer.inbox.request(request("r2"))
    writer.start()

    writer.close("stopped")

    assert writer.inbox.counts.dropped_steps == 2
    assert recorded(writer).steps["step"].to_list() == [0, 1, 2]
    assert "2 steps, 2 events are missing" in " ".join(recorded(writer).notes)


def test_a_full_disk_is_said_once_counted_and_survived(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real, full = writer_module.write_part, [True]

    def write_part(*args: Any) -> Path:
        if full[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(*args)

    monkeypatch.setattr(writer_module, "write_part", write_part)
    with caplog.at_level(logging.WARNING, "vllm.kv_replay"):
        writer = make_writer(tmp_path, part_steps=2)
        writer.inbox.request(request("a"))
        for number in range(3):
            writer.inbox.step(step(number))
        until(lambda: writer.inbox.counts.failed_writes >= 3)
        full[0] = False
        writer.inbox.step(step(3))
        writer.close("stopped")

    said = [r.getMessage() for r in caplog.records]
    assert sum("cannot write" in s and "No space left on device" in s for s in said) == 1
    recording = recorded(writer)
    assert recording.steps["step"].to_list() == [3]
    assert recording.requests["request_id"].to_list() == ["a"]
    assert "3 steps are missing" in " ".join(recording.notes)


def test_a_directory_that_cannot_be_made_stops_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("in the way")
    with caplog.at_level(logging.WARNING, "vllm.kv_replay"):
        writer = make_writer(tmp_path / "file" / "out")
        writer.inbox.step(step(0))
        until(lambda: writer.inbox.counts.failed_writes > 1)

        writer.close("stopped")

    assert writer.folder is None
    assert sum("Serving goes on" in r.getMessage() for r in caplog.records) == 1


def test_two_recorders_of_one_name_write_beside_each_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "vllm.kv_replay"):
        first, second = make_writer(tmp_path), make_writer(tmp_path)
        for writer in (first, second):
            writer.inbox.step(step(0))
            writer.close("stopped")

    assert first.folder != second.folder
    assert recorded(first).rows["steps"] == recorded(second).rows["steps"] == 1
    assert sum("another recorder has the folder" in r.getMessage() for r in caplog.records) == 1


def test_a_fault_of_the_writer_ends_the_recording_and_nothing_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    writer = make_writer(tmp_path)

    writer.inbox.step(("no", "row"))

    until(lambda: writer.inbox.limit == 0)
    writer.inbox.step(step(1))
    writer.close("stopped")
    assert writer.inbox.counts.errors == 1
    assert writer.inbox.counts.dropped_steps == 1
    assert "recording has stopped" in caplog.text


def test_hashed_ids_stay_equal_and_keep_nothing_of_the_id(tmp_path: Path) -> None:
    writer = make_writer(tmp_path, hash_ids=True, salt="of this site")
    writer.inbox.step(step(0))
    writer.inbox.event(event(0, "arrive", "user-4711"))
    writer.inbox.event(event(0, "preempt", "other", "user-4711"))
    writer.inbox.request(request("user-4711"))
    writer.inbox.request(request("other"))
    writer.close("completed")

    events = recorded(writer).events
    names = recorded(writer).requests["request_id"].to_list()
    assert events["request_id"][0] == names[0] == events["cause_request_id"][1]
    assert len(names[0]) == 24
    assert writer.folder is not None
    assert not any(b"4711" in p.read_bytes() for p in writer.folder.rglob("*.parquet"))


def test_one_salt_gives_one_id_in_every_run_and_none_another(tmp_path: Path) -> None:
    names = []
    for number, salt in enumerate(("s", "s", "t", "", "")):
        writer = make_writer(tmp_path / str(number), hash_ids=True, salt=salt)
        writer.inbox.step(step(0))
        writer.inbox.request(request("a"))
        writer.close("completed")
        names.append(recorded(writer).requests["request_id"][0])

    assert names[0] == names[1]
    assert len(set(names)) == 4


def test_samples_of_block_tables_become_intervals(tmp_path: Path) -> None:
    writer = make_writer(tmp_path, blocks=10)
    for number in range(0, 40, 10):
        writer.inbox.step(step(number))
    writer.inbox.sample(0, {"a": [1, 2]})
    writer.inbox.sample(10, {"a": [1, 2, 3], "b": [4]})
    writer.inbox.sample(20, {"b": [4]})
    writer.inbox.sample(30, {"a": [7], "b": [4, 5]})

    writer.close("completed")

    blocks = recorded(writer).blocks
    assert blocks is not None
    assert sorted(blocks.rows()) == [
        (1, "a", 0, 0, 10),
        (2, "a", 1, 0, 10),
        (3, "a", 2, 10, 10),
        (4, "b", 0, 10, 30),
        (5, "b", 1, 30, 30),
        (7, "a", 0, 30, 30),
    ]


KILLED = """
import sys, time
from pathlib import Path
from tests.test_live_writer import event, make_writer, request, step
writer = make_writer(Path(sys.argv[1]), part_steps=50)
number = 0
while True:
    writer.inbox.event(event(number, "arrive", f"r{number}"))
    writer.inbox.step(step(number))
    writer.inbox.request(request(f"r{number}"))
    number += 1
    time.sleep(0.002)
"""


def test_a_killed_process_leaves_a_recording_that_opens(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path)], cwd=ROOT)
    try:
        until(lambda: len(list(tmp_path.glob("*/steps/part-00001.parquet"))) == 1, 60)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()

    (folder,) = tmp_path.iterdir()
    recording = open_recording(folder)
    steps = recording.steps["step"]
    assert recording.status == "unclosed"
    assert steps.len() > 50
    assert steps.to_list() == list(range(steps.len()))  # nothing but the end is missing
    ends = recording.requests.filter(pl.col("status").cast(pl.String) == "finished")
    assert ends.height >= 50
