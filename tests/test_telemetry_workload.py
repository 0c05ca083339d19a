"""The requests that telemetry tells of, as a Workload."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

import traces
from tests.builders import make_steps
from tests.builders import write as write_recording
from tests.test_fleet import two_ranks
from tests.test_telemetry_files import make_meta, make_samples
from tests.test_telemetry_files import write as write_telemetry
from traces.errors import NotAWorkloadError, WorkloadError
from traces.telemetry import Telemetry, make_telemetry
from traces.telemetry_workload import workload_of_telemetry

ENDED = {
    "request_id": ["b", "a", "c"],
    "arrival_s": [7.0, 5.0, 9.5],
    "prompt_tokens": [20, 10, 30],
    "output_tokens": [5, 4, 0],
    "reason": ["length", "stop", "abort"],
}


def told(**changes: list[object]) -> Telemetry:
    ended = pl.DataFrame(ENDED | changes)
    return make_telemetry("server", make_samples(), make_meta(), finished_requests=ended)


def test_requests_come_in_order_of_arrival_from_the_first() -> None:
    workload = workload_of_telemetry(told())

    rows = workload.table.select("request_id", "arrival_s", "prompt_tokens", "output_tokens")
    assert rows.rows() == [("a", 0.0, 10, 4), ("b", 2.0, 20, 5)]
    assert workload.report.dropped == {"zero output tokens": 1}
    assert not workload.estimated


def test_what_is_not_known_of_them_is_noted() -> None:
    notes = " ".join(workload_of_telemetry(told()).report.notes)

    assert "Requests that had not ended" in notes
    assert "Shared prefixes were not recorded" in notes
    assert "1 requests were aborted" in notes


def test_a_folder_of_telemetry_opens_where_a_trace_is_asked_for(tmp_path: Path) -> None:
    told().write(tmp_path / "stats-00")

    workload = traces.open_workload(tmp_path / "stats-00")

    assert workload.name == "stats-00"
    assert workload.table["prompt_tokens"].to_list() == [10, 20]


def test_a_window_keeps_its_arrivals(tmp_path: Path) -> None:
    told().write(tmp_path / "t")

    workload = traces.open_workload(tmp_path / "t", window_s=(1.0, None))

    assert workload.table["request_id"].to_list() == ["b"]


def test_samples_without_requests_are_no_workload(tmp_path: Path) -> None:
    root = write_telemetry(tmp_path / "t")

    with pytest.raises(NotAWorkloadError, match="tells of no request"):
        traces.open_workload(root)


def test_folders_that_hold_no_requests_say_what_they_are(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    write_recording(tmp_path / "recording", make_steps([1]))

    with pytest.raises(NotAWorkloadError, match=r"holds 2 recordings.*rank-00, rank-01"):
        traces.open_workload(two_ranks(tmp_path / "run"))
    with pytest.raises(NotAWorkloadError, match="it is a recording, not a request trace"):
        traces.open_workload(tmp_path / "recording")
    with pytest.raises(WorkloadError, match="it is a folder, not a file"):
        traces.open_workload(tmp_path / "empty")
