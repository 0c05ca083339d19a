"""`python -m analyzer summary` of telemetry and of a fleet: figures, and what nothing supports."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from analyzer.__main__ import main
from analyzer.fleet import summarize_fleet
from analyzer.telemetry import summarize_telemetry
from tests.builders import make_requests, make_steps, write
from tests.test_telemetry_files import make_meta, make_samples
from tests.test_telemetry_files import write as write_telemetry
from traces.errors import RecordingError
from traces.fleet import open_fleet
from traces.telemetry import make_telemetry


def figures(**columns: Any) -> dict[str, Any]:
    return summarize_telemetry(make_telemetry("t", make_samples(**columns), make_meta()))


def test_samples_give_peaks_sums_and_shares() -> None:
    found = figures(
        num_waiting=[0, 4, 9],
        num_preempted=[0, 2, 1],
        generation_tokens=[100, 200, None],
        resumed_query_tokens=[0, 800, 200],
        resumed_hit_tokens=[0, 500, 250],
    )

    assert found["num_samples"] == 3
    assert found["duration_s"] == 20.0
    assert found["peak_used_frac"] == 0.992
    assert found["full_samples_frac"] == pytest.approx(2 / 3)
    assert found["max_waiting"] == 9
    assert found["num_preemptions"] == 3
    assert found["generation_tokens"] == 300
    assert found["resumed_hit_frac"] == 0.75


def test_a_counter_counts_each_rank_and_starts_anew_after_a_reset() -> None:
    samples = pl.DataFrame(
        {
            "engine_rank": [0, 1, 0, 1, 0],
            "preemptions_total": [100, 7, 110, 7, 4],
        }
    )

    found = summarize_telemetry(make_telemetry("t", samples, make_meta()))

    assert found["num_preemptions"] == 10 + 4


def test_figures_that_no_sample_supports_are_none() -> None:
    found = figures(t_s=pl.Series([None] * 3, dtype=pl.Float64))

    for name in ("duration_s", "num_preemptions", "generation_tokens", "prefix_hit_frac"):
        assert found[name] is None
    assert found["e2e_s"] == {"mean": None, "p50": None, "p90": None, "p99": None}
    assert "num_preempted" in found["missing"]


def test_latencies_are_of_the_requests_that_ended() -> None:
    ended = pl.DataFrame({"e2e_s": [1.0, 3.0, None], "queued_s": [0.5, 0.5, 0.5]})
    telemetry = make_telemetry("t", make_samples(), make_meta(), finished_requests=ended)

    found = summarize_telemetry(telemetry)

    assert found["e2e_s"]["mean"] == 2.0
    assert found["queued_s"]["p99"] == 0.5
    assert found["decode_s"]["p50"] is None


def fleet_of_two(root: Path) -> Path:
    """Rank 0 preempts once and computes 30 tokens of which 10 again; rank 1 computes 30."""
    write(
        root / "rank-00",
        make_steps(
            [10, 5],
            num_preempted=[1, 0],
            num_waiting=[3, 1],
            prefill_tokens=[20, 0],
            recomputed_tokens=[0, 10],
        ),
        requests=make_requests([{"request_id": "a"}]),
    )
    write(
        root / "rank-01",
        make_steps([4, 4, 4], prefill_tokens=[30, 0, 0]),
        requests=make_requests([{"request_id": "b"}, {"request_id": "c"}]),
    )
    return root


def test_a_fleet_gives_a_row_a_rank_and_totals(tmp_path: Path) -> None:
    summary = summarize_fleet(open_fleet(fleet_of_two(tmp_path)))

    first, second = summary.ranks
    assert (first["rank"], first["num_steps"], first["num_preemptions"]) == (0, 2, 1)
    assert (first["peak_used_frac"], second["peak_used_frac"]) == (1.0, 0.4)
    assert first["recomputed_frac"] == pytest.approx(1 / 3)
    assert second["recomputed_frac"] == 0.0
    assert first["max_waiting"] == 3
    assert summary.totals == {
        "num_ranks": 2,
        "num_steps": 5,
        "num_requests": 3,
        "num_finished": 0,
        "num_preemptions": 1,
        "prefill_tokens": 50,
        "decode_tokens": 0,
        "recomputed_tokens": 10,
        "duration_s": 3.0,
        "recomputed_frac": pytest.approx(1 / 6),
        "peak_used_frac": 1.0,
        "busiest_rank": "rank-00",
        "preemptions_max_frac": 1.0,
        # Used, of the pool, second by second: 1.0, 0.5, 0.0 and 0.4 throughout.
        "imbalance": pytest.approx(1.9 / 1.35),
        "peak_imbalance": pytest.approx(1.0 / 0.7),
        "full_while_room_frac": pytest.approx(1 / 3),
        "waiting_fits_frac": None,
        "waiting_fits_mean": None,
    }


def test_a_rank_that_breaks_a_law_is_left_out_and_named(tmp_path: Path) -> None:
    root = fleet_of_two(tmp_path)
    write(root / "rank-02", make_steps([99]))

    summary = summarize_fleet(open_fleet(root))

    assert [r["label"] for r in summary.ranks] == ["rank-00", "rank-01"]
    assert any("rank-02 was left out" in n and "is less than 0" in n for n in summary.notes)


def test_a_fleet_of_which_nothing_opens_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for rank in ("rank-00", "rank-01"):
        write(tmp_path / rank, make_steps([99]))

    with pytest.raises(RecordingError, match="none of its recordings can be opened"):
        summarize_fleet(open_fleet(tmp_path))
    assert main(["summary", str(tmp_path)]) == 2
    assert "none of its recordings can be opened" in capsys.readouterr().err


def test_the_command_prints_a_fleet_by_rank(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = fleet_of_two(tmp_path / "run")
    write_telemetry(root / "stats-00")

    assert main(["summary", str(root)]) == 0
    text = capsys.readouterr().out
    assert main(["summary", str(root), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)

    assert "run: recordings by rank" in text
    assert "run: telemetry by rank" in text
    assert "open one by its own path, such as run/rank-00" in text
    assert set(found) == {"fleet", "totals", "ranks", "telemetry"}
    assert [r["rank"] for r in found["ranks"]] == [0, 1]
    assert found["telemetry"][0]["label"] == "stats-00"


def test_the_command_prints_telemetry(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    meta = make_meta(missing={"victims": "no sample names a request"})
    root = write_telemetry(tmp_path / "t", meta=meta)

    assert main(["summary", str(root)]) == 0
    text = capsys.readouterr().out
    assert main(["summary", str(root), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)

    assert "Peak use of the pool" in text
    assert "99.2 %" in text
    assert "Not known: victims: no sample names a request" in text
    assert found["peak_used_frac"] == 0.992
    assert found["max_running"] == 31
