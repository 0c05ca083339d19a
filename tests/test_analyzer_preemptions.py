"""Preemptions as rows, and each of their costs."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest

from analyzer.preemptions import (
    cascades,
    preemption_cost,
    preemptions,
    top_aggressors,
    top_victims,
)
from tests.builders import make_events, make_steps
from tests.worlds import chunked_return, frames


def frame(table: Any) -> pl.DataFrame:
    return pl.DataFrame(pl.from_arrow(table))


def evict(step: int, who: str, cause: str, **more: Any) -> dict[str, Any]:
    return {
        "step": step,
        "kind": "preempt",
        "request_id": who,
        "cause_request_id": cause,
        "mode_used": "recompute",
        **more,
    }


def test_a_preemption_is_one_row_with_victim_cause_and_costs() -> None:
    world = frames(chunked_return())

    rows = preemptions(world["events"], world["steps"]).rows(named=True)

    assert rows == [
        {
            "step": 3,
            "t_s": 3.0,
            "request_id": "b",
            "nth": 1,
            "cause_request_id": "a",
            "mode_asked": "recompute",
            "mode_used": "recompute",
            "tokens": 6,
            "blocks": 2,
            "bytes": 0,
            "free_blocks_before": 0,
            "direct_cost_s": pytest.approx(0.4 * 4 / 6),  # 2 of 6 tokens were in the cache
            "uncached_cost_s": 0.4,
            "recompute_est_s": 0.4,
            "swap_est_s": 0.1,
            "resume_step": 5,
            "resume_s": 6.0,
            "away_s": 3.0,
            "since_resume_s": None,
            "found_tokens": 2,
            "restored_tokens": 0,
            "recomputed_tokens": 4,
            "stalled_s": 0.0,
            "induced_s": 0.0,  # b ran alone when it came back
            "cascade_id": 0,
            "cascade_size": 1,
        }
    ]


def test_recompute_delays_others_by_its_share_of_the_tokens_of_each_step() -> None:
    # b comes back in step 2 with 6 tokens to compute: 4 of 8 tokens of step 2, 2 of 4 of step 3
    steps = frame(
        make_steps(
            [1, 1, 1, 1],
            duration_s=[1.0, 1.0, 3.0, 2.0],
            stall_s=[0.0, 0.0, 1.0, 0.0],
            num_running=[1, 1, 4, 4],
            decode_tokens=[1, 1, 4, 2],
            recomputed_tokens=[0, 0, 4, 2],
        )
    )
    events = frame(
        make_events(
            [evict(1, "b", "a", tokens=6), {"step": 2, "kind": "resume", "request_id": "b"}]
        )
    )

    table = preemptions(events, steps)

    # (3 s - 1 s stall) x 1/2 x 3 others + 2 s x 1/2 x 3 others
    assert table["induced_s"].to_list() == [pytest.approx(6.0)]


def test_victims_that_return_together_share_the_delay_by_their_tokens() -> None:
    steps = frame(
        make_steps(
            [1, 1, 1],
            num_running=[3, 1, 3],
            decode_tokens=[0, 0, 2],
            recomputed_tokens=[0, 0, 8],
        )
    )
    events = frame(
        make_events(
            [
                evict(1, "b", "a", tokens=2),
                evict(1, "c", "a", tokens=6),
                {"step": 2, "kind": "resume", "request_id": "b"},
                {"step": 2, "kind": "resume", "request_id": "c"},
            ]
        )
    )

    table = preemptions(events, steps)

    # 1 s x 8/10 x 2 others = 1.6 request-seconds, a quarter and three quarters
    assert table["induced_s"].to_list() == [pytest.approx(0.4), pytest.approx(1.2)]


def test_a_blocking_copy_delays_those_who_run_in_its_steps() -> None:
    steps = frame(
        make_steps(
            [1, 1, 1],
            num_running=[4, 3, 4],
            duration_s=[1.0, 2.0, 2.0],
            stall_s=[0.0, 0.5, 0.3],
            swap_out_bytes=[0, 1000, 0],
            swap_in_bytes=[0, 0, 500],
        )
    )
    events = frame(
        make_events(
            [
                evict(
                    1,
                    "b",
                    "a",
                    mode_used="swap",
                    tokens=6,
                    bytes=1000,
                    cost_s=0.8,
                    recompute_est_s=2.0,
                    swap_est_s=0.8,
                ),
                {
                    "step": 1,
                    "kind": "swap_out",
                    "request_id": "b",
                    "bytes": 1000,
                    "cost_s": 0.5,
                },
                {"step": 2, "kind": "swap_in", "request_id": "b", "bytes": 500, "cost_s": 0.25},
                {"step": 2, "kind": "resume", "request_id": "b"},
            ]
        )
    )

    table = preemptions(events, steps)

    # out: 0.5 s x 3 running; in: 0.3 s x 3 others
    assert table["induced_s"].to_list() == [pytest.approx(2.4)]
    assert table["recomputed_tokens"].to_list() == [0]
    costs = table.select(
        "direct_cost_s", "uncached_cost_s", "recompute_est_s", "stalled_s"
    ).row(0)
    assert costs == (
        0.75,
        None,
        2.0,
        0.8,
    )  # two copies of 0.5 and 0.25 s, not the estimate of 0.8


def test_a_victim_that_never_came_back_has_no_costs_of_return() -> None:
    table = preemptions(
        frame(make_events([evict(1, "b", "a", tokens=6)])), frame(make_steps([1, 1]))
    )

    row = table.select("resume_step", "away_s", "recomputed_tokens", "induced_s").row(0)
    assert row == (None, None, None, 0.0)


def test_what_was_found_in_the_cache_or_never_came_back_costs_nothing() -> None:
    events = frame(
        make_events(
            [
                evict(1, "b", "a", tokens=100, recompute_est_s=2.0),
                evict(1, "c", "a", tokens=100, recompute_est_s=2.0),
                evict(1, "d", "a", tokens=100, recompute_est_s=2.0),
                {"step": 2, "kind": "resume", "request_id": "b", "tokens": 75},
                {"step": 2, "kind": "resume", "request_id": "c", "tokens": 100},
            ]
        )
    )

    table = preemptions(events, frame(make_steps([1, 1, 1])))

    assert table["direct_cost_s"].to_list() == [0.5, 0.0, 0.0]
    assert table["uncached_cost_s"].to_list() == [2.0, 2.0, 2.0]
    assert preemption_cost(events) == 0.5


def test_copies_that_tell_no_time_have_no_cost_rather_than_none() -> None:
    events = frame(
        make_events(
            [
                evict(1, "b", "a", mode_used="swap", cost_s=0.8),
                {"step": 1, "kind": "swap_out", "request_id": "b", "cost_s": 0.4},
                {"step": 2, "kind": "swap_in", "request_id": "b"},
            ]
        )
    )

    assert preemption_cost(events) is None
    assert preemption_cost(events.clear()) == 0.0


def test_a_copy_that_nobody_waits_for_costs_link_time_and_no_stall() -> None:
    steps = frame(make_steps([1, 1], num_running=[4, 4], swap_out_bytes=[1000, 0]))
    events = frame(
        make_events(
            [
                evict(0, "b", "a", mode_used="swap", bytes=1000),
                {
                    "step": 0,
                    "kind": "swap_out",
                    "request_id": "b",
                    "bytes": 1000,
                    "cost_s": 0.5,
                },
            ]
        )
    )

    table = preemptions(events, steps)

    assert table.select("direct_cost_s", "stalled_s", "induced_s").row(0) == (0.5, 0.0, 0.0)


def test_no_preemption_is_an_empty_table_with_all_columns() -> None:
    table = preemptions(frame(make_events([])), frame(make_steps([1])))

    assert table.height == 0
    assert "induced_s" in table.columns
    assert (
        top_victims(table).height == top_aggressors(table).height == cascades(table).height == 0
    )


def many() -> pl.DataFrame:
    """Evictions at steps 1, 2, 4 and 20; b goes twice."""
    rows = [
        evict(1, "b", "a", tokens=5),
        evict(2, "c", "a", tokens=5),
        {"step": 3, "kind": "resume", "request_id": "b", "tokens": 1},
        evict(4, "b", "c", tokens=7),
        evict(20, "d", "d", tokens=9),
    ]
    return preemptions(frame(make_events(rows)), frame(make_steps([1] * 21)), cascade_steps=3)


def test_preemptions_close_to_each_other_are_one_cascade() -> None:
    table = many()

    assert table["cascade_id"].to_list() == [0, 0, 0, 1]
    assert table["cascade_size"].to_list() == [3, 3, 3, 1]
    assert cascades(table).rows(named=True) == [
        {
            "cascade_id": 0,
            "first_step": 1,
            "last_step": 4,
            "start_s": 1.0,
            "num_preemptions": 3,
            "num_victims": 2,
            "recomputed_tokens": 4,
            "bytes": 0,
        }
    ]


def test_a_second_eviction_tells_how_long_the_victim_had_been_back() -> None:
    assert many().select("request_id", "nth", "since_resume_s").rows() == [
        ("b", 1, None),
        ("c", 1, None),
        ("b", 2, 1.0),
        ("d", 1, None),
    ]


def test_victims_and_aggressors_are_ranked_and_self_evictions_left_out() -> None:
    table = many()

    assert top_victims(table, 2).select("request_id", "num_preemptions", "away_s").rows() == [
        ("b", 2, 2.0),
        ("c", 1, 0.0),
    ]
    assert top_aggressors(table).select("request_id", "num_preemptions").rows() == [
        ("a", 2),
        ("c", 1),
    ]
