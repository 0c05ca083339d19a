"""Swim lanes as numbers, their pictures, and the requests of several runs beside each other."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from analyzer.distributions import curve
from analyzer.goodput import goodput_of
from analyzer.lanes import (
    DECODE,
    PHASES,
    PREEMPTED,
    PREFILL,
    QUEUED,
    RECOMPUTING,
    RESTORING,
    SWAPPED,
    Lanes,
    build_lanes,
)
from analyzer.lanes_picture import NOBODY, bars, skyline, strips, worth_a_look
from analyzer.lifecycles import lifecycles
from analyzer.look import Side
from analyzer.request_story import events_of, numbers, preemptions_cost_s
from analyzer.request_table import Asked, chosen, paired, rows_of
from analyzer.run import Run
from tests.builders import make_events, make_meta, make_requests, make_steps, write
from traces.errors import SettingsError
from traces.recording import open_recording

SAMPLES = Path(__file__).parents[1] / "traces" / "samples" / "recordings"
ONE = {"first_scheduled_s": 1.0, "first_token_s": 2.0, "finish_s": 8.0, "output_tokens": 5}


def frame(table: Any) -> pl.DataFrame:
    return pl.DataFrame(pl.from_arrow(table))


def lanes_of(
    events: Sequence[dict[str, Any]],
    requests: Sequence[dict[str, Any]],
    recomputed: Sequence[int] = (0,) * 10,
) -> Lanes:
    """Lanes of a run of one-second steps that compute so many tokens again."""
    steps = make_steps([1] * len(recomputed), recomputed_tokens=recomputed)
    return build_lanes(frame(make_events(events)), frame(steps), frame(make_requests(requests)))


def rows(lanes: Lanes, lane: int = 0) -> list[tuple[str, float, float]]:
    """(phase, from, to) of a lane."""
    part = slice(lanes.first[lane], lanes.first[lane + 1])
    return [
        (PHASES[p], a, b)
        for p, a, b in zip(
            lanes.phase[part].tolist(),
            lanes.start_s[part].tolist(),
            lanes.stop_s[part].tolist(),
            strict=True,
        )
    ]


def event(step: int, kind: str, request_id: str = "a", **more: Any) -> dict[str, Any]:
    return {"step": step, "kind": kind, "request_id": request_id, **more}


# ---- what a lane is made of ---------------------------------------------------------------------


def test_a_plain_request_is_queued_then_in_prefill_then_in_decode() -> None:
    found = lanes_of([], [{"request_id": "a", "arrival_s": 0.5, **ONE}])

    assert rows(found) == [("queued", 0.5, 1.0), ("prefill", 1.0, 2.0), ("decode", 2.0, 8.0)]


def test_a_victim_recomputes_until_as_many_tokens_were_computed_again() -> None:
    found = lanes_of(
        [
            event(3, "preempt", tokens=10, mode_used="recompute"),
            event(5, "resume", tokens=4),
        ],
        [{"request_id": "a", **ONE}],
        recomputed=[0, 0, 0, 0, 0, 3, 3, 0, 0, 0],
    )

    assert rows(found)[2:] == [
        ("decode", 2.0, 3.0),
        ("preempted", 3.0, 5.0),
        ("recomputing", 5.0, 7.0),
        ("decode", 7.0, 8.0),
    ]


def test_two_that_return_at_once_recompute_one_after_the_other() -> None:
    lost = {"tokens": 4, "mode_used": "recompute"}
    found = lanes_of(
        [
            event(3, "preempt", "a", **lost),
            event(3, "preempt", "b", **lost),
            event(5, "resume", "a"),
            event(5, "resume", "b"),
        ],
        [{"request_id": "a", **ONE}, {"request_id": "b", **ONE}],
        recomputed=[0, 0, 0, 0, 0, 4, 4, 0, 0, 0],
    )

    assert ("recomputing", 5.0, 6.0) in rows(found, 0)
    assert ("recomputing", 5.0, 7.0) in rows(found, 1)


def test_one_preempted_again_while_it_recomputes_has_computed_only_part() -> None:
    found = lanes_of(
        [
            event(3, "preempt", tokens=10, mode_used="recompute"),
            event(4, "resume"),
            event(5, "preempt", tokens=4, mode_used="recompute"),
            event(6, "resume"),
        ],
        [{"request_id": "a", **ONE}],
        recomputed=[0, 0, 0, 0, 4, 0, 4, 0, 0, 0],
    )

    assert rows(found)[2:] == [
        ("decode", 2.0, 3.0),
        ("preempted", 3.0, 4.0),
        ("recomputing", 4.0, 5.0),
        ("preempted", 5.0, 6.0),
        ("recomputing", 6.0, 7.0),
        ("decode", 7.0, 8.0),
    ]


def test_recomputing_is_not_made_up_where_steps_do_not_tell_of_it() -> None:
    found = lanes_of(
        [event(3, "preempt", tokens=10, mode_used="recompute"), event(5, "resume")],
        [{"request_id": "a", **ONE}],
    )

    assert rows(found)[2:] == [
        ("decode", 2.0, 3.0),
        ("preempted", 3.0, 5.0),
        ("decode", 5.0, 8.0),
    ]


def test_a_swapped_request_is_restored_from_the_copy_on() -> None:
    found = lanes_of(
        [
            event(3, "preempt", tokens=10, mode_used="swap"),
            event(3, "swap_out", tokens=10),
            event(5, "swap_in", tokens=10, cost_s=0.5),
            event(6, "resume"),
        ],
        [{"request_id": "a", **ONE}],
    )

    assert rows(found)[2:] == [
        ("decode", 2.0, 3.0),
        ("swapped", 3.0, 5.0),
        ("restoring", 5.0, 6.0),
        ("decode", 6.0, 8.0),
    ]


def test_a_copy_that_blocks_the_step_is_restoring_too() -> None:
    found = lanes_of(
        [
            event(3, "preempt", tokens=10, mode_used="swap"),
            event(5, "swap_in", tokens=10, cost_s=0.5),
            event(5, "resume"),
        ],
        [{"request_id": "a", **ONE}],
    )

    assert rows(found)[3:] == [
        ("swapped", 3.0, 5.0),
        ("restoring", 5.0, 5.5),
        ("decode", 5.5, 8.0),
    ]


def test_a_load_before_admission_ends_the_queue() -> None:
    found = lanes_of(
        [event(1, "load", tokens=8, cost_s=0.1), event(2, "admit")],
        [
            {
                "request_id": "a",
                "first_scheduled_s": 2.0,
                "first_token_s": 3.0,
                "finish_s": 4.0,
            }
        ],
    )

    assert rows(found) == [
        ("queued", 0.0, 1.0),
        ("restoring", 1.0, 2.0),
        ("prefill", 2.0, 3.0),
        ("decode", 3.0, 4.0),
    ]


def test_a_victim_before_its_first_token_goes_on_with_its_prefill() -> None:
    found = lanes_of(
        [event(2, "preempt", tokens=4, mode_used="recompute"), event(4, "resume")],
        [
            {
                "request_id": "a",
                "first_scheduled_s": 1.0,
                "first_token_s": 7.0,
                "finish_s": 8.0,
            }
        ],
        recomputed=[0, 0, 0, 0, 4, 0, 0, 0, 0, 0],
    )

    assert rows(found) == [
        ("queued", 0.0, 1.0),
        ("prefill", 1.0, 2.0),
        ("preempted", 2.0, 4.0),
        ("recomputing", 4.0, 5.0),
        ("prefill", 5.0, 7.0),
        ("decode", 7.0, 8.0),
    ]


def test_what_is_open_ends_with_the_run_and_a_refused_one_at_its_refusal() -> None:
    found = lanes_of(
        [
            event(3, "preempt", "a", tokens=4, mode_used="recompute"),
            event(2, "refuse", "b"),
        ],
        [
            {"request_id": "a", "first_scheduled_s": 1.0, "first_token_s": 2.0},
            {"request_id": "b", "arrival_s": 1.5, "status": "refused"},
            {"request_id": "c", "arrival_s": 9.0},
        ],
    )

    assert rows(found, 0)[-1] == ("preempted", 3.0, 10.0)
    assert rows(found, 1) == [("queued", 1.5, 2.0)]
    assert rows(found, 2) == [("queued", 9.0, 10.0)]
    assert found.is_open.tolist() == [True, False, True]


def test_lanes_are_ordered_by_arrival_and_find_their_request() -> None:
    found = lanes_of(
        [],
        [
            {"request_id": "late", **ONE, "arrival_s": 5.0},
            {"request_id": "early", **ONE, "arrival_s": 1.0},
        ],
    )

    assert found.row.tolist() == [1, 0]
    assert found.lane.tolist() == [1, 0]
    assert found.arrival_s.tolist() == [1.0, 5.0]


@pytest.mark.parametrize("name", ["chat-recompute", "chat-swap", "smollm2-recompute"])
def test_lanes_and_lifecycles_say_the_same_of_a_sample(name: str) -> None:
    run = open_recording(SAMPLES / name)
    found = build_lanes(run.events, run.steps, run.requests)
    told = lifecycles(run.events, run.requests, found.end_of_run_s)

    spent = np.bincount(
        found.phase, weights=found.stop_s - found.start_s, minlength=len(PHASES)
    )
    states = dict(
        told.group_by("state")
        .agg((pl.col("end_s") - pl.col("start_s")).sum())
        .cast({"state": pl.String})
        .iter_rows()
    )
    assert spent[QUEUED] == pytest.approx(states["queued"])
    assert spent[PREEMPTED] == pytest.approx(states.get("preempted", 0.0))
    assert spent[SWAPPED] == pytest.approx(states.get("swapped", 0.0))
    assert spent[[PREFILL, DECODE, RECOMPUTING, RESTORING]].sum() == pytest.approx(
        states["prefill"] + states["decode"]
    )
    assert (spent[RECOMPUTING] > 0) == (run.steps["recomputed_tokens"].sum() > 0)
    assert (spent[RESTORING] > 0) == (run.steps["swap_in_bytes"].sum() > 0)


def test_a_lane_of_a_sample_has_no_gap() -> None:
    run = open_recording(SAMPLES / "chat-swap")
    found = build_lanes(run.events, run.steps, run.requests)

    lane = np.repeat(np.arange(found.num_lanes), np.diff(found.first))
    neighbours = lane[1:] == lane[:-1]
    assert found.num_lanes == 2000
    assert np.abs(found.start_s[1:] - found.stop_s[:-1])[neighbours].max() < 1e-9
    assert found.left_out.words() == ""


# ---- damaged recordings -------------------------------------------------------------------------


def test_times_that_are_no_numbers_are_left_out_and_counted() -> None:
    requests = frame(
        make_requests(
            [{"request_id": i, **ONE} for i in ("ok", "no arrival", "endless", "no end")]
        )
    ).with_columns(
        arrival_s=pl.Series([0.5, float("nan"), 0.5, 0.5]),
        finish_s=pl.Series([8.0, 8.0, float("inf"), None]),
    )
    events = frame(
        make_events(
            [event(3, "preempt", "ok", mode_used="recompute"), event(5, "resume", "nobody")]
        )
    ).with_columns(t_s=pl.Series([float("nan"), 5.0]))

    found = build_lanes(events, frame(make_steps([1] * 10)), requests)

    assert found.num_lanes == 3
    assert rows(found, 0) == [("queued", 0.5, 1.0), ("prefill", 1.0, 2.0), ("decode", 2.0, 8.0)]
    assert rows(found, 1)[-1] == ("decode", 2.0, 10.0)
    assert rows(found, 2)[-1] == ("decode", 2.0, 10.0)
    assert found.left_out.words() == (
        "Left out: 1 request without an arrival time; "
        "2 events without a time or of a request that is not listed."
    )


def test_a_clock_that_went_back_leaves_out_only_what_cannot_be() -> None:
    found = lanes_of(
        [
            event(3, "preempt", t_s=5.0, mode_used="recompute"),
            event(5, "resume", t_s=4.0),
        ],
        [{"request_id": "a", **ONE}],
    )

    assert all(start < stop for _, start, stop in rows(found))
    assert ("decode", 2.0, 5.0) in rows(found)
    assert "clock that went back" in found.left_out.words()


def test_a_run_without_requests_has_no_lane() -> None:
    found = lanes_of([], [])

    assert found.num_lanes == 0
    assert found.end_of_run_s == 10.0
    assert strips(found, (0.0, 10.0)).index().max() == NOBODY
    assert len(skyline(found, (0.0, 10.0)).lanes) == 0
    assert found.usual_life_s == 0.0


# ---- pictures -----------------------------------------------------------------------------------


def test_a_column_holds_the_share_of_its_time_that_requests_spent_in_a_phase() -> None:
    found = lanes_of([], [{"request_id": "a", "arrival_s": 0.5, **ONE}])

    mean = strips(found, (0.0, 8.0), columns=4).mean[0]

    assert mean[QUEUED].tolist() == [0.25, 0.0, 0.0, 0.0]
    assert mean[PREFILL].tolist() == [0.5, 0.0, 0.0, 0.0]
    assert mean[DECODE].tolist() == [0.0, 1.0, 1.0, 1.0]


def test_a_strip_of_several_requests_divides_its_height() -> None:
    found = lanes_of(
        [], [{"request_id": "a", **ONE}, {"request_id": "b", **ONE, "first_token_s": 6.0}]
    )

    picture = strips(found, (2.0, 6.0), num_strips=1, columns=2)

    assert picture.index(strip_px=4).tolist() == [
        [PREFILL, PREFILL],
        [PREFILL, PREFILL],
        [DECODE, DECODE],
        [DECODE, DECODE],
    ]
    assert picture.counts(1)[[PREFILL, DECODE], 0].tolist() == [1.0, 1.0]


def test_a_short_preemption_of_one_among_hundreds_is_still_seen() -> None:
    requests = [{"request_id": str(i), **ONE} for i in range(300)]
    found = lanes_of(
        [
            event(3, "preempt", "7", mode_used="recompute", t_s=3.0),
            event(3, "resume", "7", t_s=3.001),
        ],
        requests,
    )

    index = strips(found, (0.0, 10.0), num_strips=1, columns=10).index()

    assert (index[:, 3] == PREEMPTED).any()
    assert not (index[:, 5] == PREEMPTED).any()


def test_the_skyline_shows_of_each_column_the_victim_else_the_slowest() -> None:
    long, short = {**ONE, "finish_s": 9.0}, {**ONE, "finish_s": 4.0}
    found = lanes_of(
        [event(3, "preempt", "victim", mode_used="recompute"), event(4, "resume", "victim")],
        [
            {"request_id": "long", "arrival_s": 0.0, **long},
            {"request_id": "victim", "arrival_s": 0.1, **short, "finish_s": 5.0},
            {"request_id": "short", "arrival_s": 6.0, **short, "finish_s": 7.0},
            {"request_id": "slow", "arrival_s": 6.5, **short, "finish_s": 9.5},
        ],
    )

    sky = skyline(found, (0.0, 10.0), columns=2, rows=10)

    assert found.row[sky.lanes].tolist() == [1, 3]
    assert sky.life_s.tolist() == pytest.approx([4.9, 3.0])
    assert sky.num_arrivals == 4
    assert (sky.index == PREEMPTED).any()


def test_detail_lanes_are_those_preempted_longest_or_the_neighbours_of_the_chosen() -> None:
    requests = [{"request_id": str(i), **ONE, "arrival_s": i * 0.01} for i in range(50)]
    found = lanes_of(
        [event(3, "preempt", "30", mode_used="recompute"), event(5, "resume", "30")], requests
    )
    same = {"A": np.arange(50)}

    picked, why = worth_a_look({"A": found}, same, (0.0, 10.0), 4)  # type: ignore[arg-type]
    around, _ = worth_a_look({"A": found}, same, (0.0, 10.0), 4, chosen=20)  # type: ignore[arg-type]

    assert 30 in picked
    assert len(picked) == 4
    assert why == "4 of 50: preempted longest"
    assert around.tolist() == [18, 19, 20, 21]


def test_bars_hold_what_is_shown_and_the_longest_where_there_are_too_many() -> None:
    found = lanes_of(
        [event(3, "preempt", mode_used="recompute"), event(4, "resume")],
        [{"request_id": "a", **ONE}],
    )

    some = bars(found, np.array([0, found.num_lanes]), (2.5, 9.0), most=2)

    assert some.place.tolist() == [0, 0]
    assert some.phase.tolist() == [PREEMPTED, DECODE]
    assert some.stop_s.tolist() == [4.0, 8.0]
    assert some.num_hidden == 1


# ---- the table ----------------------------------------------------------------------------------

A = [
    {"request_id": "x-1", **ONE, "num_preemptions": 2},
    {"request_id": "x-2", **ONE, "first_token_s": 5.0},
    {"request_id": "y-3", "arrival_s": 3.0},
]
B = [{"request_id": "y-3", **ONE, "arrival_s": 3.0}, {"request_id": "z", **ONE}]


def test_requests_are_matched_by_id_and_those_of_one_run_alone_are_kept() -> None:
    pair = paired({"A": frame(make_requests(A)), "B": frame(make_requests(B))})

    table = rows_of(pair, np.arange(len(pair)))

    assert table["request"].to_list() == ["x-1", "x-2", "y-3", "z"]
    assert table["status · A"].to_list() == ["finished", "finished", "unfinished", None]
    assert table["status · B"].to_list() == [None, None, "finished", "finished"]
    assert table["ttft_s · A"].to_list() == [2.0, 5.0, None, None]
    assert table["e2e_s · B"].to_list() == [None, None, 5.0, 8.0]
    assert table["num_preemptions · B − A"].to_list() == [None, None, 0.0, None]
    assert pair.number("y-3") == 2
    assert pair.number("nobody") is None


def test_rows_are_found_by_a_part_of_the_id_and_sorted_with_unknowns_last() -> None:
    pair = paired({"A": frame(make_requests(A)), "B": frame(make_requests(B))})

    found = chosen(pair, Asked(find="x-", sort="ttft_s", which="A", descending=True))
    every = chosen(pair, Asked(sort="ttft_s", which="A"))
    by_change = chosen(pair, Asked(sort="num_preemptions", which="B − A"))

    assert pair.ids.gather(found).to_list() == ["x-2", "x-1"]
    assert pair.ids.gather(every).to_list() == ["x-1", "x-2", "y-3", "z"]
    assert pair.ids.gather(by_change).to_list()[0] == "y-3"
    assert len(chosen(pair, Asked(find="[a-z]"))) == 0


def test_a_name_of_ten_megabytes_is_cut_where_it_is_shown() -> None:
    name = "<b>" + "x" * 10_000_000
    pair = paired({"A": frame(make_requests([{"request_id": name, **ONE}]))})

    shown = rows_of(pair, np.array([0]))["request"][0]

    assert shown == "<b>" + "x" * 57 + "… (10000003 characters)"


# ---- latencies and goodput ----------------------------------------------------------------------


def test_a_curve_counts_finished_requests_and_ends_at_all_of_them() -> None:
    found = curve(
        "ttft_s",
        frame(make_requests(A)),
        frame(make_events([])),
        frame(make_steps([1])),
    )

    assert found.x_s.tolist() == [2.0, 5.0]
    assert found.share.tolist() == [0.5, 1.0]
    assert found.num == 2
    assert found.summary["p50"] == 3.5


def test_a_curve_of_many_values_keeps_the_least_the_greatest_and_the_tail() -> None:
    requests = frame(
        make_requests(
            [{"request_id": str(i), **ONE, "first_token_s": 1.0 + i} for i in range(5_000)]
        )
    ).with_columns(finish_s=pl.lit(9_000.0))

    found = curve("ttft_s", requests, frame(make_events([])), frame(make_steps([1])))

    assert len(found.x_s) < 1_300
    assert found.x_s[0] == 1.0
    assert found.x_s[-1] == 5_000.0
    assert (found.x_s > 4_950).sum() == 50


def test_goodput_counts_what_met_every_bound_and_what_missed_each() -> None:
    requests = frame(make_requests(A))

    found = goodput_of(requests, {"ttft_s": 3.0, "e2e_s": 100.0}, 10.0)

    assert found.num_met == 1
    assert found.share_frac == pytest.approx(1 / 3)
    assert found.requests_per_s == pytest.approx(0.1)
    assert found.tokens_per_s == pytest.approx(0.5)
    assert found.missed == {"ttft_s": 1, "e2e_s": 0}
    assert found.num_unfinished == 1


def test_without_bounds_every_finished_request_is_good() -> None:
    found = goodput_of(frame(make_requests(A)), {}, 0.0)

    assert found.num_met == 2
    assert found.requests_per_s is None


def test_a_bound_on_something_unknown_is_refused() -> None:
    with pytest.raises(SettingsError, match="no such bound"):
        goodput_of(frame(make_requests(A)), {"mood": 1.0}, 1.0)


# ---- one request told ---------------------------------------------------------------------------


def test_one_request_is_told_with_what_its_preemption_cost_in_each_run() -> None:
    runs: dict[Side, Run] = {
        "A": Run("a", open_recording(SAMPLES / "chat-recompute")),
        "B": Run("b", open_recording(SAMPLES / "chat-swap")),
    }
    pair = paired({side: run.requests for side, run in runs.items()})
    costs = {side: preemptions_cost_s(run, "376") for side, run in runs.items()}

    number = pair.number("376")
    assert number is not None
    told = {row[0]: row[1:] for row in numbers(runs, pair, number, costs).rows()}

    assert told["Preemptions cost"] == ("101 ms", "13.6 ms", "−87.5 ms")
    assert told["E2E"] == ("20.8 s", "20.5 s", "−209 ms")
    assert told["Tokens recomputed"] == ("867", "0", "−867")
    said = events_of(runs["A"], "376")["said"].to_list()
    assert said[0] == "arrived: prompt of 1,218 tokens"
    assert said[2] == "preempted by recompute: for 341, 0 blocks free, 1,219 tokens, 77 blocks"
    assert said[-1] == "finished: 79 output tokens"


def test_costs_that_were_not_recorded_are_not_known(tmp_path: Path) -> None:
    events = make_events(
        [event(3, "preempt", tokens=4, mode_used="recompute"), event(5, "resume")]
    )
    meta = make_meta(not_recorded=["events.cost_s", "events.recompute_est_s"])
    path = write(
        tmp_path / "run",
        make_steps([1] * 10),
        events=events,
        requests=make_requests([{"request_id": "a", **ONE}]),
        meta=meta,
    )

    assert preemptions_cost_s(Run("a", open_recording(path)), "a") is None
