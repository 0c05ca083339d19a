"""The virtual clock: when steps start, how long they last, what requests see, and how runs end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest

import engine.simulator
from engine.config import EngineSettings
from engine.simulator import Progress, simulate
from tests.engine_builders import SECONDS, decide, make_request, make_settings, make_trace
from traces.errors import SettingsError
from traces.recording import Recording, open_recording
from traces.workload import Workload


def timed(blocks: int = 4, **changes: Any) -> EngineSettings:
    return make_settings(blocks, **{"clock": "modelled", "cost_overrides": SECONDS, **changes})


def run(workload: Workload, settings: EngineSettings, folder: Path) -> Recording:
    return open_recording(simulate(workload, settings, folder / "out").path)


def request_row(recording: Recording, id: str) -> dict[str, Any]:
    return next(r for r in recording.requests.to_dicts() if r["request_id"] == id)


def many(n: int, output: int = 3) -> Workload:
    return make_trace(*[make_request(f"r{i}", 3, output, i) for i in range(n)])


def test_the_result_sums_the_run_up(tmp_path: Path) -> None:
    trace = make_trace(make_request("a", 7, 5), make_request("b", 7, 4))

    result = simulate(trace, timed(), tmp_path / "out")

    assert (result.status, result.num_requests, result.num_preemptions) == ("completed", 2, 1)
    assert (result.num_steps, result.duration_s) == (7, 7.0)


def test_tokens_come_at_the_ends_of_steps(tmp_path: Path) -> None:
    recording = run(make_trace(make_request("a", 4, 3)), timed(), tmp_path)

    a = request_row(recording, "a")
    assert (a["first_scheduled_s"], a["first_token_s"], a["finish_s"]) == (0.0, 1.0, 3.0)
    assert a["max_itl_s"] == 1.0


def test_one_output_token_has_no_gap(tmp_path: Path) -> None:
    recording = run(make_trace(make_request("a", 4, 1)), timed(), tmp_path)

    assert request_row(recording, "a")["max_itl_s"] is None


def test_an_idle_engine_jumps_to_the_next_arrival(tmp_path: Path) -> None:
    trace = make_trace(make_request("a", 4, 1), make_request("b", 4, 1, arrival=100.5))

    recording = run(trace, timed(), tmp_path)

    assert recording.steps["t_start_s"].to_list() == [0.0, 100.5]
    assert request_row(recording, "b")["first_token_s"] == 101.5


def test_an_arrival_during_a_step_waits_for_its_end(tmp_path: Path) -> None:
    trace = make_trace(make_request("a", 4, 3), make_request("b", 4, 1, arrival=0.5))

    b = request_row(run(trace, timed(), tmp_path), "b")

    assert (b["first_scheduled_s"], b["first_token_s"]) == (1.0, 2.0)


def test_asynchronously_tokens_still_come_at_the_ends_of_steps(tmp_path: Path) -> None:
    recording = run(make_trace(make_request("a", 4, 3)), timed(async_scheduling=True), tmp_path)

    a = request_row(recording, "a")
    assert (a["first_scheduled_s"], a["first_token_s"], a["finish_s"]) == (0.0, 1.0, 3.0)
    assert recording.steps["decode_tokens"].sum() == 2


def test_asynchronously_an_arrival_runs_one_step_later(tmp_path: Path) -> None:
    trace = make_trace(make_request("a", 4, 3), make_request("b", 4, 1, arrival=0.5))

    b = request_row(run(trace, timed(async_scheduling=True), tmp_path), "b")

    # The step from 1 to 2 s was decided at 0 s, while the first one ran.
    assert (b["first_scheduled_s"], b["first_token_s"]) == (2.0, 3.0)


def test_asynchronously_blocks_are_held_one_step_longer(tmp_path: Path) -> None:
    trace = make_trace(make_request("a", 4, 2))

    sync, _ = decide(trace, timed(), tmp_path / "sync")
    late, _ = decide(trace, timed(async_scheduling=True), tmp_path / "async")

    assert [s["blocks"]["used"] for s in sync] == [1, 2]
    assert [s["blocks"]["used"] for s in late] == [1, 2, 2]
    assert [s["finished"] for s in late] == [[], [], ["a"]]


def test_a_closed_loop_keeps_so_many_requests_in_the_system(tmp_path: Path) -> None:
    trace = make_trace(*[make_request(id, 4, 2) for id in "abcd"], concurrency=2)

    recording = run(trace, timed(), tmp_path)

    assert recording.requests["arrival_s"].to_list() == [0.0, 0.0, 2.0, 2.0]
    assert recording.steps["num_running"].to_list() == [2, 2, 2, 2]
    assert recording.requests["finish_s"].to_list() == [2.0, 2.0, 4.0, 4.0]


def test_a_closed_loop_goes_on_after_a_refusal(tmp_path: Path) -> None:
    trace = make_trace(
        make_request("big", 40, 2),
        make_request("a", 4, 2),
        make_request("b", 4, 2),
        concurrency=1,
    )

    recording = run(trace, timed(), tmp_path)

    statuses = recording.requests.sort("request_id")["status"].cast(str).to_list()
    assert statuses == ["finished", "finished", "refused"]


def test_the_latency_clock_costs_tokens_times_constants(tmp_path: Path) -> None:
    trace = make_trace(make_request("a", 4, 3))

    recording = run(
        trace, make_settings(clock="latency", latency_ms=(5.0, 0.5, 0.25)), tmp_path
    )

    assert recording.steps["duration_s"].to_list() == pytest.approx([0.007, 0.00525, 0.00525])


def test_an_override_of_the_cost_model_reaches_the_steps(tmp_path: Path) -> None:
    slow = {**SECONDS, "step_overhead_s": 2.5}

    recording = run(make_trace(make_request("a", 4, 2)), timed(cost_overrides=slow), tmp_path)

    assert recording.steps["duration_s"].to_list() == [2.5, 2.5]


def test_more_events_than_a_buffer_holds_are_all_recorded(tmp_path: Path) -> None:
    trace = make_trace(*[make_request(f"r{i}", 3, 2, abort=1) for i in range(40_000)])

    recording = run(trace, make_settings(max_num_seqs=1), tmp_path)

    kinds = recording.events["kind"].cast(pl.String).value_counts()
    assert dict(kinds.iter_rows()) == {"arrive": 40_000, "admit": 1, "abort": 40_000}


def test_progress_rises_to_all_requests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine.simulator, "CHUNK_STEPS", 10)
    seen: list[Progress] = []

    simulate(many(30), timed(), tmp_path / "out", progress=seen.append)

    fractions = [p.fraction_finished for p in seen]
    assert len(seen) > 3
    assert fractions == sorted(fractions)
    assert fractions[-1] == 1.0
    assert seen[-1].sim_time_s == 32.0


def test_a_cancelled_run_leaves_a_readable_recording(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine.simulator, "CHUNK_STEPS", 10)

    result = simulate(many(30), timed(), tmp_path / "out", cancelled=lambda: True)

    recording = open_recording(result.path)
    assert result.status == recording.status == "cancelled"
    assert recording.complete
    assert recording.steps.height == result.num_steps == 10
    statuses = recording.requests["status"].cast(str).value_counts()
    assert dict(statuses.iter_rows()) == {"finished": 8, "unfinished": 22}


def test_max_steps_ends_a_run(tmp_path: Path) -> None:
    result = simulate(many(30), timed(max_steps=5), tmp_path / "out")

    assert (result.status, result.num_steps) == ("max_steps", 5)


def test_max_steps_counts_steps_and_not_ticks_of_the_clock(tmp_path: Path) -> None:
    trace = make_trace(make_request("a", 4, 2), make_request("b", 4, 2, arrival=500))

    result = simulate(trace, make_settings(max_steps=100), tmp_path / "out")

    assert (result.status, result.num_steps) == ("completed", 4)


def test_the_step_clock_needs_arrival_steps(tmp_path: Path) -> None:
    trace = make_trace(make_request("a", 4, 2))
    seconds_only = Workload(
        trace.table.with_columns(arrival_step=pl.lit(None, pl.Int64)), "t.csv", trace.report
    )

    with pytest.raises(
        SettingsError, match=r"t\.csv: the step clock needs a column arrival_step"
    ):
        simulate(seconds_only, make_settings(), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_metadata_say_what_made_the_run(tmp_path: Path) -> None:
    trace = make_trace(make_request("a", 4, 2))

    meta = run(trace, timed(seed=7), tmp_path).meta

    assert (meta.executor, meta.clock, meta.seed) == ("simulator", "modelled", 7)
    assert meta.workload_digest == trace.digest
    assert meta.settings["num_gpu_blocks"] == 5
    assert meta.pool_blocks == 4
    assert meta["vllm_baseline"] == "0.26.0"


def test_what_no_executor_saw_is_named_as_not_recorded(tmp_path: Path) -> None:
    recording = run(make_trace(make_request("a", 4, 3)), timed(), tmp_path)

    empty = {f"steps.{c}" for c in recording.steps.columns if recording.steps[c].null_count()}
    assert len(empty) == 8
    assert recording.meta.not_recorded == empty
