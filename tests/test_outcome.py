"""What a trial came to: figures of one recording, and of several replicas together."""

from __future__ import annotations

from pathlib import Path

import pytest

from analyzer.outcome import outcome_of
from tests.builders import make_events, make_requests, make_steps, write


def replica(folder: Path, name: str, finish_s: float, status: str = "completed") -> Path:
    """Ten steps of 1 s; one request of `name` with 5 tokens, its first at 2 s, and one refused."""
    steps = make_steps(
        [9, 10, 10, 4],
        prefill_tokens=[30, 0, 0, 0],
        decode_tokens=[0, 2, 2, 1],
        recomputed_tokens=[0, 10, 0, 5],
        num_preempted=[0, 1, 0, 0],
    )
    events = make_events([{"step": 0, "kind": "arrive", "request_id": name}])
    requests = make_requests(
        [
            {
                "request_id": name,
                "prompt_tokens": 30,
                "output_tokens": 5,
                "first_scheduled_s": 0.5,
                "first_token_s": 2.0,
                "finish_s": finish_s,
                "num_preemptions": 1,
            },
            {"request_id": f"{name}-long", "prompt_tokens": 900, "status": "refused"},
        ]
    )
    return write(folder, steps=steps, events=events, requests=requests, status=status)


def test_figures_of_one_recording_are_those_of_its_summary(tmp_path: Path) -> None:
    run = replica(tmp_path / "one", "a", 4.0)

    found = outcome_of({"watermark": 0.1}, [run], 11, {"ttft_s": 2.5, "e2e_s": 10.0})

    assert found.changes == {"watermark": 0.1}
    assert found.recordings == (run,)
    assert found.refused == ""
    assert found.figures["num_preemptions"] == 1
    assert found.figures["computed_tokens"] == 30 + 5 + 15
    assert found.figures["recomputed_frac"] == pytest.approx(0.3)
    assert found.figures["num_refused"] == 1
    assert found.figures["num_unfinished"] == 0
    assert found.figures["num_gpu_blocks"] == 11
    assert found.figures["goodput_rps"] == pytest.approx(1 / 4)
    assert found.figures["status"] == "completed"


def test_without_bounds_no_goodput_is_told(tmp_path: Path) -> None:
    found = outcome_of({}, [replica(tmp_path / "one", "a", 4.0)], 11)

    assert "goodput_rps" not in found.figures


def test_replicas_add_up(tmp_path: Path) -> None:
    runs = [replica(tmp_path / "one", "a", 4.0), replica(tmp_path / "two", "b", 3.0)]

    figures = outcome_of({"replicas": 2}, runs, 11, {"e2e_s": 3.5}).figures

    assert figures["num_requests"] == 4
    assert figures["num_finished"] == 2
    assert figures["num_preemptions"] == 2
    assert figures["recomputed_tokens"] == 30
    assert figures["duration_s"] == 4.0  # the longest
    assert figures["recomputed_frac"] == pytest.approx(0.3)
    assert figures["peak_used_frac"] == 1.0
    assert figures["full_steps_frac"] == pytest.approx(0.5)  # 2 of 4 steps of each
    assert figures["output_tokens_per_s"] == pytest.approx(10 / 4)
    assert figures["e2e_s"]["mean"] == pytest.approx(3.5)
    assert figures["goodput_rps"] == pytest.approx(1 / 4)
    assert figures["num_gpu_blocks"] == 11


def test_a_replica_that_did_not_complete_is_told_of(tmp_path: Path) -> None:
    runs = [
        replica(tmp_path / "one", "a", 4.0),
        replica(tmp_path / "two", "b", 3.0, status="livelock"),
    ]

    assert outcome_of({}, runs, 11).figures["status"] == "livelock"
    assert outcome_of({}, runs[:1], 11).figures["status"] == "completed"
