"""What surrounds a preemption: which lanes, how much time, and the picture of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from analyzer.lanes import PHASES, PREEMPTED, RECOMPUTING, build_lanes
from analyzer.lanes_figure import LABELS
from analyzer.look import LIGHT
from analyzer.preemption_around import Around, around, in_words, stretch
from analyzer.preemption_figure import alt_around, lanes_around
from analyzer.preemption_rows import told
from analyzer.preemption_totals import otherwise, repeats
from analyzer.preemption_totals_figure import (
    alt_otherwise,
    alt_repeats,
    otherwise_bars,
    repeats_bars,
)
from analyzer.run import Run
from tests.builders import make_events, make_requests, make_steps, record
from tests.preemption_worlds import run_of


def surrounded(run: Run, nth: int = 0, wider: float = 1.0) -> Around:
    table = told(run)
    row = table.row(nth, named=True)
    lanes = build_lanes(run.events, run.steps, run.requests)
    cascade = table.filter(pl.col("cascade_id") == row["cascade_id"])
    return around(
        row, lanes, run.requests, run.steps, cascade, run.recording.pool_blocks, wider
    )


def many(folder: Path, num: int = 40) -> Run:
    """`num` requests admitted one a step; in step num + 2 the first one needs the blocks of the last."""
    last = num + 2
    events: list[dict[str, Any]] = []
    for i in range(num):
        events += [
            {"step": i, "kind": k, "request_id": f"r{i}", "blocks": 1}
            for k in ("arrive", "admit")
        ]
    events += [
        {"step": last, "kind": "preempt", "request_id": f"r{num - 1}", "cause_request_id": "r0", "mode_used": "recompute", "tokens": 4},
        {"step": last + 2, "kind": "resume", "request_id": f"r{num - 1}"},
    ]  # fmt: skip
    requests = [
        {"request_id": f"r{i}", "arrival_s": float(i), "first_scheduled_s": float(i), "first_token_s": i + 1.0, "finish_s": 99.0}
        for i in range(num)
    ]  # fmt: skip
    made = record(
        folder,
        steps=make_steps([8] * 100),
        events=make_events(events),
        requests=make_requests(requests),
    )
    return Run("file:many", made)


def test_the_shown_time_holds_the_time_away_and_as_much_around_it(tmp_path: Path) -> None:
    run = run_of(tmp_path)
    row = told(run).row(0, named=True)

    # away from 3 to 5 s; 60 steps do not exist on either side, so that all of the run is shown
    assert stretch(row, run.steps) == (0.0, 11.0)
    assert stretch(row, run.steps, wider=4.0) == (0.0, 12.0)


def test_time_away_that_is_longer_than_sixty_steps_sets_the_margin() -> None:
    steps = pl.DataFrame({"t_start_s": np.arange(2_000.0), "duration_s": np.ones(2_000)})

    assert stretch({"t_s": 500.0, "resume_s": 700.0}, steps) == (300.0, 900.0)
    assert stretch({"t_s": 500.0, "resume_s": None}, steps) == (440.0, 560.0)
    assert stretch({"t_s": 500.0, "resume_s": 501.0}, steps, wider=2.0) == (380.0, 621.0)


def test_lanes_stand_in_order_of_admission_so_that_the_victim_is_the_last(
    tmp_path: Path,
) -> None:
    found = surrounded(many(tmp_path))

    names = [lane.request_id for lane in found.lanes]
    assert len(names) == 14
    assert names[0] == "r0"
    assert found.lanes[0].part == "aggressor"
    assert names[1:] == [f"r{i}" for i in range(27, 40)]
    assert found.lanes[-1].part == "victim"
    assert found.num_running == 40
    assert (found.at_s, found.back_s) == (42.0, 44.0)


def test_who_was_evicted_in_the_same_cascade_is_among_them(tmp_path: Path) -> None:
    found = surrounded(run_of(tmp_path))

    assert {lane.request_id: lane.part for lane in found.lanes} == {
        "a": "aggressor",
        "b": "victim",
        "c": "evicted too",
    }
    table = in_words(found, PHASES)
    assert table.filter(pl.col("state") == "preempted").select("request", "from (s)", "to (s)").rows() == [
        ("b", 3.0, 5.0), ("b", 7.0, 9.0), ("c", 4.0, 8.0),
    ]  # fmt: skip


def test_the_picture_marks_both_and_says_what_it_shows(tmp_path: Path) -> None:
    found = surrounded(run_of(tmp_path))

    spec = json.loads(lanes_around(found, "B", LIGHT).to_json())

    labels = spec["layout"]["yaxis"]["ticktext"]
    assert "<b>▲ a</b> needed it" in labels
    assert "<b>▼ b</b> evicted" in labels
    assert "▽ c" in labels
    words = [a["text"] for a in spec["layout"]["annotations"]]
    assert "evicted" in words
    assert "runs again" in words
    assert {t.get("name") for t in spec["data"]} >= {LABELS[PREEMPTED], LABELS[RECOMPUTING]}
    hatched = {t["name"] for t in spec["data"] if t.get("marker", {}).get("pattern", {}).get("shape")}  # fmt: skip
    assert hatched == {"preempted"}, "without its KV, as on Requests"
    said = alt_around(found, "Request b evicted at step 3")
    assert "request b (victim)" in said
    assert "Blocks in use 6 to 10 of 10" in said


def test_ids_full_of_markup_do_not_become_markup(tmp_path: Path) -> None:
    bad = "<img src=x onerror=alert(1)>"
    events = [
        {"step": 0, "kind": "admit", "request_id": bad},
        {"step": 2, "kind": "preempt", "request_id": bad, "cause_request_id": bad, "mode_used": "recompute"},
    ]  # fmt: skip
    requests = [{"request_id": bad, "arrival_s": 0.0, "first_scheduled_s": 0.0, "first_token_s": 1.0}]  # fmt: skip
    run = Run(
        "file:bad",
        record(tmp_path, steps=make_steps([1] * 5), events=make_events(events), requests=make_requests(requests)),
    )  # fmt: skip

    spec = lanes_around(surrounded(run), "A", LIGHT).to_json()

    assert "<img" not in spec
    assert "&lt;img" in spec


def test_the_other_mode_is_drawn_hatched_below_the_mode_used(tmp_path: Path) -> None:
    found = {"A": otherwise(told(run_of(tmp_path / "a"))), "B": otherwise(told(run_of(tmp_path / "b", "swap")))}  # fmt: skip

    spec = json.loads(otherwise_bars(found, LIGHT).to_json())  # type: ignore[arg-type]

    assert spec["layout"]["yaxis"]["ticktext"] == [
        "A · recompute",
        "A as swap, est.",
        "B · swap",
        "B as recompute, est.",
    ]
    assert spec["data"][0]["x"] == [pytest.approx(1.8), 1.5, 1.5, pytest.approx(3.6)]
    assert spec["data"][0]["marker"]["pattern"]["shape"] == ["", ".", "/", "."]
    assert "A: 3 preemptions by recompute cost 1.80 s" in alt_otherwise(found)  # type: ignore[arg-type]


def test_repeats_are_drawn_for_every_run_and_said(tmp_path: Path) -> None:
    table = repeats({"A": told(run_of(tmp_path))})

    spec = json.loads(repeats_bars(table, LIGHT).to_json())

    assert [t["name"] for t in spec["data"]] == ["A"]
    assert spec["data"][0]["text"][:3] == ["1", "1", ""]
    assert alt_repeats(table) == (
        "Requests by how often they were evicted. A: 1 evicted 1 times, 1 evicted 2 times."
    )
