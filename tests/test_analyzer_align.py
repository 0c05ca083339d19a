"""Two runs on one axis."""

from __future__ import annotations

import polars as pl
import pytest

from analyzer.align import align
from tests.builders import make_requests, make_steps
from traces.errors import SettingsError

REQUESTS = pl.DataFrame(
    pl.from_arrow(
        make_requests(
            [{"request_id": "a", "output_tokens": 4, "first_token_s": 1.0, "finish_s": 4.0}]
        )
    )
)


def run(used: list[int], **columns: object) -> tuple[pl.DataFrame, pl.DataFrame]:
    return pl.DataFrame(pl.from_arrow(make_steps(used, **columns))), REQUESTS  # type: ignore[arg-type]


def test_by_time_levels_are_means_over_each_bucket() -> None:
    a = run([2, 4], duration_s=[1.0, 3.0])
    b = run([6, 0], duration_s=[2.0, 2.0])

    grid = align(a, b, by="time", points=2)

    assert grid.rows(named=True) == [
        {
            "x_start": 0.0,
            "x_end": 2.0,
            "a_used_blocks": 3.0,
            "b_used_blocks": 6.0,
            "delta_used_blocks": 3.0,
        },
        {
            "x_start": 2.0,
            "x_end": 4.0,
            "a_used_blocks": 4.0,
            "b_used_blocks": 0.0,
            "delta_used_blocks": -4.0,
        },
    ]


def test_there_is_no_difference_where_only_one_run_exists() -> None:
    grid = align(run([2, 2]), run([3, 3, 3, 3]), by="time", points=4)

    assert grid["a_used_blocks"].to_list() == [2.0, 2.0, None, None]
    assert grid["b_used_blocks"].to_list() == [3.0, 3.0, 3.0, 3.0]
    assert grid["delta_used_blocks"].to_list() == [1.0, 1.0, None, None]


def test_counts_are_summed_per_bucket() -> None:
    a = run([1, 1, 1, 1], num_preempted=[1, 0, 2, 3])

    grid = align(a, run([1, 1, 1, 1]), columns=["num_preempted"], points=2)

    assert grid["a_num_preempted"].to_list() == [1.0, 5.0]
    assert grid["delta_num_preempted"].to_list() == [-1.0, -5.0]


def test_by_step_the_same_scheduler_calls_are_held_against_each_other() -> None:
    a = run([2, 4], duration_s=[1.0, 9.0])
    b = run([3, 3], duration_s=[5.0, 5.0])

    assert align(a, b, by="step", points=2)["delta_used_blocks"].to_list() == [1.0, -1.0]


def test_by_progress_the_same_work_done_is_held_against_each_other() -> None:
    # a: first token and then one a step; b: stands still for one step in the middle
    a = run([1, 2, 3, 4], decode_tokens=[0, 1, 1, 1])
    b = run([1, 2, 9, 3, 4], decode_tokens=[0, 1, 0, 1, 1])

    grid = align(a, b, by="progress", points=4)

    assert grid["x_end"].to_list() == [0.25, 0.5, 0.75, 1.0]
    assert grid["a_used_blocks"].to_list() == [1.0, 2.0, 3.0, 4.0]
    assert grid["delta_used_blocks"].to_list() == [0.0, 0.0, 0.0, 0.0]


def test_by_progress_a_run_that_did_less_ends_earlier() -> None:
    a = run([1, 2, 3, 4], decode_tokens=[0, 1, 1, 1])
    b = run([1, 2], decode_tokens=[0, 1])

    grid = align(a, b, by="progress", points=4)

    assert grid["b_used_blocks"].to_list() == [1.0, 2.0, None, None]


def test_an_unknown_alignment_lists_those_that_there_are() -> None:
    with pytest.raises(SettingsError, match="Choose from time, step, progress"):
        align(run([1]), run([1]), by="luck")


def test_a_window_is_cut_at_any_place() -> None:
    grid = align(run([2, 4]), run([2, 8]), start=0.5, end=1.5, points=1)

    assert grid.rows() == [(0.5, 1.5, 3.0, 5.0, 2.0)]
