"""Preemption by swap: computed tokens move to the host and come back, and what the copies cost.

Timed tests use SECONDS: a step takes 1 s and a block 1 s to copy.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.config import EngineSettings
from engine.core.preempt import contended
from tests.engine_builders import (
    SECONDS,
    decide,
    make_request,
    make_settings,
    make_trace,
    tokens_of,
)
from traces.recording import Recording

# Two requests fill the pool; at step 2, a (9 tokens) needs a third block and b is the victim.
A, B = make_request("a", 7, 5), make_request("b", 7, 4)


def swap(blocks: int = 4, **changes: Any) -> EngineSettings:
    return make_settings(blocks, **{"preemption_mode": "swap", "num_host_blocks": 8, **changes})


def timed(blocks: int = 4, **changes: Any) -> EngineSettings:
    return swap(blocks, **{"clock": "modelled", "cost_overrides": SECONDS, **changes})


def rows(recording: Recording, kind: str) -> list[dict[str, Any]]:
    return [e for e in recording.events.to_dicts() if e["kind"] == kind]


def request_row(recording: Recording, id: str) -> dict[str, Any]:
    return next(r for r in recording.requests.to_dicts() if r["request_id"] == id)


def test_swap_keeps_computed_tokens(tmp_path: Path) -> None:
    steps, recording = decide(make_trace(A, B), swap(), tmp_path)

    assert steps[2]["preempted"] == [{"id": "b", "computed_tokens_lost": 8, "blocks_held": 2}]
    assert steps[2]["swapped"] == ["b"]
    assert steps[5]["scheduled"] == [{"id": "b", "tokens": 1, "computed_before": 8}]
    assert recording.steps["recomputed_tokens"].sum() == 0
    (event,) = rows(recording, "preempt")
    assert (event["mode_asked"], event["mode_used"]) == ("swap", "swap")


def test_swapped_blocks_are_in_host_memory_until_they_return(tmp_path: Path) -> None:
    _, recording = decide(make_trace(A, B), swap(), tmp_path)

    assert recording.steps["host_used_blocks"].to_list() == [0, 0, 2, 2, 2, 0, 0]
    assert recording.steps["num_swapped"].to_list() == [0, 0, 1, 1, 1, 0, 0]
    assert recording.steps["num_resumed"].to_list() == [0, 0, 0, 0, 0, 1, 0]
    (out,), (back,) = rows(recording, "swap_out"), rows(recording, "swap_in")
    assert (out["blocks"], out["tokens"], back["blocks"], back["tokens"]) == (2, 8, 2, 8)
    assert (back["free_blocks_before"], rows(recording, "resume")[0]["blocks"]) == (4, 3)
    assert out["bytes"] == back["bytes"] == 2 * 4 * 131_072  # 128 KiB a token, Llama-3.1-8B
    assert request_row(recording, "b")["swapped_bytes"] == 2 * out["bytes"]


@pytest.mark.parametrize("host", [0, 1])
def test_a_full_host_makes_a_swap_a_recompute_and_the_event_says_so(
    host: int, tmp_path: Path
) -> None:
    steps, recording = decide(make_trace(A, B), swap(num_host_blocks=host), tmp_path)

    (event,) = rows(recording, "preempt")
    assert (event["mode_asked"], event["mode_used"]) == ("swap", "recompute")
    assert steps[2]["waiting"] == ["b"]
    assert tokens_of(steps)[5] == {"b": 9}
    assert recording.steps["host_used_blocks"].max() == 0


def test_a_swapped_request_comes_back_before_new_ones_are_admitted(tmp_path: Path) -> None:
    trace = make_trace(A, B, make_request("new", 2, 1, arrival=2))

    steps, _ = decide(trace, swap(), tmp_path)

    # One block is free from step 3 on, enough for `new`; b needs three.
    assert [s["running"] for s in steps[3:6]] == [["a"], ["a"], ["b", "new"]]
    assert [a["id"] for a in steps[5]["admitted"]] == ["b", "new"]
    assert steps[5]["admitted"][0]["kind"] == "resumed"


def test_swapped_requests_come_back_oldest_arrival_first(tmp_path: Path) -> None:
    trace = make_trace(*[make_request(id, 7, 10) for id in "abc"])

    _, recording = decide(trace, swap(blocks=6), tmp_path)

    assert [e["request_id"] for e in rows(recording, "swap_out")][:2] == ["c", "b"]
    assert next(e["request_id"] for e in rows(recording, "swap_in")) == "b"


def test_a_blocking_copy_lengthens_its_step(tmp_path: Path) -> None:
    _, recording = decide(make_trace(A, B), timed(), tmp_path)

    # Two blocks out in step 2 and back in step 5: 2 s each on top of 1 s.
    steps = recording.steps
    assert steps["t_start_s"].to_list() == [0, 1, 2, 5, 6, 7, 10]
    assert steps["duration_s"].to_list() == [1, 1, 3, 1, 1, 3, 1]
    assert steps["stall_s"].to_list() == [0, 0, 2, 0, 0, 2, 0]
    assert steps["link_out_busy_s"].to_list() == [0, 0, 2, 0, 0, 0, 0]
    assert steps["link_in_busy_s"].to_list() == [0, 0, 0, 0, 0, 2, 0]
    assert [rows(recording, k)[0]["cost_s"] for k in ("swap_out", "swap_in")] == [2, 2]


def test_times_of_a_swapped_request_include_its_absence(tmp_path: Path) -> None:
    _, recording = decide(make_trace(A, B), timed(), tmp_path)

    b = request_row(recording, "b")
    assert b["first_token_s"] == 1.0
    assert b["preempted_s"] == 5.0  # 2 to 7
    assert b["max_itl_s"] == 8.0  # tokens at 1, 2, 10 and 11
    assert b["finish_s"] == 11.0
    assert request_row(recording, "a")["finish_s"] == 7.0


def test_an_asynchronous_copy_fences_its_blocks_and_stalls_nobody(tmp_path: Path) -> None:
    trace = make_trace(make_request("c", 1, 12), A, B)

    steps, recording = decide(trace, timed(5, copy_mode="async"), tmp_path)

    # b's two blocks leave from 2 s to 4 s: a waits for them, c runs on.
    assert tokens_of(steps)[2:5] == [{"c": 1}, {"c": 1}, {"c": 1, "a": 1}]
    assert recording.steps["fenced_blocks"].to_list()[:5] == [0, 0, 2, 2, 0]
    assert recording.steps["used_blocks"].to_list()[2] == 5
    assert recording.steps["stall_s"].to_list()[:5] == [0, 0, 0, 0, 0]
    assert recording.steps["duration_s"].to_list()[:5] == [1, 1, 1, 1, 1]


def test_a_request_loading_from_the_host_holds_blocks_and_runs_when_they_are_there(
    tmp_path: Path,
) -> None:
    trace = make_trace(make_request("c", 1, 12), A, B)

    steps, recording = decide(trace, timed(6, copy_mode="async"), tmp_path)

    # b finds no block at step 2 and leaves; a ends with step 4, and b is back at 7 s.
    assert recording.steps["stall_s"].sum() == 0.0
    (start,), (resume,) = rows(recording, "swap_in"), rows(recording, "resume")
    assert (start["t_s"], resume["t_s"]) == (5.0, 7.0)
    between = [s for s in steps if start["step"] <= s["step"] < resume["step"]]
    assert len(between) == 2
    assert all("b" not in s["running"] + s["swapped"] + s["waiting"] for s in between)
    assert steps[resume["step"]]["scheduled"][-1] == {
        "id": "b", "tokens": 1, "computed_before": 8,
    }  # fmt: skip
    assert recording.steps["num_resumed"].sum() == 1
    assert request_row(recording, "b")["status"] == "finished"


def test_with_nothing_else_to_run_an_asynchronous_copy_is_waited_for(tmp_path: Path) -> None:
    _, recording = decide(make_trace(A, B), timed(copy_mode="async"), tmp_path)

    steps = recording.steps
    assert steps["duration_s"].to_list() == [1, 1, 2, 1, 1, 1, 2, 1, 1]
    assert steps["stall_s"].to_list() == [0, 0, 2, 0, 0, 0, 2, 0, 0]
    assert request_row(recording, "b")["finish_s"] == 11.0


@pytest.mark.parametrize(
    ("copy_mode", "abort"),
    [("blocking", 4), ("async", 3), ("async", 6)],
    ids=["swapped", "fenced", "loading"],
)
def test_an_abort_of_a_swapped_request_returns_all_its_blocks(
    copy_mode: str, abort: int, tmp_path: Path
) -> None:
    trace = make_trace(make_request("c", 1, 12), A, {**B, "abort": abort})

    steps, recording = decide(trace, timed(6, copy_mode=copy_mode), tmp_path)

    assert request_row(recording, "b")["status"] == "aborted"
    assert request_row(recording, "a")["status"] == "finished"
    assert recording.steps["host_used_blocks"].to_list()[-1] == 0
    assert recording.steps["fenced_blocks"].to_list()[-1] == 0
    assert steps[-1]["blocks_end"]["used"] == 0


@pytest.mark.parametrize(
    ("start", "busy_until", "duration"),
    [(0.0, 0.0, 4.0), (0.0, 10.0, 8.0), (0.0, 2.0, 5.0), (3.0, 1.0, 4.0)],
)
def test_a_copy_runs_at_half_speed_while_the_other_direction_is_busy(
    start: float, busy_until: float, duration: float
) -> None:
    assert contended(start, busy_until, 4.0, 0.5) == duration
