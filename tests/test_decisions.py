"""The decision log: one record a step under the parity harness's names."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from engine.decisions import write_decisions
from tests.engine_builders import make_request, make_settings, make_trace
from traces.errors import SettingsError
from traces.recording import open_recording

FIELDS = [
    "step", "running", "waiting", "deferred", "swapped", "scheduled", "admitted", "preempted", "aborted",
    "new_blocks", "blocks", "finished", "blocks_end",
]  # fmt: skip


def test_each_line_is_one_step_with_every_decision(tmp_path: Path) -> None:
    trace = make_trace(make_request("a", 4, 2))

    status = write_decisions(trace, make_settings(), tmp_path / "out", tmp_path / "log.jsonl")

    first, second = [json.loads(x) for x in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert status == "completed"
    assert list(first) == FIELDS
    assert first["scheduled"] == [{"id": "a", "tokens": 4, "computed_before": 0}]
    assert first["admitted"] == [{"id": "a", "kind": "new", "cached_tokens": 0, "tokens": 4}]
    assert first["blocks"] == {
        "usable": 4, "used": 1, "free": 3, "cached_used": 0, "cached_free": 0,
    }  # fmt: skip
    assert (first["finished"], second["finished"]) == ([], ["a"])


def test_a_recording_is_written_beside_the_log(tmp_path: Path) -> None:
    trace = make_trace(make_request("a", 4, 2))

    write_decisions(trace, make_settings(), tmp_path / "out", tmp_path / "log.jsonl")

    assert open_recording(tmp_path / "out").steps.height == 2


def test_steps_on_the_step_clock_are_the_arrival_steps(tmp_path: Path) -> None:
    trace = make_trace(make_request("a", 4, 1), make_request("b", 4, 1, arrival=9))

    write_decisions(trace, make_settings(), tmp_path / "out", tmp_path / "log.jsonl")

    lines = (tmp_path / "log.jsonl").read_text().splitlines()
    assert [json.loads(x)["step"] for x in lines] == [0, 9]


def test_a_log_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    trace = make_trace(make_request("a", 4, 1))

    with pytest.raises(SettingsError, match="cannot write the decisions"):
        write_decisions(trace, make_settings(), tmp_path / "out", tmp_path / "no" / "log.jsonl")
