"""Recordings on disk: where they may go, and what is left when the writer is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

import engine.recorder
from engine.simulator import simulate
from tests.engine_builders import make_request, make_settings, make_trace
from traces.errors import RecordingError, SettingsError
from traces.recording import open_recording
from traces.workload import Workload

ROOT = Path(__file__).parent.parent
# A run with small parts that stands still, midway, when two parts of steps are there.
HALTED = """
import sys, time
from pathlib import Path
import engine.recorder, engine.simulator
engine.recorder.PART_ROWS = 2_000
engine.simulator.CHUNK_STEPS = 1_000
from tests.engine_builders import make_request, make_settings, make_trace
out = Path(sys.argv[1])
trace = make_trace(*[make_request(f"r{i}", 7, 5, 3 * i) for i in range(5_000)])
def look(progress):
    if (out / "steps" / "part-00001.parquet").exists():
        print("two parts", flush=True)
        time.sleep(600)
engine.simulator.simulate(trace, make_settings(), out, progress=look)
"""


def some(n: int = 5) -> Workload:
    return make_trace(*[make_request(f"r{i}", 7, 5, i) for i in range(n)])


def test_a_killed_writer_leaves_a_readable_recording_with_a_note(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with subprocess.Popen(
        [sys.executable, "-c", HALTED, str(out)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "two parts\n"
        os.kill(writer.pid, signal.SIGKILL)

    recording = open_recording(out)

    assert not recording.complete
    assert recording.status == "unclosed"
    assert recording.steps.height >= 4_000
    assert recording.notes
    assert any("closed" in note or "stopped" in note for note in recording.notes)
    assert set(recording.requests["status"].cast(pl.String)) <= {"finished", "unfinished"}


def test_a_full_recording_has_the_rows_it_says(tmp_path: Path) -> None:
    result = simulate(some(), make_settings(), tmp_path / "out")

    recording = open_recording(result.path)

    assert recording.complete
    assert recording.notes == ()
    assert recording.steps.height == result.num_steps
    assert recording.rows["requests"] == 5
    assert not list(result.path.rglob("*.tmp"))


def test_parts_are_cut_at_their_size_and_lose_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = open_recording(simulate(some(40), make_settings(), tmp_path / "whole").path)
    monkeypatch.setattr(engine.recorder, "PART_ROWS", 16)

    cut = open_recording(simulate(some(40), make_settings(), tmp_path / "cut").path)

    assert len(list((tmp_path / "cut" / "steps").glob("part-*.parquet"))) > 3
    assert cut.steps.equals(whole.steps)
    assert cut.events.equals(whole.events)
    assert cut.requests.equals(whole.requests)


def test_an_output_folder_that_is_not_empty_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("keep me")

    with pytest.raises(SettingsError, match=r"not empty\. Give another --out directory"):
        simulate(some(), make_settings(), tmp_path)
    with pytest.raises(SettingsError, match="holds more than a recording; it is left as it is"):
        simulate(some(), make_settings(), tmp_path, overwrite=True)

    assert (tmp_path / "mine.txt").read_text() == "keep me"


def test_overwrite_replaces_a_recording(tmp_path: Path) -> None:
    simulate(some(5), make_settings(), tmp_path / "out")

    simulate(some(3), make_settings(), tmp_path / "out", overwrite=True)

    assert open_recording(tmp_path / "out").requests.height == 3


def test_an_output_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("")

    with pytest.raises(SettingsError, match="a file of that name exists"):
        simulate(some(), make_settings(), tmp_path / "out")


def test_an_output_below_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(SettingsError, match="cannot write there"):
        simulate(some(), make_settings(), tmp_path / "file" / "out")


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may write anywhere")
def test_an_output_that_is_not_writable_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(SettingsError, match="cannot write there"):
            simulate(some(), make_settings(), tmp_path / "out")
    finally:
        tmp_path.chmod(0o700)


def test_a_bad_setting_writes_nothing(tmp_path: Path) -> None:
    with pytest.raises(SettingsError):
        simulate(some(), make_settings(model="no-such-model"), tmp_path / "out")

    assert not (tmp_path / "out").exists()


def test_a_recording_with_a_step_missing_is_not_read_as_whole(tmp_path: Path) -> None:
    result = simulate(some(), make_settings(), tmp_path / "out")
    (result.path / "events" / "part-00000.parquet").unlink()

    with pytest.raises(RecordingError):
        open_recording(result.path)
