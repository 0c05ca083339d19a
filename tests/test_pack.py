"""Packing a recording: fewer parts, the same rows."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.config import EngineSettings
from engine.simulator import simulate
from traces import samples
from traces.__main__ import main
from traces.errors import RecordingError
from traces.pack import pack
from traces.recording import open_recording


@pytest.fixture
def recording(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run with block ownership in parts of 100 rows."""
    monkeypatch.setattr("engine.recorder.PART_ROWS", 100)
    settings = EngineSettings(kv_tokens=1_024, device="cpu", model="smollm2-135m")
    simulate(samples.load("smollm2"), settings, tmp_path / "run", blocks=True)
    return tmp_path / "run"


@pytest.mark.parametrize("name", ["packed", "packed.zip"])
def test_a_packed_recording_says_the_same_in_one_part_a_table(
    recording: Path, tmp_path: Path, name: str
) -> None:
    assert len(list(recording.glob("steps/*.parquet"))) > 5

    out = pack(recording, tmp_path / name)

    with open_recording(recording) as a, open_recording(out) as b:
        assert dict(a.meta) == dict(b.meta)
        assert a.rows == b.rows
        for table in a.rows:
            assert a.scan(table).collect().equals(b.scan(table).collect(), null_equal=True)
        assert (b.complete, b.status) == (True, "completed")
    if out.is_dir():
        assert [len(list(out.glob(f"{t}/*"))) for t in ("steps", "events", "blocks")] == [
            1,
            1,
            1,
        ]
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(["run", name])


def test_nothing_is_replaced_and_an_open_end_is_not_hidden(
    recording: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "taken").mkdir()
    with pytest.raises(RecordingError, match="something of that name exists"):
        pack(recording, tmp_path / "taken")

    (recording / "closed.json").unlink()

    assert main(["pack", str(recording), str(tmp_path / "new")]) == 2
    assert "it was not closed" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()
